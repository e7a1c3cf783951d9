"""Bands: how far a prediction may be off, by metric and statistic, and who is outside.

Owns the names that a band may have.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from simkit.errors import InputError, nearest
from simkit.metrics.catalogue import MEASURED_LATENCIES, STATS, WHOLE_RUN
from simkit.validation.runs.comparison import Errors
from simkit.validation.samples import SAMPLED

KEYS = (*(f"{metric}.{stat}" for metric in MEASURED_LATENCIES for stat in STATS), *WHOLE_RUN)
"""Everything that can have a band, as ``METRIC.STAT``."""

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
    """A band and the error that was found."""

    band: Band
    error_pct: float

    @property
    def ok(self) -> bool:
        """Whether the error lies within the band."""
        return abs(self.error_pct) <= self.band.limit_pct

    def line(self) -> str:
        """By how much the error is outside."""
        over = abs(self.error_pct) - self.band.limit_pct
        return f"{self.band.key} is off by {self.error_pct:+.2f} %, {over:.2f} points outside {self.band.limit_pct:g} %"


def parse_bands(texts: Sequence[str]) -> list[Band]:
    """Bands from ``METRIC.STAT=PCT`` texts. InputError names the nearest key."""
    bands: list[Band] = []
    for text in texts:
        key, equals, limit = (part.strip() for part in text.partition("="))
        where = f"--max-error {text.strip()}"
        if not (key and equals and limit):
            raise InputError(f"{where}: expected METRIC.STAT=PERCENT, e.g. --max-error tpot_ms.mean=3")
        if key not in KEYS:
            raise InputError(f"{where}: {_expected(key)}")
        try:
            limit_pct = float(limit.removesuffix("%"))
        except ValueError:
            limit_pct = -1.0
        if not 0 <= limit_pct < float("inf"):
            raise InputError(f"{where}: expected a number of per cent >= 0, got {limit}")
        if any(band.key == key for band in bands):
            raise InputError(f"{where}: expected each key once, got {key} twice")
        bands.append(Band(key, limit_pct))
    return bands


def _expected(key: str) -> str:
    """What a band may be on, as near to `key` as it gets."""
    metric = key.partition(".")[0]
    if metric in STATS_OF:
        close = nearest(f"{key}.{STATS_OF[metric][0]}" if key == metric else key, KEYS)
        return f"expected a statistic of {metric}: {', '.join(STATS_OF[metric])}{close}"
    return f"expected METRIC.STAT, METRIC one of {', '.join(STATS_OF)}{nearest(key, KEYS)}"


def judge(bands: Sequence[Band], errors: Errors) -> tuple[list[Verdict], list[str]]:
    """(each band with what was found, what there is no error of)."""
    verdicts, unknown = [], []
    for band in bands:
        metric, stat = band.key.split(".")
        error = errors.get(metric, {}).get(stat, {}).get("error_pct")
        if error is None:
            unknown.append(
                f"{band.key}: there is no such error here: it was not measured, or 0; expected one of the metrics "
                f"{', '.join(errors)}"
            )
        else:
            verdicts.append(Verdict(band, error))
    return verdicts, unknown


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
