"""The README does what it says: its commands run, its output is what they print, its map shows what is there."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from simkit.cli import app

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")

MAX_REQUESTS = 60
"""Customers that the commands are run with here, unless they have fewer; in full they take up to half a minute."""

FEW = f"--no-headroom --set workload.num_requests={MAX_REQUESTS} --set workload.finite=true"
"""Options of `simkit run` by which it serves that many and no more."""

TOLERANCE = 0.02
"""Of the numbers printed in the README: another processor may round a logarithm otherwise, no more than that."""


def fenced(language: str) -> list[str]:
    """The contents of all fenced blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", README, flags=re.MULTILINE | re.DOTALL)


def marked(name: str) -> str:
    """The fenced block after the comment <!-- name -->."""
    found = re.findall(rf"^<!-- {name} -->\n```\w+\n(.*?)^```$", README, flags=re.MULTILINE | re.DOTALL)
    assert len(found) == 1, f"one block marked {name}"
    return str(found[0]).strip("\n")


def section(title: str) -> str:
    """The text under a second-level heading."""
    return README.split(f"\n## {title}\n")[1].split("\n## ")[0]


COMMANDS = [line for block in fenced("sh") for line in block.splitlines() if line.startswith("simkit ")]


def shell(command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a line of the README; `simkit` is this interpreter's."""
    script = f'simkit() {{ "{sys.executable}" -m simkit "$@"; }}; {command}'
    environment = {**os.environ, "COLUMNS": "100"}
    done = subprocess.run(
        ["bash", "-euc", script], cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stderr}"
    return done


def simkit(command: str, cwd: Path) -> Any:
    """Run a line of the README that needs no shell in this process; a new one takes longer than the command."""
    with contextlib.chdir(cwd):
        done = CliRunner().invoke(app.app, shlex.split(command)[1:], env={"COLUMNS": "100"})
    assert done.exit_code == 0, f"{command}\n{done.stderr}"
    return done


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory as a reader has it: the scenarios, and what `simkit init` and `simkit trace fit` wrote."""
    directory = tmp_path_factory.mktemp("readme")
    shutil.copytree(ROOT / "scenarios", directory / "scenarios")
    (directory / "tests").mkdir()
    for name in ("golden", "data"):
        (directory / "tests" / name).symlink_to(ROOT / "tests" / name)
    (init,) = (line for line in COMMANDS if line.startswith("simkit init"))
    shell(init, directory)
    (fit,) = (line for line in COMMANDS if line.startswith("simkit trace fit"))
    simkit(fit, directory)
    simkit(f"simkit run scenarios/llama3-8b-a100.yaml --no-report {FEW}", directory)
    return directory


def test_every_command_is_mentioned(home: Path) -> None:
    listed = shell("simkit --help", home).stdout.split("Commands:")[1]
    commands = re.findall(r"^ {2}([a-z]+) ", listed, flags=re.MULTILINE)
    assert {"run", "compare", "init", "models", "gpus"} <= set(commands)
    assert [name for name in commands if f"simkit {name}" not in README] == []


@pytest.mark.parametrize("command", COMMANDS)
def test_the_command_runs(command: str, home: Path) -> None:
    extra = ""
    own_size = "eight-requests" in command or "--workload" in command
    if command.startswith(("simkit compare", "simkit sweep")) and not own_size:
        extra += f" --set workload.num_requests={MAX_REQUESTS}"
    if "simkit run" in command:
        extra += " --no-headroom" if own_size else f" {FEW}"
    if command.startswith("simkit plan"):
        extra += " --set workload.num_requests=120 --axis engine.max_num_seqs=32 --no-report"
    if command.startswith(("simkit compare", "simkit run", "simkit replay", "simkit validate")):
        extra += " --no-report"
    if command.startswith(("simkit validate scenarios", "simkit calibrate --from-run")):
        extra += " --max-requests 50"
    run = shell if re.search(r"[>|&;]", command) else simkit
    done = run(command + extra, home)
    assert done.stdout or ">" in command or "wrote" in done.stderr


def test_the_output_shown_is_the_output(home: Path) -> None:
    command = marked("run-command").split("&&")[-1].strip().removeprefix(".venv/bin/")
    shown, printed = marked("run-output"), shell(f"{command} --out shown", home).stdout
    number = re.compile(r"(?<![\w-])\d[\d,]*(?:\.\d+)?(?!\w)")

    def words(text: str) -> list[list[str]]:
        """Lines as words with numbers blanked; rules and column widths do not matter."""
        return [number.sub("#", line).split() for line in text.splitlines() if line.strip() and "──" not in line]

    def numbers(text: str) -> list[float]:
        return [float(value.replace(",", "")) for value in number.findall(text)]

    assert words(shown) == words(printed), "refresh the README: run its first command and paste the table"
    assert numbers(shown) == pytest.approx(numbers(printed), rel=TOLERANCE), "refresh the README"
    assert len(numbers(shown)) > 30


@pytest.mark.parametrize(("name", "ending"), [
    ("run-command", ".venv/bin/pip install . && .venv/bin/simkit run scenarios/llama3-8b-a100.yaml"),
    ("test-command", '.venv/bin/pip install -e ".[test]" && .venv/bin/pytest -n 2'),
])  # fmt: skip
def test_the_two_commands_each_start_from_nothing(name: str, ending: str) -> None:
    assert marked(name) == f"python3 -m venv .venv && {ending}"


def test_ci_reads_the_test_command_from_the_readme() -> None:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert "readme_block test-command" in script
    assert "pip install" not in script, "CI installs with the README's command, not with one of its own"


def test_the_python_example_runs(home: Path) -> None:
    (source,) = fenced("python")
    done = subprocess.run([sys.executable, "-c", source], cwd=home, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[0] == "520"


def test_it_says_where_things_are() -> None:
    rows = [line for line in section("Where things are").splitlines() if line.startswith("| ")][2:]
    assert len(rows) == 10, "ten questions of somebody who is new here"
    for row in rows:
        assert re.search(r"`(simkit|calib)/", row), row


def test_it_is_short_and_names_no_host() -> None:
    assert len(README.splitlines()) <= 200
    assert re.findall(r"https?://|(?<![\w.])/\w+/", README) == []
