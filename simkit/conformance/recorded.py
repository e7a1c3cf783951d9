"""Recorded scheduler decisions, read from a JSON-lines file (plain or gzip).

Format 1: line 1 is the header (settings, workload, step-time formula), the last line a summary (``"end": true``), every
line between a record of one pass or, asynchronous, of one event. All times are integer nanoseconds.
"""

from __future__ import annotations

import gzip
import json
import zlib
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, TypedDict, cast, get_args, get_type_hints

from simkit.batching.policies import POLICIES
from simkit.errors import InputError, nearest

FORMAT = 1

Record = dict[str, Any]
"""A line of the file, as JSON: records are compared whole, key by key."""


class SchedulerConfig(TypedDict):
    """Settings of the scheduler and the pool of blocks, under vLLM's names."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    enable_chunked_prefill: bool
    policy: str
    long_prefill_token_threshold: int
    long_prefill_token_threshold_adaptive: bool
    scheduler_reserve_full_isl: bool
    watermark: float
    prefill_schedule_interval: int
    max_num_active_seqs: int | None
    async_scheduling: bool
    enable_prefix_caching: bool
    block_size: int
    num_gpu_blocks: int


_KINDS: dict[str, tuple[type, ...]] = {
    name: (int, float) if kind is float else get_args(kind) or (kind,)
    for name, kind in get_type_hints(SchedulerConfig).items()
}
_DURATION = ("base_ns", "per_token_ns", "per_context_token_ns")
_STEP_KEYS = {"i", "t", "a", "s", "n", "c", "p", "r", "w", "fs", "d"}
_SYNC_KEYS = _STEP_KEYS | {"f", "fu"}
_SCHEDULE_KEYS = _STEP_KEYS | {"ev", "g"}
_OUTPUT_KEYS = {"ev", "i", "t", "f", "fu"}
_SUMMARY_KEYS = {"end", "schedule_calls", "t_end", "preemptions", "req"}
_AT_LEAST = {"max_num_seqs": 1, "block_size": 1, "num_gpu_blocks": 2, "prefill_schedule_interval": 1}
_MAX_BLOCKS = 10_000_000
_MAX_DEPTH = 4


@dataclass(frozen=True, slots=True)
class RecordedRequest:
    """A request of the workload; `segments` are (stream, length) pairs of the prompt, in order."""

    id: int
    at_ns: int
    segments: tuple[tuple[int, int], ...]
    output_tokens: int
    output_stream: int
    priority: int

    @property
    def prompt_tokens(self) -> int:
        """Length of the prompt."""
        return sum(length for _, length in self.segments)


@dataclass(frozen=True, slots=True)
class Recording:
    """A recorded case. `records` are the lines between header and summary, `lines` their line numbers."""

    path: str
    case: str
    source: str
    config: SchedulerConfig
    duration: dict[str, int]
    blocks_recorded: bool
    requests: tuple[RecordedRequest, ...]
    records: tuple[Record, ...]
    summary: Record


def find_recordings(path: Path) -> list[Path]:
    """The file itself, or all ``*.jsonl`` and ``*.jsonl.gz`` of a directory by name. Raises InputError for none."""
    try:
        if not path.exists():
            raise InputError(f"{path}: no such file or directory")
        if not path.is_dir():
            return [path]
        found = sorted(p for p in path.iterdir() if p.name.endswith((".jsonl", ".jsonl.gz")))
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if not found:
        raise InputError(f"{path}: no *.jsonl or *.jsonl.gz file in this directory")
    return found


def read_recording(path: Path) -> Recording:
    """Read and check one file. Raises InputError with file and line for anything that is not a recording."""
    lines = _lines(path)
    header = lines[0]
    where = f"{path}:1"
    if not isinstance(header, dict) or "config" not in header:
        raise InputError(f"{where}: expected a header with case, format and config; this is not a scheduler trace")
    if header.get("format") != FORMAT:
        raise InputError(f"{where}: format: expected {FORMAT}, got {header.get('format')!r}")
    config = _config(header["config"], where)
    duration = _duration(header.get("duration"), where)
    requests = _requests(header, config["max_model_len"], where)
    if len(lines) < 2 or not isinstance(lines[-1], dict) or lines[-1].get("end") is not True:
        raise InputError(f'{path}:{len(lines)}: expected a summary line ("end": true) at the end; the file is cut')
    _check_keys(lines[-1], _SUMMARY_KEYS, set(), f"{path}:{len(lines)}")
    for number, record in enumerate(lines[1:-1], start=2):
        _check_record(record, config["async_scheduling"], f"{path}:{number}")
    return Recording(
        path=str(path),
        case=_text(header, "case", path.name, where),
        source=_text(header, "source", "unknown", where),
        config=config,
        duration=duration,
        blocks_recorded=bool(header.get("blocks_recorded")),
        requests=requests,
        records=tuple(lines[1:-1]),
        summary=lines[-1],
    )


def _lines(path: Path) -> list[Any]:
    try:
        content = path.read_bytes()
        if content[:2] == b"\x1f\x8b":
            content = _unpack(content, path)
        text = content.decode("utf-8")
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        number = content[: error.start].count(b"\n") + 1
        raise InputError(f"{path}:{number}: expected UTF-8 text") from None
    parsed = []
    for number, line in enumerate(text.splitlines(), start=1):
        try:
            parsed.append(json.loads(line))
        except (ValueError, RecursionError):
            raise InputError(f"{path}:{number}: expected one JSON value a line, got {line[:40]!r}") from None
    if not parsed:
        raise InputError(f"{path}:1: the file is empty; expected a trace header")
    return parsed


def _unpack(packed: bytes, path: Path) -> bytes:
    """The content of gzip data. Raises InputError naming the line where it is cut, OSError for other faults."""
    try:
        return gzip.decompress(packed)
    except (EOFError, zlib.error):
        number = _readable_part(packed).count(b"\n") + 1
        raise InputError(f"{path}:{number}: the gzip data is cut or damaged here") from None


def _readable_part(packed: bytes) -> bytes:
    content, unpacker = b"", zlib.decompressobj(wbits=31)
    with suppress(zlib.error):
        for first in range(0, len(packed), 1024):
            content += unpacker.decompress(packed[first : first + 1024])
    return content


def _config(config: Any, where: str) -> SchedulerConfig:
    if not isinstance(config, dict):
        raise InputError(f"{where}: config: expected a mapping of scheduler settings")
    for key in config:
        if key not in _KINDS:
            hint = nearest(key, _KINDS)
            raise InputError(f"{where}: config.{key}: this trace uses a feature that is not modelled{hint}")
    for key, kinds in _KINDS.items():
        if key not in config:
            raise InputError(f"{where}: config.{key}: missing")
        value = config[key]
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise InputError(f"{where}: config.{key}: expected {kinds[0].__name__}, got {value!r}")
        least = _AT_LEAST.get(key, 0)
        if isinstance(value, int | float) and not isinstance(value, bool) and not value >= least:
            raise InputError(f"{where}: config.{key}: expected a value >= {least}, got {value!r}")
    if not config["watermark"] < 1:
        raise InputError(f"{where}: config.watermark: expected a value < 1, got {config['watermark']!r}")
    if config["num_gpu_blocks"] > _MAX_BLOCKS:
        raise InputError(f"{where}: config.num_gpu_blocks: expected at most {_MAX_BLOCKS}")
    known = [name for name, policy in POLICIES.items() if policy.in_vllm]
    if config["policy"] not in known:
        raise InputError(f"{where}: config.policy: expected {' or '.join(known)}, got {config['policy']!r}")
    return cast(SchedulerConfig, config)


def _duration(duration: Any, where: str) -> dict[str, int]:
    if not isinstance(duration, dict) or any(
        type(duration.get(key)) is not int or duration[key] < 0 for key in _DURATION
    ):
        raise InputError(f"{where}: duration: expected integers >= 0: {', '.join(_DURATION)}")
    return {key: duration[key] for key in _DURATION}


def _requests(header: Record, max_model_len: int, where: str) -> tuple[RecordedRequest, ...]:
    rows = header.get("requests")
    if not isinstance(rows, list) or not rows:
        raise InputError(f"{where}: requests: expected a list with at least one request")
    if header.get("n_requests", len(rows)) != len(rows):
        raise InputError(f"{where}: n_requests: expected {len(rows)}, the length of requests")
    found = []
    for index, row in enumerate(rows):
        try:
            request = RecordedRequest(
                id=_integer(row["id"]),
                at_ns=_integer(row["at"]),
                segments=tuple((_integer(seed), _integer(length)) for seed, length in row["segs"]),
                output_tokens=_integer(row["out"]),
                output_stream=_integer(row["os"]),
                priority=_integer(row.get("pr", 0)),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InputError(
                f"{where}: requests[{index}]: expected id, at, segs [[stream, length], ...], out, os; problem: {error}"
            ) from None
        _check_request(request, max_model_len, f"{where}: requests[{index}]")
        found.append(request)
    if len({request.id for request in found}) < len(found):
        raise InputError(f"{where}: requests: expected every id once")
    if any((a.at_ns, a.id) >= (b.at_ns, b.id) for a, b in pairwise(found)):
        raise InputError(f"{where}: requests: expected them sorted by (at, id)")
    return tuple(found)


def _check_request(request: RecordedRequest, max_model_len: int, where: str) -> None:
    if request.id < 0 or request.at_ns < 0:
        raise InputError(f"{where}: expected id and at >= 0")
    if any(length < 1 for _, length in request.segments) or not request.segments or request.output_tokens < 1:
        raise InputError(f"{where}: expected segments of at least one token and at least one output token")
    if request.prompt_tokens >= max_model_len:
        raise InputError(
            f"{where}: expected a prompt shorter than max_model_len ({max_model_len}), got {request.prompt_tokens}"
        )


def _text(header: Record, key: str, default: str, where: str) -> str:
    value = header.get(key, default)
    if not isinstance(value, str) or not value.isprintable():
        raise InputError(f"{where}: {key}: expected a text of one line")
    return value


def _integer(value: Any) -> int:
    if type(value) is not int:
        raise ValueError(f"expected an integer, got {value!r}")
    return value


def _check_record(record: Any, is_async: bool, where: str) -> None:
    if not isinstance(record, dict):
        raise InputError(f"{where}: expected a record (a JSON object)")
    if record.get("end"):
        raise InputError(f"{where}: the summary line must be the last one")
    if is_async and record.get("ev") not in ("s", "u"):
        raise InputError(f"{where}: ev: expected 's' or 'u' in a trace of asynchronous scheduling")
    needed = _SYNC_KEYS if not is_async else _SCHEDULE_KEYS if record["ev"] == "s" else _OUTPUT_KEYS
    _check_keys(record, needed, {"b"}, where)
    for key, value in record.items():
        if not _plain(value, _MAX_DEPTH):
            raise InputError(f"{where}: {key}: expected integers, short texts and lists of them")


def _check_keys(record: Record, needed: set[str], optional: set[str], where: str) -> None:
    missing = sorted(needed - record.keys())
    if missing:
        raise InputError(f"{where}: record lacks {', '.join(missing)}")
    unknown = sorted(record.keys() - needed - optional)
    if unknown:
        raise InputError(f"{where}: {unknown[0]}: this trace records something that is not modelled")


def _plain(value: Any, depth: int) -> bool:
    """Whether a value is made of integers and texts: 1.0 and true would pass for 1 in a comparison."""
    if type(value) is int or type(value) is str:
        return True
    if depth == 0:
        return False
    if type(value) is list:
        return all(_plain(item, depth - 1) for item in value)
    return type(value) is dict and all(_plain(item, depth - 1) for item in value.values())
