"""Plain data of values, and the values again."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from simkit.plain import canonical_json, optional, plain, typed


@dataclass(frozen=True, slots=True)
class Leaf:
    share: float | None
    note: str | None = optional()


@dataclass(frozen=True, slots=True)
class Tree:
    name: str
    leaf: Leaf
    maybe: Leaf | None
    pair: tuple[int, str]
    many: tuple[Leaf, ...]
    some: Sequence[Leaf]
    by_name: Mapping[str, Mapping[str, Leaf]] | None
    anything: Any = None


TREE = Tree(
    "x", Leaf(0.5), None, (1, "a"), (Leaf(None), Leaf(1.0, "b")), [Leaf(2.0)], {"p": {"q": Leaf(3.0)}}, {"k": 1}
)


def test_an_optional_field_has_no_key_where_it_has_no_value() -> None:
    assert plain(Leaf(None)) == {"share": None}
    assert plain(Leaf(None, "why")) == {"share": None, "note": "why"}


def test_a_value_comes_back_from_its_file() -> None:
    assert typed(Tree, json.loads(canonical_json(TREE))) == TREE


@pytest.mark.parametrize("data", [{}, {"share": 1.0, "more": 1}, [1], None, "text"])
def test_data_of_something_else_are_no_value(data: object) -> None:
    with pytest.raises((TypeError, KeyError, ValueError, AttributeError)):
        typed(Leaf, data)


def test_numbers_of_numpy_are_plain_numbers() -> None:
    assert canonical_json({"a": np.float64(0.1), "b": np.int64(3), "c": (True, None)}) == canonical_json(
        {"a": 0.1, "b": 3, "c": [True, None]}
    )
