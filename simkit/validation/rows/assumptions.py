"""What a row of a benchmark table leaves open and was set by a rule. Owns the list."""

from __future__ import annotations

from collections.abc import Iterable


class Assumptions:
    """Texts, alike for all rows alike, each with the settings (dotted keys of a scenario) that its rule chose."""

    def __init__(self) -> None:
        self._found: list[tuple[str, tuple[str, ...]]] = []

    def add(self, text: str, *keys: str) -> None:
        """What was assumed; it holds unless one of `keys` is set by somebody."""
        self._found.append((text, keys))

    def told(self, given: Iterable[str]) -> tuple[str, ...]:
        """Those that hold where the keys `given`, or keys within them or around them, were set."""
        set_keys = tuple(given)
        return tuple(text for text, keys in self._found if not any(_touches(a, b) for a in keys for b in set_keys))


def _touches(one: str, other: str) -> bool:
    return one == other or one.startswith(f"{other}.") or other.startswith(f"{one}.")
