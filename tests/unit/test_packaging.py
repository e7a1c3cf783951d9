"""The built wheel works outside the clone: every module and data file is in it, and nothing reaches back."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SUFFIXES = {".py", ".yaml", ".csv", ".json", ".j2", ".css", ".typed"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built from the working tree, without the network."""
    out = tmp_path_factory.mktemp("wheel")
    pip("wheel", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", str(out), str(ROOT))
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel unpacked far from the clone; dependencies come from the running environment."""
    target = tmp_path_factory.mktemp("site")
    pip("install", "--no-deps", "--no-index", "--target", str(target), str(wheel))
    return target


def pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--quiet", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def python(installed: Path, cwd: Path, *arguments: str) -> str:
    """Standard output of Python with the installed wheel first on its path."""
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_wheel_holds_every_module_and_data_file(wheel: Path) -> None:
    packed = set(zipfile.ZipFile(wheel).namelist())
    sources = {
        path.relative_to(ROOT).as_posix()
        for package in ("simkit", "calib")
        for path in (ROOT / package).rglob("*")
        if path.suffix in SUFFIXES
    }
    assert {"simkit/py.typed", "simkit/data/models.yaml", "simkit/report/render/templates/runs.html.j2"} <= sources
    assert sources - packed == set()
    assert {name.split("/")[0] for name in packed if ".dist-info/" not in name} == {"simkit", "calib"}
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in packed)


def test_the_base_install_pulls_no_torch() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for requirements in (project["dependencies"], project["optional-dependencies"]["test"]):
        assert not [line for line in requirements if line.startswith(("torch", "triton", "nvidia", "simkit"))]
    assert project["name"] == "simkit-llm"
    assert project["scripts"] == {"simkit": "simkit.cli.app:main"}


def test_the_installed_wheel_is_the_one_that_is_imported(installed: Path, tmp_path: Path) -> None:
    where = python(installed, tmp_path, "-c", "import simkit; print(simkit.__file__)").strip()
    assert Path(where) == installed / "simkit" / "__init__.py"


def test_the_installed_wheel_lists_and_runs(installed: Path, tmp_path: Path) -> None:
    gpus = json.loads(python(installed, tmp_path, "-m", "simkit", "gpus", "--json"))
    assert len(gpus) >= 18
    (tmp_path / "mine.yaml").write_text(python(installed, tmp_path, "-m", "simkit", "init"), encoding="utf-8")
    sets = (
        "--set",
        "workload.num_requests=20",
        "--set",
        "workload.finite=true",
        "--set",
        "workload.prompt_tokens={dist: empirical, preset: azure-2023-conv}",
    )
    printed = python(
        installed,
        tmp_path,
        "-m",
        "simkit",
        "run",
        "mine.yaml",
        "--out",
        "run",
        "--json",
        "--quiet",
        "--no-headroom",
        *sets,
    )
    assert json.loads(printed)["num_requests"]["finished"] == 20
    assert (tmp_path / "run" / "report.html").stat().st_size > 10_000
