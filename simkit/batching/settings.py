"""Settings of the continuous batcher."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ContinuousSettings:
    """Scheduler settings under vLLM's names; `prefill_first` gives the older prefill-prioritised engine."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    enable_chunked_prefill: bool = True
    prefill_first: bool = False
    policy: str = "fcfs"
    long_prefill_token_threshold: int = 0
    long_prefill_token_threshold_adaptive: bool = False
    scheduler_reserve_full_isl: bool = True
    prefill_schedule_interval: int = 1
    max_num_active_seqs: int | None = None
    async_scheduling: bool = False
