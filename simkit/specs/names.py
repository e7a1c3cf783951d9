"""What a model's name on a hub says: which known model it was made from, and the format of its weights.

The owner, words for tuning to instructions, and words for formats are taken off; what is left must be the name of a
model of the registry. What is left over otherwise is never guessed.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from simkit.specs.dtypes import NOT_QUANTIZED

_TUNED = {"instruct", "chat", "it"}
_PLAIN = {*_TUNED, "hf", "unsloth"}
_SIXTEEN = {"bf16", "fp16", "bfloat16", "float16"}
_GROUP = re.compile(r"g?(?:16|32|64|128)g?$")
# Words that name a format, each with those that may stand beside it and say no more.
_FORMATS: tuple[tuple[frozenset[str], frozenset[str], str], ...] = (
    (frozenset({"fp8", "block"}), frozenset({"dynamic"}), "fp8_block"),
    (frozenset({"fp8"}), frozenset({"dynamic", "static", "kv", "w8a8", "pertensor"}), "fp8"),
    (frozenset({"awq"}), frozenset({"int4", "4bit", "w4a16", "marlin"}), "awq"),
    (frozenset({"gptq", "int8"}), frozenset({"w8a16"}), "gptq_int8"),
    (frozenset({"gptq", "8bit"}), frozenset(), "gptq_int8"),
    (frozenset({"gptq"}), frozenset({"int4", "4bit", "4b", "w4a16", "marlin"}), "gptq"),
    (frozenset({"w8a16"}), frozenset({"int8", "quantized"}), "gptq_int8"),
    (frozenset({"w4a16"}), frozenset({"int4", "quantized"}), "gptq"),
    (frozenset({"int4"}), frozenset(), "gptq"),
    (frozenset({"w8a8"}), frozenset({"int8", "quantized", "dynamic"}), "int8"),
    (frozenset({"nvfp4"}), frozenset({"kv"}), "nvfp4"),
    (frozenset({"nvfp4a16"}), frozenset(), "nvfp4"),
    (frozenset({"fp4"}), frozenset(), "nvfp4"),
    (frozenset({"mxfp4"}), frozenset(), "mxfp4"),
    (frozenset({"bnb", "4bit"}), frozenset({"nf4"}), "bitsandbytes"),
    (frozenset({"nf4"}), frozenset({"bnb"}), "bitsandbytes"),
    (frozenset({"bnb", "8bit"}), frozenset({"int8"}), "int8"),
)
_WORDS = _PLAIN | _SIXTEEN | {word for needed, beside, _ in _FORMATS for word in (*needed, *beside)}


@dataclass(frozen=True, slots=True)
class Reading:
    """A known name, and the format that the words behind it say: None for none, "none" for 16 bits."""

    base: str
    quantization: str | None


def tail_of(name: str) -> str:
    """A name without its owner, lower case, one dash between words (and between Llama and its number)."""
    return re.sub(r"[-_]+|(?<=llama)(?=[0-9])", "-", name.strip().lower().rpartition("/")[2])


def read(name: str, known: Collection[str]) -> Reading | None:
    """`name` as one of the `known` tails and a format; None where something is left that is not understood."""
    words = _words(tail_of(name))
    behind: list[str] = []
    while words:
        for base in _spellings(words):
            if base in known:
                says = _format(frozenset(behind) - _PLAIN)
                return None if says == "" else Reading(base, says)
        word = words.pop()
        if word not in _WORDS and not _GROUP.match(word):
            return None
        behind.append(word)
    return None


def stem(name: str) -> str:
    """The part of a name that no word for tuning or a format ends: what a suggestion is looked for."""
    words = _words(tail_of(name))
    while len(words) > 1 and (words[-1] in _WORDS or _GROUP.match(words[-1])):
        words.pop()
    return "-".join(words)


def _words(tail: str) -> list[str]:
    return tail.replace("quantized.", "quantized-").split("-")


def _spellings(words: list[str]) -> Iterator[str]:
    """The name as it stands, without the word for tuning inside it, and without Meta's first word."""
    for some in (words, [word for word in words if word not in _TUNED]):
        yield "-".join(some)
        if some[:1] == ["meta"]:
            yield "-".join(some[1:])


def _format(words: frozenset[str]) -> str | None:
    """The format of the words behind a name; "" where they name none, or more than one."""
    if not words:
        return None
    if words <= _SIXTEEN:
        return NOT_QUANTIZED
    words = frozenset(word for word in words if not _GROUP.match(word))
    for needed, beside, name in _FORMATS:
        if needed <= words <= needed | beside:
            return name
    return ""
