"""ServeGen client files: windows of a rate, its burstiness and a gap distribution; a generator's input, not a log.

Source of the format: alibaba/ServeGen, data/.
"""

from __future__ import annotations

from simkit.logs.read.format import Format, Head

_GAPS = ("", "Gamma", "Weibull")


def matches(head: Head) -> str | None:
    """By six columns without header, of which the fourth names a distribution of gaps or is empty."""
    if head.kind != "csv" or len(head.columns) != 6 or head.columns[3] not in _GAPS:
        return None
    numbers = (*head.columns[:3], *head.columns[4:])
    if not all(cell.replace(".", "", 1).isdecimal() for cell in numbers):
        return None
    return "lines of start, rate, cv, Gamma or Weibull and two parameters"


FORMAT = Format(
    "servegen",
    "ServeGen client file",
    matches,
    None,
    advice=(
        "it holds rates and distributions of a workload generator, not requests, so there is nothing to replay: use it "
        "as a workload source, workload.servegen"
    ),
)
