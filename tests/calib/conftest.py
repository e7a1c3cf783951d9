"""Kernels run in Triton's interpreter in processes of their own: whether it is used is settled when triton is imported,
and the same kernels are compiled elsewhere in this suite."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]

Interpret = Callable[..., subprocess.CompletedProcess[str]]

VERIFY = """
import json, sys
from dataclasses import asdict
from calib.verify.verify import verify
print(json.dumps([asdict(check) for check in verify("cpu", kernels=sys.argv[1:])]))
"""


@pytest.fixture(scope="session")
def needs_triton() -> None:
    """Skips where the calibration extra is not installed; the rest of simkit does without."""
    missing = [name for name in ("torch", "triton") if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"{' and '.join(missing)} not installed: pip install 'simkit-llm[calibrate]'")


@pytest.fixture(scope="session")
def run_python(needs_triton: None, tmp_path_factory: pytest.TempPathFactory) -> Interpret:
    """Runs a script in a new process that finds `calib` under `root`, with kernels interpreted or not."""

    cache = tmp_path_factory.mktemp("triton")

    def run(
        script: str, *arguments: str, root: Path = ROOT, interpret: bool = True
    ) -> subprocess.CompletedProcess[str]:
        # One thread: the interpreter's arrays are too small to share among more, which only wait for each other.
        env = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        env["TRITON_CACHE_DIR"] = str(cache)
        env.pop("TRITON_INTERPRET", None)
        if interpret:
            env["TRITON_INTERPRET"] = "1"
        return subprocess.run(
            [sys.executable, "-c", script, *arguments], capture_output=True, text=True, cwd=root, env=env, check=False
        )

    return run


@pytest.fixture(scope="session")
def verify_kernel(run_python: Interpret) -> Callable[[str], list[dict[str, Any]]]:
    """The checks of `calib.verify.verify` of one kernel, interpreted."""

    def verified(kernel: str) -> list[dict[str, Any]]:
        done = run_python(VERIFY, kernel)
        assert done.returncode == 0, done.stderr
        checks: list[dict[str, Any]] = json.loads(done.stdout)
        return checks

    return verified
