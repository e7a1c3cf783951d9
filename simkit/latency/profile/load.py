"""Profiles: the calibrated step times of one GPU as a JSON file. Owns the schema, loading and the list of shipped ones.

Reads shipped profiles as package data of `calib`, never its code.
"""

from __future__ import annotations

import functools
import hashlib
import json
from dataclasses import asdict
from importlib import resources
from pathlib import Path
from typing import Any

from simkit.errors import nearest
from simkit.latency.profile.read import Reader
from simkit.latency.profile.residuals import AXES, KEYS
from simkit.latency.profile.values import Profile, ProfileError


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
