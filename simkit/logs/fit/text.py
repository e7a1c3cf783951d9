"""A fitted workload as a file: YAML with a heading that says what it stands for.

The heading names no file and no place: the file is made to be given away.
"""

from __future__ import annotations

import textwrap
from typing import Any

from simkit.logs.fit.fit import Fit
from simkit.logs.fit.lengths import DIGITS, FEW, LEAST, LEAST_IN_TAIL

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
        f"No value below is that of one request: a length, share, rank or distance is the mean of {LEAST} "
        f"neighbouring requests (of {LEAST_IN_TAIL} from the 95th percentile on and among fewer than {FEW} requests), "
        f"follows from such means, or is a length that {LEAST} requests or more have exactly; the ends give the "
        f"outermost requests their mean. Lengths are rounded to {DIGITS} digits, and may then be as long as some "
        "request by chance. The span and the number of requests are those of the log; a rate is that of "
        f"{LEAST} requests or more, of none, or of all, so the end of a silence tells when a request came, as exactly "
        "as the steps are."
    )
    heading = [
        f"{TITLE} simkit {version} (`simkit trace fit`): use it with `simkit run SCENARIO --workload THIS_FILE`, or",
        "# copy the section into a scenario. It holds groups of requests of a log, and no request of it.",
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
