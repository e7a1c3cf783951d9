"""The load of a row of a benchmark table: when requests come, how many, how long.

- A finite rate is Poisson; `max_concurrency` is a closed loop; a rate of inf sends all at once; so does a fixed batch
  (`batch_size`). Of several the first of these counts; a rate of inf is the last.
- Lengths are the same for all requests but where `other_config` says ``generated N``: the outputs then add up to N.
- Prompts share nothing: whether any were in a prefix cache already is not in the table.
"""

from __future__ import annotations

import math
import re

from simkit.validation.rows.read import LENGTHS, Row, Section
from simkit.validation.rows.refusals import Assumptions, Unsuitable

LOOPS = 10
"""Requests of a client of a closed loop, where the row does not say how many there were."""

OPEN_REQUESTS = 1000
"""Requests of a rate, where the row does not say how many there were."""

MOST_LISTED = 1_000_000
"""Requests whose lengths are written out one by one."""

_GENERATED = re.compile(r"\bgenerated\s+(\d{1,12})\b", re.IGNORECASE)


def load_of(row: Row, assumed: Assumptions) -> Section:
    """The section `workload`; what it assumes is added to `assumed`."""
    rate, clients, batch = row.numbers.get("request_rate"), row.count("max_concurrency"), row.count("batch_size")
    number = row.count("num_prompts")
    arrivals: Section = {"process": "all_at_once"}
    if rate is not None and math.isfinite(rate):
        arrivals = {"process": "poisson", "rate_per_s": rate}
        if number is None:
            number = OPEN_REQUESTS
            assumed.add(f"number of requests not stated: {OPEN_REQUESTS} at a rate", "workload.num_requests")
        if clients is not None:
            assumed.add("a rate and a cap of concurrency: the cap is left out", "workload.arrivals.process")
    elif clients is not None:
        arrivals = {"process": "closed_loop", "concurrency": clients}
        if number is None:
            number = LOOPS * clients
            assumed.add(f"number of requests not stated: {LOOPS} a client", "workload.num_requests")
    elif batch is not None:
        if number is not None and number > batch:
            raise Unsuitable("batches one after another are not simulated")
        number = number or batch
        assumed.add("a fixed batch: all at once", "workload.arrivals.process")
    elif rate is not None:
        if number is None:
            number = OPEN_REQUESTS
            assumed.add(f"number of requests not stated: {OPEN_REQUESTS} at once", "workload.num_requests")
    else:
        raise Unsuitable("no load is stated (rate, concurrency or batch)")
    if any(not row.numbers[name].is_integer() or row.text(name).lower().startswith("mean ") for name in LENGTHS):
        assumed.add(
            "mean lengths: requests of nearly the same length", "workload.prompt_tokens", "workload.output_tokens"
        )
    return {
        "num_requests": number,
        "arrivals": arrivals,
        "prompt_tokens": _spread(round(row.numbers["input_len"] * number), number),
        "output_tokens": _outputs(row, number, assumed),
    }


def generated_tokens(row: Row) -> int | None:
    """The tokens of all answers together, where ``other_config`` says ``generated N``."""
    found = _GENERATED.search(row.text("other_config"))
    return int(found[1]) if found is not None else None


def _outputs(row: Row, number: int, assumed: Assumptions) -> Section:
    """As long as asked, or, where fewer were generated in all, so many: as equal as whole tokens allow."""
    total = generated_tokens(row)
    if total is None or row.count("num_prompts") is None:
        return _spread(round(row.numbers["output_len"] * number), number)
    if not number <= total <= number * math.ceil(row.numbers["output_len"]):
        raise Unsuitable("generated tokens that do not fit the number of requests and their output length")
    if total < round(row.numbers["output_len"] * number):
        assumed.add(
            "outputs that ended before their limit: equal lengths with the total that was generated",
            "workload.output_tokens",
        )
    return _spread(total, number)


def _spread(total: int, number: int) -> Section:
    """`total` tokens over `number` requests, at least one each: two lengths that differ by one, evenly mixed."""
    low, more = divmod(max(total, number), number)
    if not more:
        return {"dist": "fixed", "value": low}
    if number > MOST_LISTED:
        raise Unsuitable(f"lengths with a fraction, of more than {MOST_LISTED:,} requests")
    return {"dist": "list", "values": [low + ((i + 1) * more // number - i * more // number) for i in range(number)]}
