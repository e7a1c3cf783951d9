"""Result of `vllm bench serve --save-result --save-detailed`: one JSON object with a value a request in its arrays.

Source of the format: vllm-project/vllm, vllm/benchmarks/serve.py and lib/endpoint_request_func.py: all times in s, on a
clock of the client's own; `start_times` from when a request was sent, which a limit of concurrency has put off. E2E is
not saved: it is the TTFT and the gaps behind it, as the tool itself takes it. Versions before `start_times` say when
requests came only if all came at once.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import replace

from simkit.errors import InputError
from simkit.logs.read.fields import Row, note_unit, read_objects, require
from simkit.logs.read.format import Format, Head, Source
from simkit.logs.read.json import JsonRow
from simkit.logs.read.log import BadCell, shown
from simkit.logs.read.record import MAX_NS, Columns, Record
from simkit.units import ns_to_s

NEEDS = ("input_lens", "output_lens", "ttfts")
DURATION_FACTOR = 3.0
"""By how much the duration of a result may differ from when its requests ended without a remark."""

ARRAYS = (*NEEDS, "itls", "errors", "start_times")


def matches(head: Head) -> str | None:
    """By the arrays of lengths and times to first token."""
    fits = head.kind == "json" and any(
        all(isinstance(found.get(name), list) for name in NEEDS) for found in head.objects
    )
    return f"arrays {', '.join(name for name in ARRAYS if name in head.keys)}" if fits else None


def read(source: Source) -> Iterator[Columns]:
    """The requests in the order of the arrays; their line is their place in them. InputError for several results."""
    require(source, source.format.needs)
    note_unit(source, "start_times", "s")
    for number, (_, result) in enumerate(source.rows):
        if number:
            raise InputError(f"{source.log.where}: several results in one file: expected one, each run by itself")
        yield from _requests(result, source)


def _requests(result: JsonRow, source: Source) -> Iterator[Columns]:
    arrays = _arrays(result, source.log.where)
    count = len(arrays["ttfts"])
    _check_arrivals(result, arrays, source)
    if isinstance(result.get("model_id"), str):
        source.log.remark(f"the result is of model {shown(result['model_id'])}")
    spans: list[tuple[int, int]] = []
    num_uneven = 0

    def rows() -> Iterator[tuple[int, JsonRow]]:
        for at in range(count):
            source.log.line = at + 1
            yield at + 1, {name: values[at] for name, values in arrays.items()}

    def record(row: Row) -> Record:
        nonlocal num_uneven
        found = _record(row)
        if found.time_ns is not None and found.e2e_ns is not None:
            spans.append((found.time_ns, found.time_ns + found.e2e_ns))
        num_uneven += found.gaps_ns is not None and len(found.gaps_ns) != found.output_tokens - 1
        return found

    yield from read_objects(replace(source, rows=rows()), record)
    _check_duration(result, spans, source)
    if num_uneven:
        source.log.remark(
            f"{num_uneven} of {count} requests have not one gap in itls for each token behind the first: their client "
            "got several tokens at a time, or an empty last piece"
        )


def _arrays(result: JsonRow, where: str) -> dict[str, list[object]]:
    """The arrays by name, a value a request in each. InputError for what does not fit together."""
    found: dict[str, list[object]] = {}
    for name in ARRAYS:
        values = result.get(name)
        if values is None and name not in NEEDS:
            continue
        if not isinstance(values, list):
            raise InputError(f"{where}: {name} {shown(values)}, expected an array with a value a request")
        found[name] = values
    count = len(found["ttfts"])
    for name, values in found.items():
        if len(values) != count:
            raise InputError(f"{where}: {name} has {len(values)} values and ttfts {count}, expected one a request")
    return found


def _check_arrivals(result: JsonRow, arrays: Container[str], source: Source) -> None:
    """Say when requests came, or that nobody can know: InputError."""
    limit, rate = result.get("max_concurrency"), result.get("request_rate")
    if "start_times" in arrays:
        if limit is not None:
            source.log.remark(
                f"max_concurrency {shown(limit)}: requests were sent when others had ended; they come at these times, "
                "however long others take here"
            )
        return
    if str(rate).lower() not in ("inf", "infinity") or limit is not None:
        kept = f"max_concurrency {shown(limit)}" if limit is not None else f"request_rate {shown(rate)}"
        raise InputError(
            f"{source.log.where}: no start_times, and with {kept} arrivals are not known: expected a result of a "
            "version of vLLM that saves start_times, or of --request-rate inf without --max-concurrency"
        )
    source.log.remark("no start_times; request_rate is inf: all requests come at once, at 0")


def _check_duration(result: JsonRow, spans: Sequence[tuple[int, int]], source: Source) -> None:
    """Say when requests take far longer or shorter than the run, as they do with times in another unit."""
    given = result.get("duration")
    if not spans or isinstance(given, bool) or not isinstance(given, int | float) or not 0 < given <= MAX_NS:
        return
    took_s = ns_to_s(max(end for _, end in spans) - min(start for start, _ in spans))
    if not given / DURATION_FACTOR <= took_s <= given * DURATION_FACTOR:
        source.log.remark(
            f"duration says {given:.4g} s, and the last request ends {took_s:.4g} s after the first came: "
            "are start_times, ttfts and itls in s?"
        )


def _record(row: Row) -> Record:
    """One request; what failed has neither times nor tokens."""
    line, error = row.line, row.get("errors")
    if error is not None and not isinstance(error, str):
        raise BadCell("errors", error, "a text")
    at = row.time("start_times", "s") if "start_times" in row.values else 0
    prompt, output = row.tokens("input_lens"), row.tokens("output_lens")
    if error:
        return Record(line, at, prompt, output, failed="with an error")
    if not output:
        return Record(line, at, prompt, 0)
    ttft = row.duration("ttfts", "s")
    gaps = _gaps(row)
    # Without a list of gaps nobody knows when the last token came, but for an answer of one token.
    known = gaps is not None and (len(gaps) > 0 or output == 1)
    whole = ttft + sum(gaps) if known and ttft is not None and gaps is not None else None
    if whole is not None and whole > MAX_NS:
        raise BadCell("itls", row.get("itls"), "times that add up to less than 146 years")
    return Record(line, at, prompt, output, ttft_ns=ttft, e2e_ns=whole, gaps_ns=gaps)


def _gaps(row: Row) -> list[int] | None:
    values = row.get("itls")
    if values is None:
        return None
    if not isinstance(values, list):
        raise BadCell("itls", values, "a list of times in s")
    found = [row.within({"itls": value}).duration("itls", "s") for value in values]
    known = [gap for gap in found if gap is not None]
    if len(known) < len(found):
        raise BadCell("itls", values, "a list of times in s")
    return known


FORMAT = Format("vllm-bench", "vLLM benchmark result", matches, read, NEEDS)
