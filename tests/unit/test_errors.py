"""The errors: their tree as it is drawn, what an error says, and that nobody branches on the words of one."""

from __future__ import annotations

import ast
import pickle
import re
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest

from simkit import errors
from simkit.errors import InputError, about
from simkit.latency.profile import NotMeasured

ROOT = Path(__file__).parents[2]
FILES = sorted(path for room in ("simkit", "calib") for path in (ROOT / room).rglob("*.py"))
BUILT_IN = {"Exception", "KeyboardInterrupt", "ValueError"}


# --- the tree ---------------------------------------------------------------------------------------------------------
def classes() -> list[tuple[str, str, str]]:
    """Exception class, its base and its module, of all that leave their module."""
    found: list[tuple[str, str, str]] = []
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in FILES}
    known, size = set(BUILT_IN), -1
    while size != len(known):
        size = len(known)
        found = [
            (
                node.name,
                node.bases[0].id,
                ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"),
            )
            for path, tree in trees.items()
            for node in tree.body
            if isinstance(node, ast.ClassDef)
            and node.bases
            and isinstance(node.bases[0], ast.Name)
            and node.bases[0].id in known
        ]
        known |= {name for name, _, _ in found}
    return [item for item in found if not item[0].startswith("_")]


def drawn() -> list[tuple[str, str, str]]:
    """The same as the docstring of `simkit.errors` draws it."""
    found, above = [], [""]
    for line in (errors.__doc__ or "").splitlines():
        match = re.fullmatch(r"    ((?:[│ ]   )*)(?:[├└]── )?(\w+)(?: {2,}([^(]*)(?:\(([\w.]+)\))?)?", line)
        if match is None:
            continue
        depth = len(match[1]) // 4 + ("──" in line)
        above[depth:] = [match[2]]
        if depth:
            found.append((match[2], above[depth - 1], match[4] or "simkit.errors"))
        else:
            assert match[2] in BUILT_IN, line
    return found


def test_the_tree_of_exceptions_is_drawn_as_it_is() -> None:
    assert sorted(drawn()) == sorted(classes())


def test_no_two_exceptions_have_one_name() -> None:
    names = [name for name, _, _ in classes()]
    assert len(names) == len(set(names))


# --- what an error says -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("error", "text"),
    [
        (InputError("no"), "no"),
        (InputError("no", key="engine.policy"), "engine.policy: no"),
        (InputError("no", where="a.yaml:3"), "a.yaml:3: no"),
        (InputError("no", key="engine.policy", where="a.yaml:3"), "a.yaml:3: engine.policy: no"),
        (InputError("no", key="", where="--model"), "--model: no"),
        (InputError("model m: no", key="model", says_key=False), "model m: no"),
        (InputError("model m: no", key="model", where="a.yaml:3", says_key=False), "a.yaml:3: model: model m: no"),
        (NotMeasured("p has no gemm: no", lacks="p has no gemm"), "latency.profile: p has no gemm: no"),
    ],
)  # fmt: skip
def test_an_input_error_says_where_which_key_and_what_and_so_it_does_in_another_process(
    error: InputError, text: str
) -> None:
    assert str(error) == text
    sent = pickle.loads(pickle.dumps(error))
    assert str(sent) == text
    assert vars(sent) == vars(error)


def test_a_key_is_blamed_only_for_errors_that_name_none() -> None:
    with pytest.raises(InputError) as found, about("workload.trace.path", says_key=False):
        raise InputError("trace x: no")
    assert (found.value.key, str(found.value)) == ("workload.trace.path", "trace x: no")
    for own in ("workload.trace.format", ""):
        with pytest.raises(InputError) as found, about("workload.trace.path"):
            raise InputError("no", key=own)
        assert found.value.key == own


# --- nobody branches on words -----------------------------------------------------------------------------------------
CUTS = {"startswith", "endswith", "removeprefix", "removesuffix", "partition", "rpartition", "split", "find", "index"}
CUTS |= {"match", "search", "fullmatch", "sub", "replace"}
WORDS = {"error", "message", "note", "problem", "reason", "remark", "why"}
OF_OTHERS = {
    "calib/measure/bench.py": "torch and Triton say only in words that memory ran out",
    "simkit/logs/read/json.py": "json says only in words that a text ends too early",
}
"""Files that read the words of somebody else's exception, and why."""


def is_words(node: ast.expr, caught: set[str], texts: Collection[str] = ()) -> bool:
    """Whether an expression is the text of an exception that was caught, or of a message or a remark."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "str" and node.args:
        return isinstance(node.args[0], ast.Name) and node.args[0].id in caught
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("lower", "strip"):
        return is_words(node.func.value, caught, texts)
    if isinstance(node, ast.Attribute):
        return isinstance(node.value, ast.Name) and node.value.id in caught and node.attr in ("text", "msg", "args")
    return isinstance(node, ast.Name) and node.id in {*WORDS, *texts}


def is_sentence(node: ast.expr) -> bool:
    """Whether a literal has a letter and a space: more than the name of a kind, and more than punctuation."""
    return any(
        isinstance(part, ast.Constant) and isinstance(part.value, str) and re.search("[a-z].* | .*[a-z]", part.value)
        for part in ast.walk(node)
    )


def branches(tree: ast.AST) -> Iterator[int]:
    """Lines that compare or cut such words by words of their own."""
    caught = {"error"} | {node.name for node in ast.walk(tree) if isinstance(node, ast.ExceptHandler) and node.name}
    texts = {
        target.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and is_words(node.value, caught)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            asked = isinstance(node.ops[0], ast.In | ast.NotIn) and is_words(node.comparators[0], caught, texts)
            same = isinstance(node.ops[0], ast.Eq | ast.NotEq) and is_words(node.left, caught, texts)
            if asked or (same and is_sentence(node.comparators[0])):
                yield node.lineno
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CUTS:
            regular = isinstance(node.func.value, ast.Name) and node.func.value.id == "re"
            subject = node.args[1:2] if regular else [node.func.value]
            stop = node.func.attr == "endswith" and not is_sentence(node.args[0])  # of a sentence, whatever it says
            if node.args and not stop and any(is_words(part, caught, texts) for part in subject):
                yield node.lineno


def test_branches_on_words_are_found() -> None:
    found = sorted(
        branches(
            ast.parse(
                "try:\n    pass\n"
                "except InputError as error:\n"
                "    if str(error).startswith('--set'): pass\n"
                "    a = str(error).partition(': ')[2]\n"
                "    if 'no requests' in str(error): pass\n"
                "    b = error.text.removeprefix('engine: ')\n"
                "    if str(error).lower() == 'no file': pass\n"
                "c = any('name no zone' in remark for remark in remarks)\n"
                "d = re.match('trace ', message)\n"
                "e = note.endswith(' of the queue')\n"
                "f = ' '.join(str(error).split()), error.key == 'model', 'x' in notes, note.endswith('.')\n"
            )
        )
    )
    assert found == [4, 5, 6, 7, 8, 9, 10, 11]


def test_no_code_branches_on_the_words_of_an_error_or_a_remark() -> None:
    found = [
        f"{path.relative_to(ROOT).as_posix()}:{line}"
        for path in FILES
        for line in branches(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert [place for place in found if place.partition(":")[0] not in OF_OTHERS] == []
    assert {place.partition(":")[0] for place in found} >= set(OF_OTHERS)
