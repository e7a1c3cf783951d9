"""Recorded scheduler decisions, read from a JSON-lines file (plain or gzip). Imports `errors` only.

Format 1: line 1 is the header (settings, workload, step-time formula), the last line a summary (``"end": true``), every
line between a record of one pass or, asynchronous, of one event. All times are integer nanoseconds.
"""

from __future__ import annotations

import gzip
import json
import zlib
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from simkit.errors import InputError, nearest

FORMAT = 1
_CONFIG: dict[str, tuple[type, ...]] = {
    "max_num_seqs": (int,),
    "max_num_batched_tokens": (int,),
    "max_model_len": (int,),
    "enable_chunked_prefill": (bool,),
    "policy": (str,),
    "long_prefill_token_threshold": (int,),
    "long_prefill_token_threshold_adaptive": (bool,),
    "scheduler_reserve_full_isl": (bool,),
    "watermark": (int, float),
    "prefill_schedule_interval": (int,),
    "max_num_active_seqs": (int, type(None)),
    "async_scheduling": (bool,),
    "enable_prefix_caching": (bool,),
    "block_size": (int,),
    "num_gpu_blocks": (int,),
}
_DURATION = ("base_ns", "per_token_ns", "per_context_token_ns")
_STEP_KEYS = {"i", "t", "a", "s", "n", "c", "p", "r", "w", "fs", "d"}
_SYNC_KEYS = _STEP_KEYS | {"f", "fu"}
_SCHEDULE_KEYS = _STEP_KEYS | {"ev", "g"}
_OUTPUT_KEYS = {"ev", "i", "t", "f", "fu"}


@dataclass(frozen=True, slots=True)
class TraceRequest:
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
class Trace:
    """A recorded case. `records` are the lines between header and summary, `lines` their line numbers."""

    path: str
    case: str
    source: str
    config: dict[str, Any]
    duration: dict[str, int]
    blocks_recorded: bool
    requests: tuple[TraceRequest, ...]
    records: tuple[dict[str, Any], ...]
    summary: dict[str, Any]


def find_traces(path: Path) -> list[Path]:
    """The file itself, or all ``*.jsonl`` and ``*.jsonl.gz`` of a directory by name. Raises InputError for none."""
    if not path.exists():
        raise InputError(f"{path}: no such file or directory")
    if not path.is_dir():
        return [path]
    found = sorted(p for p in path.iterdir() if p.name.endswith((".jsonl", ".jsonl.gz")))
    if not found:
        raise InputError(f"{path}: no *.jsonl or *.jsonl.gz file in this directory")
    return found


def read_trace(path: Path) -> Trace:
    """Read and check one file. Raises InputError with file and line for anything that is not a trace."""
    lines = _lines(path)
    header = lines[0]
    where = f"{path}:1"
    if not isinstance(header, dict) or "config" not in header:
        raise InputError(f"{where}: expected a header with case, format and config; this is not a scheduler trace")
    if header.get("format") != FORMAT:
        raise InputError(f"{where}: format: expected {FORMAT}, got {header.get('format')!r}")
    config = _config(header["config"], where)
    duration = _duration(header.get("duration"), where)
    requests = _requests(header, where)
    if len(lines) < 2 or not isinstance(lines[-1], dict) or lines[-1].get("end") is not True:
        raise InputError(f'{path}:{len(lines)}: expected a summary line ("end": true) at the end; the file is cut')
    for number, record in enumerate(lines[1:-1], start=2):
        _check_record(record, config["async_scheduling"], f"{path}:{number}")
    return Trace(
        path=str(path),
        case=str(header.get("case", path.name)),
        source=str(header.get("source", "unknown")),
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
            content = gzip.decompress(content)
        text = content.decode("utf-8")
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (EOFError, zlib.error):
        raise InputError(f"{path}: the gzip data is cut or damaged") from None
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


def _config(config: Any, where: str) -> dict[str, Any]:
    if not isinstance(config, dict):
        raise InputError(f"{where}: config: expected a mapping of scheduler settings")
    for key in config:
        if key not in _CONFIG:
            hint = nearest(key, _CONFIG)
            raise InputError(f"{where}: config.{key}: this trace uses a feature that is not modelled{hint}")
    for key, kinds in _CONFIG.items():
        if key not in config:
            raise InputError(f"{where}: config.{key}: missing")
        value = config[key]
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise InputError(f"{where}: config.{key}: expected {kinds[0].__name__}, got {value!r}")
        if isinstance(value, int | float) and not isinstance(value, bool) and value < 0:
            raise InputError(f"{where}: config.{key}: expected a value >= 0, got {value!r}")
    if config["policy"] not in ("fcfs", "priority"):
        raise InputError(f"{where}: config.policy: expected fcfs or priority, got {config['policy']!r}")
    for key, least in (("max_num_seqs", 1), ("block_size", 1), ("num_gpu_blocks", 2), ("prefill_schedule_interval", 1)):
        if config[key] < least:
            raise InputError(f"{where}: config.{key}: expected a value >= {least}, got {config[key]!r}")
    return config


def _duration(duration: Any, where: str) -> dict[str, int]:
    if not isinstance(duration, dict) or any(type(duration.get(key)) is not int for key in _DURATION):
        raise InputError(f"{where}: duration: expected integers {', '.join(_DURATION)}")
    return {key: duration[key] for key in _DURATION}


def _requests(header: dict[str, Any], where: str) -> tuple[TraceRequest, ...]:
    rows = header.get("requests")
    if not isinstance(rows, list) or not rows:
        raise InputError(f"{where}: requests: expected a list with at least one request")
    if header.get("n_requests", len(rows)) != len(rows):
        raise InputError(f"{where}: n_requests: expected {len(rows)}, the length of requests")
    found = []
    for index, row in enumerate(rows):
        try:
            request = TraceRequest(
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
        if request.prompt_tokens < 1 or request.output_tokens < 1:
            raise InputError(f"{where}: requests[{index}]: expected at least one prompt token and one output token")
        found.append(request)
    if any((a.at_ns, a.id) >= (b.at_ns, b.id) for a, b in pairwise(found)):
        raise InputError(f"{where}: requests: expected them sorted by (at, id)")
    return tuple(found)


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
    missing = sorted(needed - record.keys())
    if missing:
        raise InputError(f"{where}: record lacks {', '.join(missing)}")
    unknown = sorted(record.keys() - needed - {"b"})
    if unknown:
        raise InputError(f"{where}: {unknown[0]}: this trace records something that is not modelled")
