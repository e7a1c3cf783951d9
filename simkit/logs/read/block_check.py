"""What an entry of a log's prompt block identities stands for, checked on every row."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from simkit import scenario
from simkit.errors import InputError
from simkit.logs.read.log import MAX_BAD_SHARE, NUM_NAMED_LINES
from simkit.logs.read.record import Blocks, Columns
from simkit.types import Ints

Bools = npt.NDArray[np.bool_]

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
        told = "" if own in (None, spec.hash_block_tokens) else f" in place of the format's {own}"
        return spec.hash_block_tokens, [f"a prompt block is {spec.hash_block_tokens} tokens{told}, as told"]
    if own is not None and np.mean(_fits(prompts, counts, own)) >= MIN_FIT:
        return own, []
    fitting = [size for size in USUAL_TOKENS if np.all(_fits(prompts, counts, size))]
    if len(fitting) == 1:
        told = "" if own is None else f", not the format's {own}"
        return fitting[0], [f"a prompt block is {fitting[0]} tokens{told}: the only usual size that fits all rows"]
    if own is not None:
        return own, []
    found = f"sizes {', '.join(map(str, fitting))} all fit" if fitting else "none of the usual sizes fits"
    return None, [f"prompt block identities are not used: {found} (hash_block_tokens says what one stands for)"]


def _misfit_note(columns: Columns, misfits: Ints, size: int, spec: scenario.Trace, num_given: int) -> str:
    assert columns.blocks is not None
    row = int(misfits[0])
    prompt, count = int(columns.prompt_tokens[row]), len(columns.blocks.of(row))
    lines = ", ".join(str(line) for line in columns.line[misfits[:NUM_NAMED_LINES]].tolist())
    more = ", ..." if len(misfits) > NUM_NAMED_LINES else ""
    found = (
        f"{len(misfits)} of {num_given} rows have another number of block identities than their prompt has blocks of "
        f"{size} tokens (line{'s' if len(misfits) > 1 else ''} {lines}{more}; line {columns.line[row]}: {prompt} "
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
    ids = blocks.ids[np.repeat(keep, counts)]
    return Blocks(ids, np.concatenate([[0], np.cumsum(np.where(keep, counts, 0))]).astype(np.int64))
