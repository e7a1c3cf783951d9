"""Checked access to the fields of one Hugging Face config: every refusal names the file and the field."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from simkit.errors import InputError


class Fields:
    """The fields of a config, its `type` among them; `defaults` stand for those that the file leaves out."""

    def __init__(self, file: Path, config: Mapping[str, Any], defaults: Mapping[str, Any] | None = None) -> None:
        self.file = file
        self.type = str(config.get("model_type", ""))
        self._config = {**(defaults or {}), **{key: value for key, value in config.items() if value is not None}}

    def get(self, field: str) -> Any:
        """What the file says, or its default; None where neither has anything."""
        return self._config.get(field)

    def required(self, field: str) -> Any:
        """The same; nothing is an error."""
        value = self.get(field)
        if value is None:
            raise self.error(field, f"missing (model_type {self.type!r})")
        return value

    def int(self, field: str, default: int | None = None, least: int = 1) -> int:
        """An integer of at least `least`."""
        value = self.get(field)
        if value is None:
            value = default if default is not None else self.required(field)
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise self.error(field, f"expected an integer >= {least}, got {value!r}")
        return value

    def flag(self, field: str, default: bool | None) -> bool:
        """True or false."""
        value = self.get(field)
        if value is None:
            value = default if default is not None else self.required(field)
        if not isinstance(value, bool):
            raise self.error(field, f"expected true or false, got {value!r}")
        return value

    def list(self, field: str) -> list[Any]:
        """A list; empty where there is none."""
        value = self.get(field) or []
        if not isinstance(value, list):
            raise self.error(field, f"expected a list, got {value!r}")
        return value

    def error(self, field: str, what: str) -> InputError:
        """A refusal of what a field says."""
        return InputError(f"{self.file}: {field}: {what}", key="model")
