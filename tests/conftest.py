"""What all tests share: Hypothesis draws the same examples everywhere and keeps no database, so that a run of the tests
can be repeated; and what many of them would pay for again and again is paid for once.
"""

import functools
import os

import typer.testing
from hypothesis import settings
from typer.main import get_command

settings.register_profile("simkit", derandomize=True, deadline=None, database=None, print_blob=False)
settings.load_profile("simkit")

# A runner has Typer build every command anew for each call, which takes longer than most of the commands tested.
typer.testing._get_command = functools.cache(get_command)

# Processes that tests start keep the modules that they compile, or each of them would compile simkit anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# No test asks the hub, whatever is installed.
os.environ["HF_HUB_OFFLINE"] = "1"
