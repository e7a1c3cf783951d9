"""All bounds of the rules, in one table that users see. They are rules of thumb: the proof of an advice is a re-run."""

from __future__ import annotations

from simkit.diagnosis.findings import Threshold

# --- who waits, and for what ------------------------------------------------------------------------------------------
FEW_WAIT = Threshold("time in which somebody waits", "<", 0.05, "share")
FEW_SLOTS_USED = Threshold("slot utilisation", "<", 0.30, "share")
WAIT_FOR_SLOTS = Threshold("time in which requests wait for a slot", ">=", 0.20, "share")
WAIT_FOR_MEMORY = Threshold("time in which requests wait for KV memory", ">=", 0.20, "share")
BUDGET_USED_UP = Threshold("time in steps that use up the token budget", ">=", 0.75, "share")
CROWDED = Threshold("time in which somebody waits or every slot is taken", ">=", 0.50, "share")
MEMORY_FULL = Threshold("free KV memory beyond the watermark", "<", 0.05, "share")
BUDGET_FULL = Threshold("tokens of a step, of the token budget", ">=", 0.90, "share")
GPU_WAITS = Threshold("GPU busy while there are requests", "<", 0.90, "share")

# --- requests that do not get their answer ----------------------------------------------------------------------------
REJECTED = Threshold("requests rejected", ">", 0.0, "share")
REFUSED = Threshold("requests refused", ">", 0.0, "share")
ABORTED = Threshold("requests aborted", ">", 0.0, "share")
UNFINISHED = Threshold("requests unfinished", ">", 0.0, "share")
LOST = Threshold("of all requests, to be a warning", ">=", 0.01, "share")
LOST_BADLY = Threshold("of all requests, to be serious", ">=", 0.10, "share")
NEARLY_ALL = Threshold("requests finished", ">", 0.99, "share")
REPLICA_DOWN = Threshold("time of replicas lost to failures", ">", 0.0, "share")
REQUEUED = Threshold("requests returned to the queue, to be a warning", ">=", 0.01, "share")

# --- memory -----------------------------------------------------------------------------------------------------------
PREEMPTED = Threshold("requests preempted at least once", ">=", 0.10, "share")
PREEMPTED_BADLY = Threshold("preemptions a request, to be serious", ">=", 1.0, "per request")
SLOTS_BEYOND_MEMORY = Threshold("max_num_seqs over the sequences that fit", ">=", 1.5, "x")
OTHER_IS_CHEAPER = Threshold("cost of this kind of preemption over the other's", ">=", 1.1, "x")
BLOCK_WASTE = Threshold("allocated KV memory that holds no token", ">=", 0.15, "share")
RESERVED_WASTE = Threshold("allocated KV memory that holds no token (contiguous)", ">=", 0.40, "share")

# --- tails ------------------------------------------------------------------------------------------------------------
LONG_TTFT = Threshold("TTFT p99 without an objective", ">=", 1000.0, "ms")
TTFT_TAIL = Threshold("TTFT p99 / p50", ">=", 5.0, "x")
LONG_ITL = Threshold("ITL p99 without an objective", ">=", 100.0, "ms")
ITL_TAIL = Threshold("ITL p99 / p50", ">=", 8.0, "x")
STEP_WITH_PROMPTS = Threshold("step with prompt tokens over one without", ">=", 1.2, "x")
LONG_PROMPTS = Threshold("prompt p99 / p50", ">=", 4.0, "x")

# --- sharing and batches ----------------------------------------------------------------------------------------------
SHARED_PROMPT = Threshold("prompt tokens that could come from the prefix cache", ">=", 0.10, "share")
HITS_MISSED = Threshold("prefix hit rate over what is possible", "<", 0.80, "share")
DEAD_SLOTS = Threshold("held slots that do no work", ">=", 0.20, "share")

# --- judging a re-run -------------------------------------------------------------------------------------------------
BETTER_RATE = Threshold("gain in a rate that counts as better", ">=", 0.01, "share")
BETTER_LATENCY = Threshold("fall of a latency, or of a count, that counts as better", ">=", 0.05, "share")
WORSE_RATE = Threshold("loss in a rate that counts as worse", ">=", 0.03, "share")
WORSE_LATENCY = Threshold("rise of a latency, or of a count, that counts as worse", ">=", 0.10, "share")

TABLE: tuple[tuple[str, tuple[Threshold, ...]], ...] = (
    ("replica-failed", (REPLICA_DOWN, REQUEUED)),
    ("rejected", (REJECTED, LOST, LOST_BADLY)),
    ("refused", (REFUSED, LOST, LOST_BADLY)),
    ("aborted", (ABORTED, LOST, LOST_BADLY)),
    ("unfinished", (UNFINISHED, LOST, LOST_BADLY)),
    ("room-left", (FEW_SLOTS_USED, FEW_WAIT, NEARLY_ALL)),
    ("saturated", ()),
    ("gpu-waits", (GPU_WAITS,)),
    ("slots-limit", (WAIT_FOR_SLOTS,)),
    ("memory-limit", (WAIT_FOR_MEMORY, MEMORY_FULL)),
    ("concurrency-misread", (BUDGET_USED_UP, BUDGET_FULL, CROWDED)),
    ("preemptions", (PREEMPTED, PREEMPTED_BADLY)),
    ("preemption-kind", (PREEMPTED, OTHER_IS_CHEAPER)),
    ("slots-beyond-memory", (SLOTS_BEYOND_MEMORY, WAIT_FOR_MEMORY, PREEMPTED)),
    ("block-waste", (BLOCK_WASTE,)),
    ("contiguous-waste", (RESERVED_WASTE,)),
    ("ttft-tail", (LONG_TTFT, TTFT_TAIL, LONG_PROMPTS, FEW_WAIT)),
    ("prefill-stall", (LONG_ITL, ITL_TAIL, STEP_WITH_PROMPTS)),
    ("mean-hides-tail", (STEP_WITH_PROMPTS, FEW_WAIT)),
    ("prefix-cache", (SHARED_PROMPT, HITS_MISSED)),
    ("dead-slots", (DEAD_SLOTS,)),
)
"""Every rule with the thresholds it looks at, in the order in which rules are checked."""

PROOF: tuple[Threshold, ...] = (BETTER_RATE, BETTER_LATENCY, WORSE_RATE, WORSE_LATENCY)
"""How a re-run is judged."""
