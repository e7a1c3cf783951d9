"""The version of simkit, which every output names."""

from __future__ import annotations

__version__ = "0.2.0"
