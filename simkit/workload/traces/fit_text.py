"""A fitted workload as a file: YAML with a heading that says what it stands for. Imports its own siblings.

The heading names no file and no place: the file is made to be given away.
"""

from __future__ import annotations

import textwrap
from typing import Any

from simkit.workload.traces.fit import Fit
from simkit.workload.traces.fit_lengths import DIGITS, LEAST, LEAST_IN_TAIL

TITLE = "# Synthetic workload, made by"
WIDTH = 118
IN_LINE = ("quantiles", "prompt_ranks", "output_ranks")

NOT_KEPT = (
    "Not kept: single requests and their order, sessions and think times, models, ids, and which lengths come together "
    "within a period beyond output by prompt."
)


def workload_yaml(fit: Fit, title: str, version: str) -> str:
    """The text of a workload file; `title` names the format that was read, `version` is simkit's."""
    import yaml

    privacy = (
        f"Each quantile is {LEAST} requests or more from the next (above the 95th percentile {LEAST_IN_TAIL}); a "
        f"length that fewer than {LEAST} requests have is rounded to {DIGITS} digits, and the ends of the quantiles "
        "are not the extremes but give the outermost requests their mean."
    )
    heading = [
        f"{TITLE} simkit {version} (`simkit trace fit`): use it with `simkit run SCENARIO --workload THIS_FILE`, or",
        "# copy the section into a scenario. It holds no request of the log it was fitted on.",
        f"# Fitted on {fit.num_requests} requests over {fit.span_s:.6g} s, read as {title}.",
    ]
    for text in (*(f"{remark[0].upper()}{remark[1:]}." for remark in fit.remarks), privacy, NOT_KEPT):
        heading += textwrap.wrap(text, WIDTH, initial_indent="# ", subsequent_indent="#   ", break_on_hyphens=False)
    body = yaml.dump(
        {"workload": _in_lines(fit.workload)}, Dumper=_dumper(), sort_keys=False, width=WIDTH, default_flow_style=None
    )
    return "\n".join(heading) + "\n" + body


class _Line(list[Any]):
    """A list that is written along the line, however deep."""


def _in_lines(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _Line(item) if key in IN_LINE else _in_lines(item) for key, item in value.items()}
    return [_in_lines(item) for item in value] if isinstance(value, list) else value


def _dumper() -> Any:
    import yaml

    class Dumper(yaml.SafeDumper):
        """Knows `_Line`."""

        def ignore_aliases(self, data: Any) -> bool:
            return True

    Dumper.add_representer(
        _Line, lambda dumper, data: dumper.represent_sequence("tag:yaml.org,2002:seq", data, flow_style=True)
    )
    return Dumper
