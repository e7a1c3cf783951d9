"""`simkit calibrate --from-run`: host terms of an engine fitted to one real run. Heavy modules inside."""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simkit.cli import console, studies
from simkit.errors import CheckError, InputError

if TYPE_CHECKING:
    from simkit.scenario import Scenario
    from simkit.validation.runs.facts import FitFacts

DATE = re.compile(r"\d{4}-\d{2}-\d{2}")


def from_run(
    scenario: Path | None,
    trace: Mapping[str, Any],
    sets: list[str] | None,
    *,
    name: str | None,
    date: str | None,
    out: Path | None,
    json: bool,
    quiet: bool,
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
    from simkit.plain import canonical_json
    from simkit.validation.runs.fit import fit_run

    with console.progress(quiet) as progress:
        fit = fit_run(chosen, name=name, date=date, progress=progress)
    path = out or Path("calibration") / fit.profile["name"] / f"{fit.profile['name']}.json"
    if json:
        console.out_bytes(canonical_json(fit.facts.to_json()))
    else:
        from simkit.report.sections.profile import fit_tables

        console.out(*fit_tables(fit.facts.to_json(), console.width()))
    if fit.refused:
        raise CheckError(f"nothing was stored: {fit.refused}")
    if not quiet:
        _say_notes(chosen, fit.facts, trace, scenario)
        console.say(
            "these errors are of the run that was fitted: check others with "
            f"`simkit validate MEASURED --scenario S --set latency.profile={path}`"
        )
    _write(fit.profile, path, out)
    if not quiet:
        from simkit.latency.host import short_version

        version = short_version(chosen.engine.version)
        console.say(f"wrote {path}; use it with --set latency.profile={path} where engine.version is {version}")


def _say_notes(chosen: Scenario, facts: FitFacts, trace: Mapping[str, Any], scenario: Path) -> None:
    if "end_s" in trace or "max_requests" in trace:
        console.say("note: the last requests of the part met others in the run that are not simulated")
    if facts.num_cut:
        console.say(f"note: {facts.num_cut} requests end before they did in the log and were not fitted")
    if chosen.latency.without:
        console.say(f"note: fitted without {', '.join(chosen.latency.without)}: the terms hold for runs without these")
    if chosen.latency.host is not None:
        console.say(f"note: latency.host of {scenario} goes before what a profile has: leave it out to use the fit")


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
    from simkit import scenario as schema
    from simkit.cli.log_options import check_sets
    from simkit.cli.trace import flag_of

    labels = {key: "--from-run" if key == "path" else flag_of(key) for key in trace}
    check_sets(sets or [], labels, "--from-run")
    return schema.load_replay(path, trace, labels, sets or [])


def _write(profile: Mapping[str, Any], path: Path, out: Path | None) -> None:
    """The profile, whole or not at all. What an interrupt says is what is so: Stopped once the file is there."""
    from calib.fit.fit import to_text
    from simkit.latency.profile import parse_profile

    text = to_text(profile)
    parse_profile(text, str(path))
    draft = path.with_name(f"{path.stem}.draft.json")
    try:
        with studies.writing(out, path):
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                draft.write_text(text, encoding="utf-8")
                draft.replace(path)
            finally:
                draft.unlink(missing_ok=True)
    except KeyboardInterrupt:
        if path.is_file() and path.read_text(encoding="utf-8") == text:
            raise studies.Stopped(f"interrupted; {path} was written") from None
        raise
