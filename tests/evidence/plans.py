"""Rebuild the plans that are kept in reports/: ``python tests/evidence/plans.py`` (a few minutes on two cores).

With ``--all`` the evidence page too, whose own command is ``python tests/evidence/build.py``.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

PLANS = {
    "llama3-8b-a100": ("--target-rate", "40", "--spare", "1"),
    "azure-conversation": ("--target-rate", "40", "--spare", "1"),
}
"""Scenario to the further options of its plan."""


EVIDENCE = "validation"
"""The folder of the evidence page in reports/."""


def main(arguments: list[str]) -> int:
    """Plan every scenario; the first exit code that is not 0 ends it."""
    if arguments not in ([], ["--all"]):
        print(f"expected nothing or --all, got {' '.join(arguments)}", file=sys.stderr)
        return 2
    for name, options in PLANS.items():
        words = ["plan", f"scenarios/{name}.yaml", *options, "--out", f"reports/{name}"]
        code = subprocess.run([sys.executable, "-m", "simkit", *words], cwd=ROOT, check=False).returncode
        if code:
            return code
    if not arguments:
        return 0
    return subprocess.run([sys.executable, "tests/evidence/build.py"], cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
