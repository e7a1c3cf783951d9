"""Profiles: the calibrated step times of one GPU as a JSON file. Owns where they are found and their schema.

The schema says which keys there are, and between which bounds every number lies. The bounds are far from anything a GPU
does; within them no price overflows, divides by zero or comes out as nothing. Shipped profiles are read as package data
of `calib`, never its code.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import re
from collections.abc import Mapping
from dataclasses import asdict
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from simkit.errors import nearest
from simkit.latency.physics import ELEMENT_BYTES, Limits, Physics, Skew, Varlen
from simkit.latency.profile.experts import EXPERT_FORMATS, ExpertFit, ExpertShape
from simkit.latency.profile.residuals import AXES, KEYS, GridKey, OpFit, ResidualGrid, from_nested, grid_keys
from simkit.latency.profile.values import SCHEMA, EngineHost, Host, HostTerms, Mixed, Profile, ProfileError


def load_profile(name_or_path: str) -> Profile:
    """The shipped profile of that name, else a profile file. Raises ProfileError, naming file and key."""
    if is_shipped(name_or_path):
        return _load_shipped(name_or_path.strip().lower())
    return parse_profile(profile_text(name_or_path), str(Path(name_or_path).expanduser()))


def profile_text(name_or_path: str) -> str:
    """The JSON of what `load_profile` loads. Raises ProfileError where there is no such file."""
    if is_shipped(name_or_path):
        return _shipped_text(name_or_path.strip().lower())
    path = Path(name_or_path).expanduser()
    if path.suffix != ".json" and "/" not in name_or_path and not path.exists():
        names = ["auto", "roofline", "unit", *_shipped()]
        raise ProfileError(
            f"{name_or_path!r} is not available; expected {', '.join(names)}, or a path to a profile"
            f"{nearest(name_or_path, names)} (list: simkit profiles)",
            key="latency.profile",
        )
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ProfileError(f"{path}: {(error.strerror or str(error)).lower()}", key="latency.profile") from None
    except UnicodeDecodeError:
        raise ProfileError(f"{path}: not a text file", key="latency.profile") from None


def is_shipped(name: str) -> bool:
    """Whether a profile of that name (any case) ships."""
    return name.strip().lower() in _shipped()


def list_profiles() -> list[Profile]:
    """All shipped profiles, sorted by name."""
    return [_load_shipped(name) for name in _shipped()]


def _shipped() -> tuple[str, ...]:
    folder = resources.files("calib").joinpath("profiles")
    return tuple(sorted(item.name[: -len(".json")] for item in folder.iterdir() if item.name.endswith(".json")))


@functools.cache
def _load_shipped(name: str) -> Profile:
    return parse_profile(_shipped_text(name), f"{name}.json")


def _shipped_text(name: str) -> str:
    return resources.files("calib").joinpath(f"profiles/{name}.json").read_text(encoding="utf-8")


def describe(profile: Profile) -> dict[str, object]:
    """What a profile covers and how well, as plain data: `valid` has the smallest and largest measured size an axis."""
    ops = []
    for (op, dtype), fit in profile.ops.items():
        keys, axes = list(fit.grids), [grid.axes for grid in fit.grids.values()]
        sizes = {name: [float(key[i]) for key in keys] for i, name in enumerate(KEYS.get(op, ()))}
        sizes |= {name: [float(end) for axis in axes for end in axis[i][[0, -1]]] for i, name in enumerate(AXES[op])}
        valid = {name: [min(values), max(values)] for name, values in sizes.items()}
        ops.append({"op": op, "dtype": dtype, "valid": valid, "report": profile.report[op, dtype]})
    for dtype, experts in profile.experts.items():
        columns = zip(ExpertShape._fields, zip(*experts.shapes, strict=True), strict=True)
        valid = {"m": [float(end) for end in experts.tokens[[0, -1]]]}
        valid |= {name: [float(min(sizes)), float(max(sizes))] for name, sizes in columns}
        ops.append({"op": "moe", "dtype": dtype, "valid": valid, "report": profile.report["moe", dtype]})
    return {
        "name": profile.name,
        "gpu": profile.gpu.get("name"),
        "provenance": dict(profile.provenance),
        "ops": ops,
        "launches": dict(profile.launches),
        "host": None
        if profile.host is None
        else {"fixed_us": profile.host.fixed_us, "per_seq_us": profile.host.per_seq_us},
        "engine_hosts": {
            version: asdict(host.terms) | {"provenance": dict(host.provenance)}
            for version, host in profile.engine_hosts.items()
        },
    }


LATER_TERMS = ("per_request_us", "gap_us", "tp_us")
"""Host terms that a profile may leave out: they are 0 then."""


def _once(pairs: list[tuple[str, Any]], where: str) -> dict[str, object]:
    """A mapping of a profile. ProfileError where a key is there twice: JSON would keep the last in silence."""
    found: dict[str, object] = {}
    for key, value in pairs:
        if key in found:
            raise ProfileError(f"{where}: {key!a:.60}: expected this key once, got it twice", key="latency.profile")
        found[key] = value
    return found


def parse_profile(text: str, where: str) -> Profile:
    """A profile from its JSON. Raises ProfileError with `where`, the key and what was expected."""
    try:
        data = json.loads(text, object_pairs_hook=lambda pairs: _once(pairs, where))
    except json.JSONDecodeError as error:
        raise ProfileError(f"{where}:{error.lineno}: not JSON: {error.msg.lower()}", key="latency.profile") from None
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, lists without end
        raise ProfileError(f"{where}: not a profile: {type(error).__name__}", key="latency.profile") from None
    return Reader(where).profile(data, hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest())


# --- schema
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
"""What a profile may be called: it becomes the name of a file and a word in a line."""

VERSION = re.compile(r"(0|[1-9][0-9]{0,3})\.(0|[1-9][0-9]{0,3})")
"""A version of vLLM as scenarios name it: 0.010 would be a second name of 0.10."""

LARGEST_SIZE = 1e13
MAX_EXPERT_SIZE = 1_000_000

_SHARE, _US, _COUNT = (1e-3, 20.0), (0.0, 1e6), (1.0, 1e5)
_BOUNDS: dict[str, tuple[float, float]] = {
    "compute_fraction": _SHARE,
    "bandwidth_fraction": _SHARE,
    "sharpness": (1.0, 100.0),
    "flops_per_s": (1e6, 1e18),
    "bytes_per_s": (1e3, 1e16),
    "slots": _COUNT,
    "bytes_per_us": (1e-3, 1e10),
    "l2_to_mb": (1e-3, 1e6),
    "num_heads": _COUNT,
    "num_kv_heads": _COUNT,
    "head_dim": _COUNT,
    "aligned": (0.0, 1.0),
}
"""Smallest and largest value of a field; of the others 0 and 1e6."""


class Reader:
    """Checked access to the keys of one file. Every method raises ProfileError with the file and the key."""

    def __init__(self, where: str) -> None:
        self._where = where

    def profile(self, data: Any, content: str) -> Profile:
        """The whole file; `content` is its hash."""
        if not isinstance(data, dict) or "schema" not in data:
            raise self._error("schema", "missing; this is not a profile")
        schema = data["schema"]
        if type(schema) is not int or schema != SCHEMA:
            newer = type(schema) is int and schema > SCHEMA
            advice = "it is of a newer version: upgrade simkit" if newer else "calibrate again"
            raise self._error("schema", f"expected {SCHEMA}, got {schema!r:.40}; {advice}")
        name = self._get(data, "name", str)
        if not NAME.fullmatch(name):
            raise self._error("name", f"expected letters, digits, dots, dashes and underscores, got {name!a:.60}")
        ops: dict[tuple[str, str], OpFit] = {}
        reports: dict[tuple[str, str], Mapping[str, object]] = {}
        for index, row in enumerate(self._get(data, "ops", list)):
            fit = self._op(f"ops[{index}]", row)
            if (fit.op, fit.dtype) in ops:
                raise self._error(f"ops[{index}]", f"{fit.op} {fit.dtype} is there twice")
            ops[fit.op, fit.dtype] = fit
            reports[fit.op, fit.dtype] = self._get({"report": {}} | row, f"ops[{index}].report", dict)
        experts: dict[str, ExpertFit] = {}
        for index, row in enumerate(self._get({"experts": []} | data, "experts", list)):
            found = self._experts(f"experts[{index}]", row)
            if found.dtype in experts:
                raise self._error(f"experts[{index}]", f"{found.dtype} is there twice")
            experts[found.dtype] = found
            reports["moe", found.dtype] = self._get({"report": {}} | row, f"experts[{index}].report", dict)
        skew, host = data.get("skew"), data.get("host")
        return Profile(
            name=name,
            gpu=self._get(data, "gpu", dict),
            provenance=self._get(data, "provenance", dict),
            ops=ops,
            report=reports,
            launches={"mixed": data.get("mixed"), "skew": skew},
            mixed=self._mixed(self._get(data, "mixed", dict)),
            skew=None if skew is None else self._skew(skew),
            host=None if host is None else Host(*self._numbers(host, "host", ("fixed_us", "per_seq_us"))),
            engine_hosts=self._engine_hosts(self._get({"engine_hosts": []} | data, "engine_hosts", list)),
            content=content,
            experts=experts,
        )

    def _engine_hosts(self, rows: list[Any]) -> dict[str, EngineHost]:
        found: dict[str, EngineHost] = {}
        for index, row in enumerate(rows):
            key = f"engine_hosts[{index}]"
            version = self._get(row, f"{key}.version", str)
            if not VERSION.fullmatch(version):
                raise self._error(f"{key}.version", f"expected a version of vLLM such as 0.19, got {version!a:.40}")
            if version in found:
                raise self._error(f"{key}.version", f"{version} is there twice")
            later = tuple(name for name in LATER_TERMS if name in row)
            further = dict(zip(later, self._numbers(row, key, later), strict=True))
            terms = HostTerms(*self._numbers(row, key, ("fixed_us", "per_seq_us", "first_token_us")), **further)
            found[version] = EngineHost(terms, self._get(row, f"{key}.provenance", dict))
        return found

    def _mixed(self, row: Any) -> Mixed:
        rule, constants = self._get(row, "mixed.rule", str), self._get(row, "mixed.constants", dict)
        if rule not in ("sum", "varlen"):
            raise self._error("mixed.rule", f"expected sum or varlen, got {rule!r:.40}")
        varlen, floor_us = None, 0.0
        if rule == "sum":
            floor_us = self._number(constants, "mixed.constants.floor_us")
        else:
            varlen = Varlen(*self._numbers(constants, "mixed.constants", tuple(Varlen.__dataclass_fields__)))
            if varlen.l2_to_mb <= varlen.l2_from_mb:
                raise self._error("mixed.constants.l2_to_mb", f"expected more than l2_from_mb, got {varlen.l2_to_mb:g}")
        if row.get("measured") is not True:
            return Mixed(varlen, floor_us, False)
        sizes = self._get(row, "mixed.largest", dict)
        largest = tuple(self._size(sizes, f"mixed.largest.{name}") for name in ("q_len", "kv_len", "seqs", "longest"))
        return Mixed(varlen, floor_us, True, self._heads(row, "mixed.heads"), largest)

    def _skew(self, row: Any) -> Skew:
        rate, least = self._numbers(row, "skew", ("us_per_token", "min_sequence_heads"))
        return Skew(rate, least, self._heads(row, "skew.heads") if row.get("measured") is True else frozenset())

    def _heads(self, row: Any, key: str) -> frozenset[tuple[int, ...]]:
        found = self._get(row, key, list)
        if not all(
            isinstance(heads, list) and len(heads) == 3 and all(type(n) is int for n in heads) for heads in found
        ):
            raise self._error(key, "expected lists of num_heads, num_kv_heads, head_dim")
        return frozenset(tuple(heads) for heads in found)

    def _op(self, key: str, row: Any) -> OpFit:
        if not isinstance(row, dict):
            raise self._error(key, "expected a mapping")
        op, dtype = self._get(row, f"{key}.op", str), self._get(row, f"{key}.dtype", str)
        if op not in AXES or dtype not in ELEMENT_BYTES:
            known = AXES if op not in AXES else ELEMENT_BYTES
            raise self._error(key, f"unknown {op!r:.40} in {dtype!r:.40}; expected one of {', '.join(known)}")
        physics, limits = self._get(row, f"{key}.physics", dict), self._get(row, f"{key}.limits", dict)
        grids: dict[GridKey, ResidualGrid] = {}
        for index, grid in enumerate(self._get(row, f"{key}.sheets", list)):
            name, found = self._grid(f"{key}.sheets[{index}]", grid, op, dtype)
            if name in grids:
                raise self._error(f"{key}.sheets[{index}]", f"a second sheet of {name}")
            grids[name] = found
        if not grids:
            raise self._error(f"{key}.sheets", "expected at least one sheet")
        return OpFit(
            op=op,
            dtype=dtype,
            physics=Physics(*self._numbers(physics, f"{key}.physics", tuple(Physics.__dataclass_fields__))),
            limits=Limits(*self._numbers(limits, f"{key}.limits", tuple(Limits.__dataclass_fields__))),
            grids=grids,
        )

    def _experts(self, key: str, row: Any) -> ExpertFit:
        dtype = self._get(row, f"{key}.dtype", str)
        if dtype not in EXPERT_FORMATS:
            raise self._error(f"{key}.dtype", f"unknown {dtype!r:.40}; expected one of {', '.join(EXPERT_FORMATS)}")
        physics, limits = self._get(row, f"{key}.physics", dict), self._get(row, f"{key}.limits", dict)
        tokens, spreads = self._axis(row, f"{key}.m"), self._axis(row, f"{key}.spreads")
        if tokens[0] < 1:
            raise self._error(f"{key}.m", "expected numbers of tokens from 1 on")
        shapes = self._get(row, f"{key}.shapes", list)
        for place, shape in enumerate(shapes):
            good = isinstance(shape, list) and len(shape) == len(ExpertShape._fields)
            if not good or not all(type(size) is int and 1 <= size <= MAX_EXPERT_SIZE for size in shape):
                raise self._error(f"{key}.shapes[{place}]", f"expected {', '.join(ExpertShape._fields)}")
        try:
            size = [len(shapes), len(spreads), len(tokens)]
            residuals = from_nested(row.get("log_residual_per_mille"), size)
        except ValueError as error:
            raise self._error(f"{key}.log_residual_per_mille", str(error)) from None
        if not shapes or np.isnan(residuals).any():
            raise self._error(f"{key}.log_residual_per_mille", "expected a number for every shape, spread and m")
        return ExpertFit(
            dtype=dtype,
            physics=Physics(*self._numbers(physics, f"{key}.physics", tuple(Physics.__dataclass_fields__))),
            limits=Limits(*self._numbers(limits, f"{key}.limits", tuple(Limits.__dataclass_fields__))),
            shapes=tuple(ExpertShape(*shape) for shape in shapes),
            spreads=np.array(spreads),
            tokens=np.array(tokens),
            residuals=residuals,
        )

    def _grid(self, key: str, row: Any, op: str, dtype: str) -> tuple[GridKey, ResidualGrid]:
        if not isinstance(row, dict):
            raise self._error(key, "expected a mapping")
        axes = self._get(row, f"{key}.axes", dict)
        sizes = [self._axis(axes, f"{key}.axes.{name}") for name in AXES[op]]
        try:
            residuals = from_nested(row.get("log_residual_per_mille"), [len(values) for values in sizes])
        except ValueError as error:
            raise self._error(f"{key}.log_residual_per_mille", str(error)) from None
        keys = []
        for name in grid_keys(op, dtype):
            number = self._number(row, f"{key}.{name}")
            if number != int(number):
                raise self._error(f"{key}.{name}", f"expected a whole number, got {number:g}")
            keys.append(int(number))
        if len(keys) > 1 and keys[1] > keys[0]:
            raise self._error(f"{key}.num_kv_heads", f"expected at most the {keys[0]} heads, got {keys[1]}")
        return tuple(keys), ResidualGrid(sizes, residuals)

    def _axis(self, axes: Any, key: str) -> list[float]:
        values = self._get(axes, key, list)
        good = all(type(v) in (int, float) and 0 <= v <= LARGEST_SIZE for v in values)
        if not values or not good or not all(a < b for a, b in itertools.pairwise(values)):
            raise self._error(key, f"expected increasing numbers from 0 to {LARGEST_SIZE:g}")
        return [float(value) for value in values]

    def _get(self, row: Any, key: str, kind: type) -> Any:
        value = row.get(key.rpartition(".")[2]) if isinstance(row, dict) else None
        if not isinstance(value, kind):
            raise self._error(key, f"expected {_KINDS[kind]}" + ("" if value is None else f", got {value!r:.40}"))
        return value

    def _number(self, row: Any, key: str) -> float:
        name = key.rpartition(".")[2]
        return self._between(row, key, *_BOUNDS.get(name, _US))

    def _size(self, row: Any, key: str) -> float:
        return self._between(row, key, 0.0, LARGEST_SIZE)

    def _between(self, row: Any, key: str, low: float, high: float) -> float:
        value = row.get(key.rpartition(".")[2]) if isinstance(row, dict) else None
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise self._error(key, "expected a number" + ("" if value is None else f", got {value!r:.40}"))
        if not low <= value <= high:
            raise self._error(key, f"expected a number from {low:g} to {high:g}, got {value!r:.40}")
        return float(value)

    def _numbers(self, row: Any, key: str, names: tuple[str, ...]) -> list[float]:
        """Fields in this order."""
        return [self._number(row, f"{key}.{name}") for name in names]

    def _error(self, key: str, what: str) -> ProfileError:
        return ProfileError(f"{self._where}: {key}: {what}", key="latency.profile")


_KINDS: dict[Any, str] = {str: "text", dict: "a mapping", list: "a list"}
