"""Mooncake JSONL and its session and agentic variants: timestamp in ms, input_length, output_length, hash_ids.

Sources of the format: kvcache-ai/Mooncake, FAST25-release/traces (hash_ids of 512 tokens each, prefix-chained,
identities of 64 bits); its variants, with other names for the same, in ai-dynamo/aiperf (custom datasets) and
dynamo-data-gen (mooncake rows): later turns of a session have a delay behind the turn before instead of a time, agentic
rows wait for another request.

`GUIDELLM` are trace files of vllm-project/guidellm (trace_synthetic and mooncake datasets): the same with times in s;
nothing but the unit sets them apart, so that they must be named, unless conversation_id is there. `DELTA` (ai-dynamo's
mocker, MooncakeDelta): a later turn's input_length is only what it adds; the user must name it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice, pairwise, repeat
from pathlib import Path
from typing import Any

from simkit.errors import InputError
from simkit.logs.formats.canonical import Meta
from simkit.logs.read.blocks import fitting_block_tokens
from simkit.logs.read.cells import Unit
from simkit.logs.read.fields import Row, note_unused, read_objects, require
from simkit.logs.read.format import Format, Head, Source
from simkit.logs.read.log import BadCell
from simkit.logs.read.record import EPOCH_NS, MAX_TOKENS, NO_TIME, UNKNOWN, Columns, Record
from simkit.types import Ints
from simkit.units import NS_PER_MS

TIME = ("timestamp", "created_time")
PROMPT = ("input_length", "input_tokens")
OUTPUT = ("output_length", "output_tokens")
DELAYS: tuple[tuple[str, Unit | None], ...] = (("delay", None), ("delay_ms", "ms"), ("tool_wait_ms", "ms"))
"""(field, its unit; None: that of the time)."""
TEXTS = ("text_input", "messages", "payload")
SESSION = ("session_id", "conversation_id")
USED = (
    *TIME, *PROMPT, *OUTPUT, *SESSION, *(name for name, _ in DELAYS), "hash_ids", "request_id", "model", "turn",
    "output_token_ids", "wait_for", "branches", "prefix_reset",
)  # fmt: skip
MAX_PER_S = 1000
BLOCK_TOKENS = 512
NEEDS = ("timestamp", "input_length", "output_length")


def matches(head: Head) -> str | None:
    """By time and lengths (under their other names only beside hash_ids or a session), or texts instead of lengths."""
    keys = head.keys
    has_own_names = {"input_length", "output_length"} <= keys or {"input_length", "output_token_ids"} <= keys
    has_other_names = {"input_tokens", "output_tokens"} <= keys and not keys.isdisjoint({"hash_ids", "session_id"})
    has_texts = not keys.isdisjoint({"text_input", "payload"}) or {"messages", "output_length"} <= keys
    if head.kind != "json" or keys.isdisjoint(TIME) or not (has_own_names or has_other_names or has_texts):
        return None
    telling = (*TIME, *PROMPT, *OUTPUT, "output_token_ids", "hash_ids", *TEXTS, *SESSION)
    return f"fields {', '.join(name for name in telling if name in keys)}"


def request(row: Row, default_unit: Unit) -> Record | None:
    """One row, times in `default_unit` unless the scenario names another."""
    unit = row.source.unit(default_unit)
    prompt, at = row.first(*PROMPT), row.first(*TIME)
    if "schema" in row.values and prompt is None:
        row.skip("header only")
        return None
    if prompt is None and (texts := row.first(*TEXTS)) is not None:
        raise BadCell(PROMPT[0], None, f"a number of tokens; {texts} is text, which needs a tokenizer")
    parent = _waits_for(row)
    if at is None and row.first(*SESSION) is None and parent is None:
        raise BadCell(TIME[0], None, f"a time in {unit}, or a session_id and a delay behind the turn before")
    return Record(
        line=row.line,
        time_ns=None if at is None else row.time(at, unit),
        prompt_tokens=row.tokens(prompt or PROMPT[0]),
        output_tokens=_output_tokens(row),
        id=row.text("request_id"),
        session=row.text(*SESSION),
        turn=row.count("turn"),
        parent=parent,
        delay_ns=_delay(row, unit),
        block_ids=row.block_ids("hash_ids"),
        model=row.text("model"),
    )


def _output_tokens(row: Row) -> int:
    ids = row.get("output_token_ids")
    name = row.first(*OUTPUT)
    return len(ids) if name is None and isinstance(ids, list) else row.tokens(name or OUTPUT[0])


def _delay(row: Row, unit: Unit) -> int | None:
    """All waiting behind the request before: think time and tool time."""
    found = [row.duration(name, own or unit) for name, own in DELAYS]
    known = [value for value in found if value is not None]
    if sum(known) > 2**62:
        raise BadCell("delay", row.get("delay"), "a shorter time")
    return sum(known) if known else None


def _waits_for(row: Row) -> str | None:
    """The request that an agentic row waits for. BadCell for what one predecessor cannot say."""
    for name in ("branches", "prefix_reset"):
        if row.get(name):
            raise BadCell(name, row.get(name), "none: a request follows one other, and shares what hash_ids say")
    value = row.get("wait_for")
    if value is None or value == []:
        return None
    if isinstance(value, list):
        if len(value) > 1:
            raise BadCell("wait_for", value, "one request id: waiting for several cannot be replayed")
        return row.within({"wait_for": value[0]}).text("wait_for")
    return row.text("wait_for")


def check_unit(source: Source) -> None:
    """InputError where the first times cannot be ms: most have fractions, and more than MAX_PER_S come in a second."""
    if source.spec.time_unit != "auto":
        return
    rows = [Row(0, values, source) for values in source.head.objects]
    times = [row.get(name) for row in rows if (name := row.first(*TIME)) is not None]
    known = [time for time in times if isinstance(time, int | float) and not isinstance(time, bool)]
    numbers = [float(time) for time in known if abs(time) < 2**53]
    num_fractions = sum(not number.is_integer() for number in numbers)
    if num_fractions < 2 or 2 * num_fractions < len(numbers):
        return
    span_ms = max(numbers) - min(numbers)
    if span_ms > 0 and (len(numbers) - 1) / span_ms * 1000 > MAX_PER_S:
        fitting = fitting_block_tokens(source.head.objects, "input_length", "hash_ids")
        blocks = f", --hash-block-tokens {fitting} (what hash_ids fit)" if fitting not in (None, BLOCK_TOKENS) else ""
        raise InputError(
            f"{source.log.where}: timestamps have fractions, and in ms, as Mooncake has them, the first "
            f"{len(numbers)} requests would come in {span_ms / 1000:.3g} s ({(len(numbers) - 1) / span_ms * 1000:.0f} "
            f"a second): give --time-unit s or ms{blocks}; --format guidellm reads the same fields in s"
        )


def check_blocks(source: Source) -> None:
    """A remark where hash_ids do not fit blocks of 512 tokens, and fit others."""
    wanted = source.spec.hash_block_tokens or BLOCK_TOKENS
    fitting = fitting_block_tokens(source.head.objects, "input_length", "hash_ids", wanted)
    if fitting is not None and fitting != wanted:
        source.log.remark(f"the first hash_ids fit blocks of {fitting} tokens, not of {wanted} (--hash-block-tokens)")


def refuse_text(source: Source) -> None:
    """InputError where no row has a length, and texts instead."""
    keys = source.head.keys
    texts = [name for name in TEXTS if name in keys]
    if texts and keys.isdisjoint(PROMPT):
        raise InputError(
            f"{source.log.where}: prompts are texts ({', '.join(texts)}), and counting their tokens needs the model's "
            "tokenizer: add input_length to every row"
        )


def read(source: Source) -> Iterator[Columns]:
    """The requests in file order."""
    require(source, ())
    refuse_text(source)
    check_unit(source)
    check_blocks(source)
    note_unused(source, USED)
    return read_objects(source, partial(request, default_unit="ms"))


def matches_guidellm(head: Head) -> str | None:
    """By conversation_id beside the fields of Mooncake."""
    fits = head.kind == "json" and {*NEEDS, "conversation_id"} <= head.keys
    return f"fields {', '.join(NEEDS)} and conversation_id" if fits else None


def read_guidellm(source: Source) -> Iterator[Columns]:
    """The requests in file order."""
    require(source, source.format.needs)
    refuse_text(source)
    check_blocks(source)
    note_unused(source, USED)
    return read_objects(source, partial(request, default_unit="s"))


def matches_delta(head: Head) -> str | None:
    """Never: it looks like any other Mooncake file with sessions."""
    return None


def read_delta(source: Source) -> Iterator[Columns]:
    """The requests in file order, with whole prompts; the context of every session is kept."""
    require(source, ())
    refuse_text(source)
    check_unit(source)
    note_unused(source, USED)
    source.log.remark(
        "input_length is read as what a turn adds to the prompt and output of the turn before; hash_ids stand for the "
        "additions and are not used, so the prefix hit rate is unknown"
    )
    context: dict[str, int] = {}

    def record(row: Row) -> Record | None:
        found = request(row, "ms")
        if found is None:
            return None
        whole = found.prompt_tokens
        if found.session is not None:
            whole += context.get(found.session, 0)
            if whole + found.output_tokens > MAX_TOKENS:
                raise BadCell("input_length", found.prompt_tokens, f"at most {MAX_TOKENS} tokens in a session")
            context[found.session] = whole + found.output_tokens
        return found._replace(prompt_tokens=whole, block_ids=None)

    return read_objects(source, record)


FORMAT = Format(
    "mooncake",
    "Mooncake JSONL",
    matches,
    read,
    NEEDS,
    hash_block_tokens=BLOCK_TOKENS,
)
GUIDELLM = Format("guidellm", "GuideLLM JSONL", matches_guidellm, read_guidellm, NEEDS, hash_block_tokens=BLOCK_TOKENS)
DELTA = Format(
    "mooncake-delta",
    "Mooncake JSONL with additions a turn",
    matches_delta,
    read_delta,
    ("input_length", "output_length"),
)


# What the format has no field for, in words.
_NOT_HELD = {
    "failed": "reasons of failure",
    "ttft_ns": "measured TTFT",
    "e2e_ns": "measured E2E",
    "cached_tokens": "measured cache hits",
    "gaps": "measured gaps between tokens",
}


class MooncakeWriter:
    """Writes requests in arrival order, whose `time_ns` count from the first of them."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w", encoding="utf-8", newline="\n")
        self._lost: set[str] = set()

    def add(self, columns: Columns) -> None:
        """Take the next requests."""
        self._lost.update(name for name in _NOT_HELD if getattr(columns, name) is not None)
        self._file.writelines(_lines(columns))

    def close(self, meta: Meta) -> None:
        """Write what is left."""
        self._file.close()

    def abandon(self) -> None:
        """Close the file as it is."""
        self._file.close()

    def notes(self, meta: Meta) -> list[str]:
        """What the format cannot hold of what was written, and how to read it again."""
        lost = [text for name, text in _NOT_HELD.items() if name in self._lost]
        notes = [f"Mooncake JSONL has no place for {', '.join(lost)}: left out"] if lost else []
        if meta.start_ns > EPOCH_NS:
            notes.append("Mooncake JSONL counts times from the first request: when the log began is left out")
        tokens = meta.hash_block_tokens
        if tokens not in (None, BLOCK_TOKENS):
            notes.append(f"hash_ids stand for {tokens} tokens each: read it with --hash-block-tokens {tokens}")
        return notes


def _lines(columns: Columns) -> Iterator[str]:
    """One JSON object a request; what the log does not say is left out."""
    ids = [] if columns.blocks is None else columns.blocks.values.tolist()
    ends = [0] * (len(columns) + 1) if columns.blocks is None else columns.blocks.offsets.tolist()
    cells = zip(
        _fields("request_id", columns.id, json.dumps),
        _fields("session_id", columns.session, json.dumps),
        _fields("turn", _known(columns.turn), str),
        _fields("wait_for", columns.parent, json.dumps),
        _fields("timestamp", _known(columns.time_ns, NO_TIME), _ms),
        _fields("delay", _known(columns.delay_ns), _ms),
        _fields("input_length", columns.prompt_tokens.tolist(), str),
        _fields("output_length", columns.output_tokens.tolist(), str),
        _fields("hash_ids", [ids[first:end] or None for first, end in pairwise(ends)], str),
        _fields("model", columns.model, json.dumps),
        strict=False,
    )
    for row in islice(cells, len(columns)):
        yield "{" + ", ".join(cell for cell in row if cell is not None) + "}\n"


def _known(column: Ints | None, missing: int = UNKNOWN) -> list[int | None] | None:
    return None if column is None else [None if value == missing else value for value in column.tolist()]


def _fields(name: str, values: Sequence[Any] | None, text: Callable[[Any], str]) -> Iterator[str | None]:
    """``"name": value`` of every row, None where it has none."""
    if values is None:
        return repeat(None)
    return (None if value is None else f'"{name}": {text(value)}' for value in values)


def _ms(time_ns: int) -> str:
    """Nanoseconds as milliseconds, all digits."""
    whole, rest = divmod(time_ns, NS_PER_MS)
    return f"{whole}.{rest:06d}".rstrip("0") if rest else str(whole)
