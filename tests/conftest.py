"""Hypothesis draws the same examples everywhere and keeps no database, so a run of the tests can be repeated."""

from hypothesis import settings

settings.register_profile("simkit", derandomize=True, deadline=None, database=None, print_blob=False)
settings.load_profile("simkit")
