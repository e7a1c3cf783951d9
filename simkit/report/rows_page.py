"""The page of a study of aggregate rows, from the content of rows.json."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any


def write(path: Path, content: Mapping[str, Any]) -> None:
    """Write the page to `path`."""
    path.write_text(f"<title>{escape(str(content['name']))}</title>", encoding="utf-8")
