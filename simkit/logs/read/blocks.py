"""Prompt block identities of a log: what an entry stands for, checked on every row, and which prompts begin alike."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from simkit import scenario
from simkit.errors import InputError
from simkit.logs.read.log import MAX_BAD_SHARE, numbers
from simkit.logs.read.record import MAX_TOKENS, Blocks, Columns, Ragged, offsets_of
from simkit.types import Bools, Ints


def fitting_block_tokens(
    rows: Iterable[Mapping[str, object]], prompt: str, ids: str, wanted: int | None = None
) -> int | None:
    """The block size that all rows fit exactly: `wanted` if it does, else a power of two, else the least.

    None where none does, and where the rows say nothing (no ids, or never more than one).

    n ids for p tokens fit the sizes from p / n to below p / (n - 1).
    """
    least, below = 1, None
    for row in rows:
        tokens, blocks = row.get(prompt), row.get(ids)
        if type(tokens) is not int or not isinstance(blocks, list) or not 0 < tokens < MAX_TOKENS or not blocks:
            continue
        least = max(least, -(-tokens // len(blocks)))
        if len(blocks) > 1:
            end = -(-tokens // (len(blocks) - 1))
            below = end if below is None else min(below, end)
    if below is None or least >= below:
        return None
    if wanted is not None and least <= wanted < below:
        return wanted
    power = 1 << (least - 1).bit_length()
    return power if power < below else least


USUAL_TOKENS = (16, 32, 64, 128, 256, 512, 1024)
"""Block sizes that are looked for where the format's own does not fit."""

MIN_FIT = 0.99
"""Below this share of rows the format's own size is doubted."""


def checked_blocks(
    columns: Columns, spec: scenario.Trace, format_tokens: int | None
) -> tuple[Columns, int | None, list[str]]:
    """(columns in which only rows that fit keep their identities, tokens of a block, notes).

    A row fits when it has as many identities as blocks, the last one begun included: ceil(prompt / block). The size is
    the user's, else the format's, unless that does not fit and exactly one of the usual sizes fits all rows. The size
    is None where nothing is known of prompts. InputError when more than 1 % of the rows do not fit, unless `allow_bad`.
    """
    if columns.blocks is None:
        return columns, None, []
    counts = np.diff(columns.blocks.offsets)
    given = np.flatnonzero(counts)
    if not given.size:
        return replace(columns, blocks=None), None, []
    prompts, counts = columns.prompt_tokens[given], counts[given]
    size, notes = _size(prompts, counts, spec, format_tokens)
    if size is None:
        return replace(columns, blocks=None), None, notes
    misfits = given[~_fits(prompts, counts, size)]
    if misfits.size:
        notes.append(_misfit_note(columns, misfits, size, spec, len(given)))
        columns = replace(columns, blocks=_without(columns.blocks, misfits))
    if len(given) < len(columns):
        missing = len(columns) - len(given)
        notes.append(f"{missing} of {len(columns)} requests have no prompt block identities and share nothing")
    return columns, size, notes


def _fits(prompts: Ints, counts: Ints, size: int) -> Bools:
    return np.asarray(-(-prompts // size) == counts)


def _size(prompts: Ints, counts: Ints, spec: scenario.Trace, own: int | None) -> tuple[int | None, list[str]]:
    if spec.hash_block_tokens is not None:
        place = "" if own in (None, spec.hash_block_tokens) else f" in place of the format's {own}"
        return spec.hash_block_tokens, [f"a prompt block is {spec.hash_block_tokens} tokens{place}, as told"]
    if own is not None and np.mean(_fits(prompts, counts, own)) >= MIN_FIT:
        return own, []
    fitting = [size for size in USUAL_TOKENS if np.all(_fits(prompts, counts, size))]
    if len(fitting) == 1:
        place = "" if own is None else f", not the format's {own}"
        return fitting[0], [f"a prompt block is {fitting[0]} tokens{place}: the only usual size that fits all rows"]
    if own is not None:
        return own, []
    found = f"sizes {', '.join(map(str, fitting))} all fit" if fitting else "none of the usual sizes fits"
    return None, [f"prompt block identities are not used: {found} (hash_block_tokens says what one stands for)"]


def _misfit_note(columns: Columns, misfits: Ints, size: int, spec: scenario.Trace, num_given: int) -> str:
    assert columns.blocks is not None
    row = int(misfits[0])
    prompt, count = int(columns.prompt_tokens[row]), len(columns.blocks.of(row))
    found = (
        f"{len(misfits)} of {num_given} rows have another number of block identities than their prompt has blocks of "
        f"{size} tokens ({numbers(columns.line[misfits].tolist())}; line {columns.line[row]}: {prompt} "
        f"prompt tokens are {-(-prompt // size)} blocks, {count} identities)"
    )
    if len(misfits) > MAX_BAD_SHARE * num_given and not spec.allow_bad:
        advice = "hash_block_tokens says what an identity stands for, allow_bad lets these rows share nothing"
        raise InputError(f"trace {spec.path}: {found}, more than 1 %: {advice}")
    return f"{found}: they share nothing"


def _without(blocks: Blocks, rows: Ints) -> Blocks:
    counts = np.diff(blocks.offsets)
    keep = np.ones(len(counts), dtype=np.bool_)
    keep[rows] = False
    return Ragged(blocks.values[np.repeat(keep, counts)], offsets_of(np.where(keep, counts, 0)))


@dataclass(frozen=True, slots=True)
class Shared:
    """Ragged: the prompt of request i equals that of request ``owner[k]`` up to token ``upto_tokens[k]``.

    k runs from ``offsets[i]`` to ``offsets[i + 1]``; owners come before i and `upto_tokens` rises. Each token belongs
    to the first request that has the same beginning and reaches it, so equal beginnings have equal owners.
    """

    owner: Ints
    upto_tokens: Ints
    offsets: Ints

    def of(self, request: int) -> tuple[tuple[int, int], ...]:
        """The segments of one request."""
        part = slice(self.offsets[request], self.offsets[request + 1])
        return tuple(zip(self.owner[part].tolist(), self.upto_tokens[part].tolist(), strict=True))

    @classmethod
    def nothing(cls, num_requests: int) -> Shared:
        """No request shares anything."""
        none = np.zeros(0, dtype=np.int64)
        return cls(none, none, np.zeros(num_requests + 1, dtype=np.int64))


class Beginnings(NamedTuple):
    """How prompts begin: `known` leading blocks of each are those of earlier requests, the last of which is `latest`
    (-1 for none); `shared` says the same token by token."""

    known: Ints
    latest: Ints
    shared: Shared


def walk(blocks: Blocks, prompt_tokens: Ints, block_tokens: int) -> Beginnings:
    """All prompts in order through one trie.

    A token belongs to the first request that has its block behind the same blocks and reaches it: one that ends inside
    the block owns no more than it has, and the first that goes further owns the rest.
    """
    counts = np.minimum(np.diff(blocks.offsets), -(-prompt_tokens // block_tokens))
    codes, names = np.unique(blocks.values, return_inverse=True)
    num_codes = max(1, len(codes))
    all_names: list[int] = names.reshape(-1).tolist()
    children: dict[int, int] = {}
    owners, reach = [-1], [0]  # by node, the root first: who came first, and up to which token anybody has it
    last_at = [-1]  # by node, who had it last
    further: dict[int, list[tuple[int, int]]] = {}  # by node, owners beyond the first, each with its end
    known: list[int] = []
    latest: list[int] = []
    num_segments: list[int] = []
    owner: list[int] = []
    upto: list[int] = []
    rows = zip(blocks.offsets[:-1].tolist(), counts.tolist(), prompt_tokens.tolist(), strict=True)
    for row, (start, count, prompt) in enumerate(rows):
        path = all_names[start : start + count]
        node = depth = end = 0
        first_segment, last, before = len(owner), -1, -1
        for name in path:
            child = children.get(node * num_codes + name)
            if child is None:
                break
            node, depth = child, depth + 1
            before, last_at[node] = last_at[node], row
            end = min(depth * block_tokens, prompt)
            several = further.get(node)
            for found, ends in ((owners[node], end),) if several is None else several:
                if found != last:
                    owner.append(found)
                    upto.append(0)
                    last = found
                upto[-1] = min(ends, end)
                if ends >= end:
                    break
        if reach[node] < end:
            # This request goes on where all before it end; whatever is deeper is new.
            if node not in further:
                upto[-1] = reach[node]
                further[node] = [(owners[node], reach[node])]
            further[node].append((row, end))
            reach[node] = end
        known.append(depth)
        latest.append(before)
        num_segments.append(len(owner) - first_segment)
        for name in path[depth:]:
            depth += 1
            children[node * num_codes + name] = node = len(owners)
            owners.append(row)
            last_at.append(row)
            reach.append(min(depth * block_tokens, prompt))
    shared = Shared(np.array(owner, dtype=np.int64), np.array(upto, dtype=np.int64), offsets_of(num_segments))
    return Beginnings(np.array(known, dtype=np.int64), np.array(latest, dtype=np.int64), shared)
