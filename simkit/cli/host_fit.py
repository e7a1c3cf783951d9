"""`simkit calibrate --from-run`: host terms of an engine fitted to one real run. Heavy modules inside."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simkit.cli import console, output
from simkit.cli.options import Printing, check_sets, flag_of
from simkit.errors import CheckError, InputError
from simkit.files import new_file

if TYPE_CHECKING:
    from simkit.scenario import Scenario

DATE = re.compile(r"\d{4}-\d{2}-\d{2}")


def path_of(name: str, out: Path | None) -> Path:
    """Where a profile is written that the user named no file for."""
    return out or Path("calibration") / name / f"{name}.json"


def fit_to_run(
    scenario: Path | None,
    trace: Mapping[str, Any],
    sets: list[str] | None,
    name: str | None,
    date: str | None,
    out: Path | None,
    printing: Printing,
) -> None:
    """Fit host terms to the log of a run, and write the scenario's profile with them.

    `trace` has the keys of a scenario's trace. Raises CheckError, after everything was shown, when the fit is of no use
    and nothing is written.
    """
    if scenario is None:
        raise InputError(
            "--from-run: expected --scenario FILE, which says what served the log; `simkit init` prints one"
        )
    _check_date(date)
    if out is not None:
        _check_replaced(out)
    chosen = _scenario(scenario, trace, sets)
    from simkit.latency.host import short_version
    from simkit.report.sections.specs import fit_tables
    from simkit.validation.runs.fit import fit_run

    with console.progress(printing.quiet) as progress:
        fit = fit_run(chosen, name=name, date=date, progress=progress)
    path = path_of(fit.profile["name"], out)
    output.finish(printing, lambda: fit_tables(fit.facts.to_json(), console.width()), fit.facts.to_json())
    if fit.refused:
        raise CheckError(f"nothing was stored: {fit.refused}")
    output.say(printing, _notes(chosen, fit.facts.num_cut, trace, scenario))
    output.say(
        printing,
        [
            "these errors are of the run that was fitted: check others with "
            f"`simkit validate MEASURED --scenario S --set latency.profile={path}`"
        ],
    )
    _write(fit.profile, path, out)
    version = short_version(chosen.engine.version)
    told = f"wrote {path}; use it with --set latency.profile={path} where engine.version is {version}"
    output.say(printing, [told])


def _notes(chosen: Scenario, num_cut: int, trace: Mapping[str, Any], scenario: Path) -> Iterator[str]:
    if "end_s" in trace or "max_requests" in trace:
        yield "note: the last requests of the part met others in the run that are not simulated"
    if num_cut:
        yield f"note: {num_cut} requests end before they did in the log and were not fitted"
    if chosen.latency.without:
        yield f"note: fitted without {', '.join(chosen.latency.without)}: the terms hold for runs without these"
    if chosen.latency.host is not None:
        yield f"note: latency.host of {scenario} goes before what a profile has: leave it out to use the fit"


def _check_date(date: str | None) -> None:
    """InputError for what is no day."""
    if date is None:
        return
    try:
        datetime.date.fromisoformat(date)
    except ValueError:
        known = False
    else:
        known = DATE.fullmatch(date) is not None
    if not known:
        raise InputError(f"--date: expected YYYY-MM-DD, got {date!a}")


def _check_replaced(path: Path) -> None:
    """InputError, before anything is simulated, where the profile would take the place of another kind of file."""
    if not path.exists():
        return
    from simkit.latency.profile import parse_profile

    try:
        parse_profile(path.read_text(encoding="utf-8"), str(path))
    except (InputError, OSError, UnicodeError):
        raise InputError(
            f"--out: {path}: expected a new file or a profile of simkit, got a file that is none; name another"
        ) from None


def _scenario(path: Path, trace: Mapping[str, Any], sets: list[str] | None) -> Scenario:
    """The scenario of the file with the log in place of its workload."""
    from simkit.scenario import for_replay, load

    labels = {key: "--from-run" if key == "path" else flag_of(key) for key in trace}
    check_sets(sets or [], labels, "--from-run")
    return for_replay(load(path), trace, labels, sets or [])


def _write(profile: Mapping[str, Any], path: Path, out: Path | None) -> None:
    """The profile, whole or not at all. What an interrupt says is what is so: Stopped once the file is there."""
    from calib.fit.fit import to_text
    from simkit.latency.profile import parse_profile

    text = to_text(profile)
    parse_profile(text, str(path))
    try:
        with output.writing(out, path):
            path.parent.mkdir(parents=True, exist_ok=True)
            with new_file(path) as draft:
                draft.write_text(text, encoding="utf-8")
    except KeyboardInterrupt:
        if path.is_file() and path.read_text(encoding="utf-8") == text:
            raise output.Stopped(f"interrupted; {path} was written") from None
        raise
