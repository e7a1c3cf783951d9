"""What every number of a report means. Text only; the rules are those of the metrics room."""

from __future__ import annotations

DEFINITIONS: tuple[tuple[str, str], ...] = (
    ("TTFT", "Time to first token: from arrival, waiting included, to the first token the client receives."),
    (
        "TPOT",
        "Time per output token of one request: time between its first and last token, divided by its tokens minus one. "
        "A request of one token has none; it is left out, never counted as 0.",
    ),
    ("ITL", "Inter-token latency: the gaps between tokens, pooled over all tokens, so that a stall shows in its tail."),
    ("E2E", "End to end: from arrival to the last token."),
    (
        "Not streamed",
        "Static and dynamic batching hand over all tokens when the batch ends (unless the scenario says stream: true). "
        "TTFT is then E2E, and TPOT and ITL are undefined.",
    ),
    (
        "Throughput",
        "Finished, measured requests (or their tokens) per second, from their first arrival to their last delivery. "
        "Without a warm-up that time is the makespan.",
    ),
    (
        "Concurrency",
        "Time average of requests between first being scheduled and their last token. High throughput and high "
        "concurrency are different things, so both are shown.",
    ),
    (
        "Goodput",
        "Requests per second that meet every latency target of the scenario. Rejected and unfinished requests fail; an "
        "undefined TPOT passes.",
    ),
    (
        "Slot utilisation",
        "Sequences that make progress in a step, divided by max_num_seqs; averaged over steps by their duration.",
    ),
    (
        "Slot occupancy",
        "The same with every slot that is held, dead ones included. The gap to utilisation is the cost of dead slots.",
    ),
    (
        "Dead slot",
        "A member of a static or dynamic batch that has all its tokens but keeps slot and compute to the end.",
    ),
    ("KV used", "Tokens whose keys and values are stored."),
    ("KV reserved", "Room held by a sequence that it will fill before it ends."),
    (
        "KV internal",
        "Room held by a sequence that it will never fill: padding, the rest of a last block, reservation beyond its "
        "end.",
    ),
    (
        "KV external",
        "Free contiguous room that the request at the head of the queue cannot use: what is left of every hole after "
        "as many such requests as fit into it. It is part of free memory: as a share of allocated it can exceed "
        "100 %.",
    ),
    ("KV utilisation", "Stored tokens as a share of the pool. KV shares are averages over time."),
    (
        "Preemption",
        "A running sequence loses its memory to others and must be computed again later. Delivered tokens stay "
        "delivered.",
    ),
    (
        "Requeued",
        "Requests that a failed replica gave back to the router, each time counted. They go on elsewhere: what was "
        "delivered stays delivered, the rest is computed again. The step that the failure broke off counts as busy up "
        "to there. Shares of KV memory and GPU time are of all replicas and all the time, down or not.",
    ),
    ("MFU, MBU", "FLOPs done and bytes moved, as shares of what the GPU could have done in the same time."),
    (
        "Percentiles",
        "Linear interpolation over finished requests after warm-up. ± is half the width of a 95 % Student-t interval "
        "over replications.",
    ),
    (
        "Saturated",
        "The queue grows for as long as requests arrive. Latencies of such a run depend on how long it was observed, "
        "so only its throughput is a property of the system.",
    ),
    (
        "Warm-up",
        "Requests at the start, before the system has settled, can be left out of the percentiles. The list below "
        "says by which rule and how many.",
    ),
)
