"""Bands: how far a prediction may be off, and who is outside.

Owns the names that a band on a run may have; a band on rows is on a column of their table (`rows.results`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from simkit.errors import InputError, nearest
from simkit.metrics.catalogue import MEASURED_LATENCIES, STATS, WHOLE_RUN
from simkit.validation.samples import SAMPLED

KEYS = (*(f"{metric}.{stat}" for metric in MEASURED_LATENCIES for stat in STATS), *WHOLE_RUN)
"""Everything of a run that can have a band, as ``METRIC.STAT``."""

STATS_OF = {
    metric: tuple(key.partition(".")[2] for key in KEYS if key.startswith(f"{metric}."))
    for metric in dict.fromkeys(key.partition(".")[0] for key in KEYS)
}


@dataclass(frozen=True, slots=True)
class Band:
    """The error of `key` may be up to `limit_pct` either way."""

    key: str
    limit_pct: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """A band, the error that was found, and whether it lies within the band."""

    key: str
    limit_pct: float
    error_pct: float
    ok: bool

    def line(self) -> str:
        """By how much the error is outside."""
        over = abs(self.error_pct) - self.limit_pct
        return f"{self.key} is off by {self.error_pct:+.2f} %, {over:.2f} points outside {self.limit_pct:g} %"


def parse(texts: Iterable[str], wrong: Callable[[str], str | None], no_number: str, noun: str) -> list[Band]:
    """Bands from ``KEY=PCT`` texts. Raises InputError.

    `wrong` says what was expected of a text that names nothing that can have a band, `no_number` (a template) of a
    limit that is none, and `noun` what a key is called.
    """
    bands: list[Band] = []
    for text in texts:
        where, expected = f"--max-error {text}", wrong(text)
        if expected is not None:
            raise InputError(expected, where=where)
        key, _, limit = (part.strip() for part in text.partition("="))
        try:
            limit_pct = float(limit.removesuffix("%"))
        except ValueError:
            limit_pct = -1.0
        if not 0 <= limit_pct < float("inf"):
            raise InputError(no_number.format(limit), where=where)
        if any(band.key == key for band in bands):
            raise InputError(f"expected each {noun} once, got {key} twice", where=where)
        bands.append(Band(key, limit_pct))
    return bands


def judge(bands: Iterable[Band], error_of: Callable[[str], float | None]) -> tuple[list[Verdict], list[str]]:
    """(each band with the error that was found, the keys of which there is none)."""
    verdicts, unknown = [], []
    for band in bands:
        error = error_of(band.key)
        if error is None:
            unknown.append(band.key)
        else:
            verdicts.append(Verdict(band.key, band.limit_pct, error, abs(error) <= band.limit_pct))
    return verdicts, unknown


def parse_bands(texts: Sequence[str]) -> list[Band]:
    """Bands on a run from ``METRIC.STAT=PCT`` texts. InputError names the nearest key."""
    stripped = [text.strip() for text in texts]
    return parse(stripped, _wrong, "expected a number of per cent >= 0, got {}", "key")


def _wrong(text: str) -> str | None:
    """What a band may be on, as near to the text as it gets; None where it is on something."""
    key, equals, limit = (part.strip() for part in text.partition("="))
    if not (key and equals and limit):
        return "expected METRIC.STAT=PERCENT, e.g. --max-error tpot_ms.mean=3"
    if key in KEYS:
        return None
    metric = key.partition(".")[0]
    if metric in STATS_OF:
        close = nearest(f"{key}.{STATS_OF[metric][0]}" if key == metric else key, KEYS)
        return f"expected a statistic of {metric}: {', '.join(STATS_OF[metric])}{close}"
    return f"expected METRIC.STAT, METRIC one of {', '.join(STATS_OF)}{nearest(key, KEYS)}"


def no_error(key: str, metrics: Iterable[str]) -> str:
    """What to say of a band on what there is no error of; `metrics` have one."""
    return (
        f"{key}: there is no such error here: it was not measured, or 0; expected one of the metrics "
        f"{', '.join(metrics)}"
    )


def check_measured(bands: Sequence[Band], metrics: Collection[str], samples: Collection[str] | None) -> None:
    """InputError for a band on what a log does not have; `samples` are those over time, None without a file."""
    for band in bands:
        metric = band.key.partition(".")[0]
        if metric in SAMPLED and metric not in (samples or ()):
            lacks = "--series FILE, samples over time" if samples is None else f"{SAMPLED[metric]} recorded in --series"
            raise InputError(f"--max-error {band.key}: expected {lacks}")
        if metric not in SAMPLED and metric not in metrics:
            have = [name for name in STATS_OF if name in metrics or name in (samples or ())]
            raise InputError(
                f"--max-error {band.key}: there is no such error here: the log does not measure it; expected "
                f"one of the metrics {', '.join(have)}"
            )
