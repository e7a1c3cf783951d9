"""The identity of a run.

Nothing here knows the time, the host, the command line or the output options, so the same inputs give the same bytes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from simkit.plain import Json, canonical_json, optional
from simkit.version import __version__

CREATED_BY = f"simkit {__version__}"


def run_id(scenario: Json, profile_hash: str, seed: int, version: str = __version__) -> str:
    """SHA-256 (hex) over scenario, profile, seed and simkit's version.

    `scenario` is the resolved one, every default written out, so a changed default changes the id.
    """
    content = {"scenario": scenario, "profile": profile_hash, "seed": seed, "version": version}
    return hashlib.sha256(canonical_json(content)).hexdigest()


@dataclass(frozen=True, slots=True)
class ProfileId:
    """The source of step times, and the hash of its content."""

    name: str
    hash: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What ``manifest.json`` holds, in its order.

    `scenario` is the resolved one; `model` and `gpu` are written field by field. `latency_effects` says where each
    effect of the latency comes from. `log_sha256` identifies the log that was replayed, if any.
    """

    run_id: str
    name: str
    version: str = __version__
    scenario: Json
    seed: int
    replications: int
    model: object
    gpu: object
    memory: Json
    latency_source: str
    latency_effects: Mapping[str, str]
    profile: ProfileId
    not_simulated: Sequence[str]
    without_effect: Sequence[str]
    notes: Sequence[str]
    warmup: Json
    created_by: str = CREATED_BY
    log_sha256: str | None = optional()


@dataclass(frozen=True, slots=True)
class RunLength:
    """What the manifest says of a length that is not the one that was asked for, or did not suffice."""

    asked_requests: int | None
    asked_duration_s: float | None
    still_rising: str | None
    text: str


def is_run_dir(path: Path) -> bool:
    """Whether simkit wrote this directory: its ``manifest.json`` says so."""
    try:
        manifest = json.loads((path / "manifest.json").read_bytes())
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(manifest, dict) and str(manifest.get("created_by", "")).startswith("simkit ")
