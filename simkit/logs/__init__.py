"""Logs of real traffic: reading, care, and what is played of them.

`scan` reads a log part by part, `load` whole and in arrival order, `play` cuts and stretches what is replayed; a format
is a module of `formats`.
"""

from __future__ import annotations

from simkit.logs.play.play import PlayedLog, play_log

__all__ = ["PlayedLog", "play_log"]
