"""What replicas made of their memory and time: KV memory by use, GPU time, FLOPs and bytes, and who served whom."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from simkit.metrics import record as rec
from simkit.metrics.inputs import SummaryInputs, ratio
from simkit.metrics.record import Record
from simkit.types import Ints
from simkit.units import ns_to_s


@dataclass(frozen=True, slots=True)
class KvShare:
    """KV memory put to one use, averaged over time."""

    share_of_pool: float | None
    share_of_allocated: float | None


@dataclass(frozen=True, slots=True)
class KvUse:
    """KV memory: allocated = used + reserved + internal. `num_gpu_blocks` and capacity are of each replica."""

    capacity_tokens: int
    num_gpu_blocks: int | None
    utilization: float | None
    used: KvShare
    reserved: KvShare
    internal: KvShare
    external: KvShare
    peak_tokens: int


def kv_use(record: Record, inputs: SummaryInputs, span_ns: int) -> KvUse:
    """Shares of KV memory, weighted by time: of the pool, and of what was allocated (used + reserved + internal)."""
    totals = record.totals
    pool = inputs.capacity_tokens * inputs.num_replicas * span_ns

    def share(part_ns: int) -> KvShare:
        return KvShare(ratio(part_ns, pool), ratio(part_ns, totals.kv_allocated_ns))

    used = share(totals.kv_used_ns)
    return KvUse(
        capacity_tokens=inputs.capacity_tokens,
        num_gpu_blocks=inputs.num_gpu_blocks,
        utilization=used.share_of_pool,
        used=used,
        reserved=share(totals.kv_allocated_ns - totals.kv_used_ns - totals.kv_internal_ns),
        internal=share(totals.kv_internal_ns),
        external=share(totals.kv_external_ns),
        peak_tokens=totals.kv_peak_tokens,
    )


@dataclass(frozen=True, slots=True)
class Extrapolated:
    """The share of GPU time that does not rest on measurements, and its parts by what is extrapolated."""

    share: float | None
    parts: Mapping[str, float | None]


@dataclass(frozen=True, slots=True)
class GpuUse:
    """Time, FLOPs and bytes of the GPUs, as shares of what they could have done; `extrapolated` is None where the
    latency model measured nothing."""

    busy: float | None
    mfu: float | None
    mbu: float | None
    extrapolated: Extrapolated | None


def gpu_use(record: Record, inputs: SummaryInputs, span_ns: int) -> GpuUse:
    totals, n = record.totals, inputs.num_replicas
    flops, rate = inputs.peak_flops_per_s, inputs.peak_bytes_per_s
    seconds = ns_to_s(span_ns) * n
    return GpuUse(
        busy=ratio(totals.gpu_ns, span_ns * n),
        mfu=None if flops is None else ratio(totals.flops, flops * seconds),
        mbu=None if rate is None else ratio(totals.moved_bytes, rate * seconds),
        extrapolated=_extrapolated(totals.extrapolated_ns, totals.gpu_ns),
    )


def _extrapolated(parts_ns: Mapping[str, int], gpu_ns: int) -> Extrapolated | None:
    if not parts_ns:
        return None
    return Extrapolated(ratio(sum(parts_ns.values()), gpu_ns), {k: ratio(ns, gpu_ns) for k, ns in parts_ns.items()})


@dataclass(frozen=True, slots=True)
class ReplicaUse:
    """What one replica served: the requests that finished there, with all their tokens."""

    index: int
    requests: int
    output_tokens: int
    busy: float | None


def replica_uses(record: Record, table: dict[str, Ints], inputs: SummaryInputs, span_ns: int) -> tuple[ReplicaUse, ...]:
    finished = table["status"] == rec.FINISHED
    served, tokens = table["replica"][finished], table["output_tokens"][finished]
    return tuple(
        ReplicaUse(
            index=index,
            requests=int((served == index).sum()),
            output_tokens=int(tokens[served == index].sum()),
            busy=ratio(record.gpu_ns_of.get(index, 0), span_ns),
        )
        for index in range(inputs.num_replicas)
    )
