"""The page of a run beside what was measured, from the content of validation.json."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def write(path: Path, content: Mapping[str, Any]) -> None:
    """Write the page to `path`."""
    text = html.escape(json.dumps(content["errors"], indent=2))
    path.write_text(f"<!doctype html><title>{html.escape(content['name'])}</title><pre>{text}</pre>\n", "utf-8")
