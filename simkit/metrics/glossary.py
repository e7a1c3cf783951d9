"""The words that report.html explains under its tables, and limits; other numbers the catalogue defines."""

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
        "Measured window",
        "From the first measured arrival, after warm-up, to the last arrival of the run: the time over which "
        "throughput, goodput, concurrency and cost are counted. Every finished request counts in it with the share of "
        "its stay, from being scheduled first to its last token, that lies inside; so neither the filling at the start "
        "nor the emptying at the end of a run weighs. For a finite load (workload.finite, or all at once) it is the "
        "makespan.",
    ),
    (
        "Throughput",
        "Finished requests (or their tokens) per second of the measured window, each by its share in it. Below "
        "saturation that is the rate at which requests arrive, beyond it what the system serves.",
    ),
    (
        "Throughput of the makespan",
        "All finished requests (or their tokens) over the makespan, first arrival to last delivery: what benchmark "
        "tools count. It includes the filling and the emptying, and so depends on the number of requests.",
    ),
    (
        "Concurrency",
        "Time average, over the measured window, of requests between first being scheduled and their last token. High "
        "throughput and high concurrency are different things, so both are shown.",
    ),
    (
        "Goodput",
        "Throughput of those requests that meet every latency target of the scenario. Rejected and unfinished requests "
        "fail; an undefined TPOT passes.",
    ),
    (
        "Objectives",
        "A percentile objective asks for that share of the measured requests that have the metric; those that were "
        "turned away, gave up or did not end miss it. A mean is compared with the mean. Where no finished request has "
        "the metric, it is neither met nor missed.",
    ),
    (
        "Cost",
        "Price of all GPUs an hour over the output tokens that an hour brings at the throughput of the window.",
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
        "Error of step times",
        "How wrong the times of kernels and of the engine's loop may be: the sizes come from kernels that a profile's "
        "fit did not see and from what the terms of an engine miss of the runs behind them. Each replication serves "
        "its customers once more with times that err by a draw; the wider interval holds that too. Settings that are "
        "compared err alike. latency.error: none leaves it out.",
    ),
    (
        "Saturated",
        "The queue grows for as long as requests arrive. Latencies of such a run depend on how long it was observed, "
        "so only its throughput is a property of the system.",
    ),
    (
        "Warm-up",
        "Requests at the start, before the system has settled, are left out of the percentiles, and the measured "
        "window begins after them. auto: those that arrive in the first fifth of the time in which requests arrive (of "
        "a closed loop, the first of each client and a fifth of the others); nothing of a finite load or a log. The "
        "list below says by which rule and how many.",
    ),
)

LIMITS = {
    "slots": "all slots are taken while requests wait",
    "KV blocks": "slots are free, and memory for the next prompt is not",
    "token budget": "slots and memory are free, and steps are full of tokens",
    "compute": "requests wait for their turn, or in slots that more slots would not empty faster",
    "TTFT": "the slowest requests hardly wait: the steps that compute their prompts take too long by themselves",
    "TPOT": "a step with this many sequences takes longer than a token may",
    "E2E": "steps take too long by themselves",
}
"""Every limit of a capacity, and what it looks like."""
