"""How groups of options become parameters of a command, and what they say of a log."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from simkit.cli import calibrate, compare, doctor, log, memory, plan, run, validate
from simkit.cli.options import LoadOptions, Printing, ReadOptions, ScenarioOptions, expanded, given, option, trace_keys
from simkit.errors import InputError

COMMANDS = (
    run.run, compare.compare, compare.sweep, plan.plan, run.replay, validate.validate, memory.memory, doctor.doctor,
    calibrate.calibrate, *(inspect.unwrap(command) for command in (log.info, log.convert, log.sample, log.fit)),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Two:
    """Two options."""

    first: int | None = given("--first", "The first.", "N", min=0)
    second: bool = given("--second", "The second.", default=False)


def command(
    *, word: str, two: Two, last: Annotated[str, option("--last", "The last.", short="-l")] = "z", printing: Printing
) -> None:
    """Print what was given."""
    print(word, two, last, printing)


def invoke(*args: str) -> tuple[int, str]:
    app = typer.Typer()
    app.command()(expanded(command))
    result = CliRunner().invoke(app, list(args))
    return result.exit_code, result.output


def test_options_of_a_group_stand_where_the_group_stands() -> None:
    assert list(inspect.signature(expanded(command)).parameters) == ["word", "first", "second", "last", "json", "quiet"]
    _, text = invoke("--help")
    places = [text.index(flag) for flag in ("--first", "--second", "--last", "--json", "--quiet")]
    assert places == sorted(places)


def test_a_command_gets_its_groups_whole_with_their_defaults() -> None:
    plain = "Two(first=None, second=False) z Printing(json=False, quiet=False)"
    assert invoke("a") == (0, f"a {plain}\n")
    given_all = ("a", "--first", "3", "--second", "-l", "y", "-q")
    assert invoke(*given_all) == (0, "a Two(first=3, second=True) y Printing(json=False, quiet=True)\n")


def test_a_group_is_checked_like_single_options() -> None:
    assert invoke("a", "--first", "-1")[0] == 2
    assert invoke("a", "--first", "x")[0] == 2


@pytest.mark.parametrize("known", COMMANDS, ids=lambda known: known.__name__)
def test_no_command_takes_many_parameters_and_no_group_hides_an_option(known: object) -> None:
    assert callable(known)
    own = list(inspect.signature(known).parameters)
    assert len(own) <= 9
    options = list(inspect.signature(expanded(known)).parameters)
    assert len(options) == len(set(options))
    groups = [name for name in own if name not in options]
    assert groups, "every command prints"
    assert not set(groups) & set(options)


def test_settings_come_before_the_seed() -> None:
    assert ScenarioOptions().settings == []
    assert ScenarioOptions(["a=1", "seed=2"], 0).settings == ["a=1", "seed=2", "seed=0"]


def test_keys_of_a_log_that_were_given_are_those_of_a_scenario_and_a_0_is_given() -> None:
    assert trace_keys(LoadOptions()) == {}
    asked = LoadOptions(scenario=Path("s.yaml"), map=["prompt=in,output=out"], allow_bad=True, start=0.0, warmup=2.5)
    assert trace_keys(asked) == {
        "map": {"prompt": "in", "output": "out"},
        "allow_bad": True,
        "start_s": 0.0,
        "warmup_s": 2.5,
    }
    assert trace_keys(run.PlayOptions(rate=2.0, idle_gap_cap=1.0)) == {"rate_per_s": 2.0, "idle_gap_cap_s": 1.0}
    assert asked.section(Path("log.csv"))["path"] == "log.csv"


def test_what_a_log_is_read_by_names_the_option_that_is_wrong() -> None:
    assert ReadOptions().trace(Path("log.csv")).path == "log.csv"
    with pytest.raises(InputError, match=r"^--time-unit: expected one of auto, s, ms, us, ns, got 'h'"):
        ReadOptions(time_unit="h").trace(Path("log.csv"))
    with pytest.raises(InputError, match=r"^--end: expected end_s > start_s"):
        ReadOptions().trace(Path("log.csv"), start_s=5.0, end_s=1.0)
