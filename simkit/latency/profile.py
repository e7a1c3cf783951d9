"""Profiles: the calibrated step times of one GPU as a JSON file. Owns the schema, loading and the list of shipped ones.

Imports its siblings, `simkit.hardware`, `simkit.errors` and numpy; reads shipped profiles as package data of `calib`,
never its code. What `calib` may use of simkit goes through this module.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from simkit.errors import InputError, nearest
from simkit.latency.launches import ARRAYS, SCALARS, Heads, Skew, Varlen, added, launch_us, skewed
from simkit.latency.op_fit import AXES, EXTRA, HEADS, KEYS, OpFit, Prediction, SheetKey, sheet_key_sizes, sheet_keys
from simkit.latency.physics import ELEMENT_BYTES, MEMORY_BOUND_OPS, Limits, Physics, Sizes, Work, work_of
from simkit.latency.sheets import Sheet, between_neighbours, carry_on, from_nested, log_sizes, to_nested

__all__ = [
    "ARRAYS", "AXES", "ELEMENT_BYTES", "EXTRA", "HEADS", "KEYS", "MEMORY_BOUND_OPS", "SCALARS", "SCHEMA",
    "Heads", "Host", "Limits", "Mixed", "OpFit", "Physics", "Prediction", "Profile", "ProfileError", "Sheet",
    "Sizes", "Skew", "Varlen", "Work", "added", "between_neighbours", "carry_on", "describe", "is_shipped",
    "launch_us", "list_profiles", "load_profile", "log_sizes", "parse_profile", "sheet_key_sizes", "sheet_keys",
    "skewed", "to_nested", "work_of",
]  # fmt: skip

SCHEMA = 1


class ProfileError(InputError):
    """A profile or kernel table that cannot be used: where, and what was expected."""


@dataclass(frozen=True, slots=True)
class Host:
    """Work of the host for one step, in microseconds: fixed, and for each running sequence."""

    fixed_us: float
    per_seq_us: float


@dataclass(frozen=True, slots=True)
class Mixed:
    """How a launch of a chunk beside decodes is priced: by `varlen`, else as the sum of its parts less one floor."""

    varlen: Varlen | None
    floor_us: float
    measured: bool


@dataclass(frozen=True, slots=True)
class Profile:
    """A parsed profile. `gpu` has the limits it was fitted with, `provenance` who measured what, `report` the errors of
    each op, `launches` those of launches of unlike sequences. `content` is the hash of the file."""

    name: str
    gpu: Mapping[str, Any]
    provenance: Mapping[str, Any]
    ops: Mapping[tuple[str, str], OpFit]
    report: Mapping[tuple[str, str], Mapping[str, Any]]
    launches: Mapping[str, Any]
    mixed: Mixed
    skew: Skew | None
    host: Host | None
    content: str

    def op(self, op: str, dtype: str) -> OpFit | None:
        """The fit of `op` on `dtype` operands; None when it was not measured."""
        return self.ops.get((op, dtype))


def load_profile(name_or_path: str) -> Profile:
    """The shipped profile of that name, else a profile file. Raises ProfileError, naming file and key."""
    shipped = _shipped()
    if name_or_path.lower() in shipped:
        return _load_shipped(name_or_path.lower())
    path = Path(name_or_path).expanduser()
    if path.suffix != ".json" and "/" not in name_or_path and not path.exists():
        names = ["auto", "roofline", "unit", *shipped]
        raise ProfileError(
            f"latency.profile: {name_or_path!r} is not available; expected {', '.join(names)}, or a path to a profile"
            f"{nearest(name_or_path, names)} (list: simkit profiles)"
        )
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ProfileError(f"latency.profile: {path}: {(error.strerror or str(error)).lower()}") from None
    except UnicodeDecodeError:
        raise ProfileError(f"latency.profile: {path}: not a text file") from None
    return parse_profile(text, str(path))


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
    text = resources.files("calib").joinpath(f"profiles/{name}.json").read_text(encoding="utf-8")
    return parse_profile(text, f"{name}.json")


def describe(profile: Profile) -> dict[str, Any]:
    """What a profile covers and how well, as plain data: `valid` has the smallest and largest measured size an axis."""
    ops = []
    for (op, dtype), fit in profile.ops.items():
        keys, axes = list(fit.sheets), [sheet.axes for sheet in fit.sheets.values()]
        sizes = {name: [float(key[i]) for key in keys] for i, name in enumerate(KEYS.get(op, ()))}
        sizes |= {name: [float(end) for axis in axes for end in axis[i][[0, -1]]] for i, name in enumerate(AXES[op])}
        valid = {name: [min(values), max(values)] for name, values in sizes.items()}
        ops.append({"op": op, "dtype": dtype, "valid": valid, "report": profile.report[op, dtype]})
    return {
        "name": profile.name,
        "gpu": profile.gpu.get("name"),
        "provenance": dict(profile.provenance),
        "ops": ops,
        "launches": dict(profile.launches),
        "host": None
        if profile.host is None
        else {"fixed_us": profile.host.fixed_us, "per_seq_us": profile.host.per_seq_us},
    }


def parse_profile(text: str, where: str) -> Profile:
    """A profile from its JSON. Raises ProfileError with `where`, the key and what was expected."""
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise ProfileError(f"latency.profile: {where}:{error.lineno}: not JSON: {error.msg.lower()}") from None
    return _Reader(where).profile(data, hashlib.sha256(text.encode()).hexdigest())


class _Reader:
    """Checked access to the keys of one file."""

    def __init__(self, where: str) -> None:
        self._where = where

    def profile(self, data: Any, content: str) -> Profile:
        if not isinstance(data, dict) or "schema" not in data:
            raise self._error("schema", "missing; this is not a profile")
        if data["schema"] != SCHEMA:
            newer = isinstance(data["schema"], int) and data["schema"] > SCHEMA
            advice = "it is of a newer version: upgrade simkit" if newer else "calibrate again"
            raise self._error("schema", f"expected {SCHEMA}, got {data['schema']!r}; {advice}")
        gpu = self._get(data, "gpu", dict)
        ops = [self._op(f"ops[{index}]", row) for index, row in enumerate(self._get(data, "ops", list))]
        skew, host = data.get("skew"), data.get("host")
        return Profile(
            name=self._get(data, "name", str),
            gpu=gpu,
            provenance=self._get(data, "provenance", dict),
            ops={(fit.op, fit.dtype): fit for fit, _ in ops},
            report={(fit.op, fit.dtype): report for fit, report in ops},
            launches={"mixed": data.get("mixed"), "skew": skew},
            mixed=self._mixed(self._get(data, "mixed", dict)),
            skew=None if skew is None else Skew(*self._numbers(skew, "skew", Skew)),
            host=None if host is None else Host(*self._numbers(host, "host", Host)),
            content=content,
        )

    def _mixed(self, row: Any) -> Mixed:
        rule, constants = self._get(row, "mixed.rule", str), self._get(row, "mixed.constants", dict)
        measured = row.get("measured") is True
        if rule == "sum":
            return Mixed(None, self._number(constants, "mixed.constants.floor_us"), measured)
        if rule != "varlen":
            raise self._error("mixed.rule", f"expected sum or varlen, got {rule!r}")
        return Mixed(Varlen(*self._numbers(constants, "mixed.constants", Varlen)), 0.0, measured)

    def _op(self, key: str, row: Any) -> tuple[OpFit, Mapping[str, Any]]:
        if not isinstance(row, dict):
            raise self._error(key, "expected a mapping")
        op, dtype = self._get(row, f"{key}.op", str), self._get(row, f"{key}.dtype", str)
        if op not in AXES or dtype not in ELEMENT_BYTES:
            known = AXES if op not in AXES else ELEMENT_BYTES
            raise self._error(key, f"unknown {op!r} in {dtype!r}; expected one of {', '.join(known)}")
        physics = self._get(row, f"{key}.physics", dict)
        limits = self._get(row, f"{key}.limits", dict)
        axes = self._get(row, f"{key}.axes", dict)
        return (
            OpFit(
                op=op,
                dtype=dtype,
                physics=Physics(*self._numbers(physics, f"{key}.physics", Physics)),
                limits=Limits(*self._numbers(limits, f"{key}.limits", Limits)),
                sheets=dict(self._sheet(f"{key}.sheets[{i}]", sheet, op, dtype, axes)
                            for i, sheet in enumerate(self._get(row, f"{key}.sheets", list))),
            ),
            row.get("report", {}),
        )  # fmt: skip

    def _sheet(self, key: str, row: Any, op: str, dtype: str, axes: Any) -> tuple[SheetKey, Sheet]:
        if not isinstance(row, dict):
            raise self._error(key, "expected a mapping")
        grid = []
        for name in AXES[op]:
            values = row.get("axes", axes).get(name, axes.get(name))
            if not _increasing(values):
                raise self._error(f"{key}.axes.{name}", "expected increasing numbers >= 0")
            grid.append(values)
        try:
            residuals = from_nested(row.get("log_residual_per_mille"), [len(values) for values in grid])
        except ValueError as error:
            raise self._error(f"{key}.log_residual_per_mille", str(error)) from None
        keys = tuple(int(self._number(row, f"{key}.{name}")) for name in sheet_keys(op, dtype))
        return keys, Sheet(grid, residuals)

    def _get(self, row: Any, key: str, kind: type) -> Any:
        value = row.get(key.rpartition(".")[2]) if isinstance(row, dict) else None
        if not isinstance(value, kind):
            raise self._error(key, f"expected {_KINDS[kind]}" + ("" if value is None else f", got {value!r:.40}"))
        return value

    def _number(self, row: Any, key: str) -> float:
        value = self._get(row, key, int | float)  # type: ignore[arg-type]
        if isinstance(value, bool) or not 0 <= value < float("inf"):
            raise self._error(key, f"expected a number >= 0, got {value!r}")
        return float(value)

    def _numbers(self, row: Any, key: str, kind: Any) -> list[float]:
        """The fields of a dataclass, in their order."""
        return [self._number(row, f"{key}.{name}") for name in kind.__dataclass_fields__]

    def _error(self, key: str, what: str) -> ProfileError:
        return ProfileError(f"latency.profile: {self._where}: {key}: {what}")


_KINDS: dict[Any, str] = {str: "text", dict: "a mapping", list: "a list", int | float: "a number"}


def _increasing(values: Any) -> bool:
    if not isinstance(values, list) or not values or not all(isinstance(v, int | float) and v >= 0 for v in values):
        return False
    return all(a < b for a, b in itertools.pairwise(values))
