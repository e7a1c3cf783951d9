"""Rebuild the plans that are kept here: ``python reports/build.py`` (a few minutes on two cores)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

PLANS = {
    "llama3-8b-a100": ("--target-rate", "40", "--spare", "1"),
    "azure-conversation": ("--target-rate", "40", "--spare", "1"),
}
"""Scenario to the further options of its plan."""


def main() -> int:
    """Plan every scenario; the first exit code that is not 0 ends it."""
    for name, options in PLANS.items():
        words = ["plan", f"scenarios/{name}.yaml", *options, "--out", f"reports/{name}"]
        code = subprocess.run([sys.executable, "-m", "simkit", *words], cwd=ROOT, check=False).returncode
        if code:
            return code
    return 0


if __name__ == "__main__":
    sys.exit(main())
