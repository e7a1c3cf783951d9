"""The identity of a run.

Nothing here knows the time, the host, the command line or the output options, so the same inputs give the same bytes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from simkit import __version__
from simkit.plain import canonical_json, plain

CREATED_BY = f"simkit {__version__}"


def run_id(scenario: Mapping[str, Any], profile_hash: str, seed: int, version: str = __version__) -> str:
    """SHA-256 (hex) over scenario, profile, seed and simkit's version.

    `scenario` is the resolved one, every default written out, so a changed default changes the id.
    """
    content = {"scenario": scenario, "profile": profile_hash, "seed": seed, "version": version}
    return hashlib.sha256(canonical_json(content)).hexdigest()


def build_manifest(
    *,
    scenario: Mapping[str, Any],
    model: Any,
    gpu: Any,
    memory: Any,
    latency_source: str,
    effects: Mapping[str, str],
    profile: str,
    profile_hash: str,
    not_simulated: Sequence[str] = (),
    without_effect: Sequence[str] = (),
    notes: Sequence[str] = (),
    warmup: Mapping[str, Any] | None = None,
    log_sha256: str | None = None,
) -> dict[str, Any]:
    """The content of ``manifest.json``.

    `scenario` is the resolved scenario's `to_dict()`; `model`, `gpu` and `memory` are dataclasses or mappings and are
    written field by field; `effects` says where each effect of the latency comes from; `profile` names the source of
    step times and `profile_hash` identifies its content, as `log_sha256` does that of the log that was replayed;
    without one there is no such key.
    """
    seed = scenario["seed"]
    manifest = {
        "run_id": run_id(scenario, profile_hash, seed),
        "name": scenario["name"],
        "version": __version__,
        "scenario": scenario,
        "seed": seed,
        "replications": scenario["replications"],
        "model": model,
        "gpu": gpu,
        "memory": memory,
        "latency_source": latency_source,
        "latency_effects": effects,
        "profile": {"name": profile, "hash": profile_hash},
        "not_simulated": list(not_simulated),
        "without_effect": list(without_effect),
        "notes": list(notes),
        "warmup": warmup,
        "created_by": CREATED_BY,
    }
    if log_sha256 is not None:
        manifest["log_sha256"] = log_sha256
    result: dict[str, Any] = plain(manifest)
    return result


def is_run_dir(path: Path) -> bool:
    """Whether simkit wrote this directory: its ``manifest.json`` says so."""
    try:
        manifest = json.loads((path / "manifest.json").read_bytes())
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(manifest, dict) and str(manifest.get("created_by", "")).startswith("simkit ")
