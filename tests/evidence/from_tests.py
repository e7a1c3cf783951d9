"""Modules of the tests that compute figures: what is judged there is what the page prints."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

TESTS = Path(__file__).resolve().parents[1]


def module_of(path: str) -> ModuleType:
    """The module in a file below ``tests``, loaded once: the one that a test has loaded already, where it has."""
    file, name = str(TESTS / path), "simkit_tests_" + path.removesuffix(".py").replace("/", "_")
    for module in [sys.modules.get(name), *sys.modules.values()]:
        if getattr(module, "__file__", None) == file:
            assert module is not None
            return module
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up while it is made
    spec.loader.exec_module(module)
    return module
