"""What `simkit validate --summary` prints, from the content of rows.json. Imports rich."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rich.text import Text

if TYPE_CHECKING:
    from rich.console import RenderableType


def terminal(content: Mapping[str, Any], width: int = 100) -> list[RenderableType]:
    """Errors of all judged rows, a line a metric."""
    errors = content["errors"]["all"].get("all", {})
    return [Text(f"{name}: {e['n']} rows, mean error {e['mape_pct']:.1f} %") for name, e in errors.items()]
