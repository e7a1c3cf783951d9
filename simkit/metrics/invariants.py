"""What must hold at the end of every run, whatever the scenario; checked always, never switched off.

Raises CheckError naming the request.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from simkit.errors import CheckError
from simkit.metrics import record as rec
from simkit.metrics.record import Record
from simkit.types import Ints


def check_run(record: Record, unfinished: int) -> None:
    """Check that no request and no token is lost, that times are in order, and Little's law.

    The law is an identity of integers here: the integral of the number in the system is the sum of the times in it.
    """
    table = record.requests.to_dict()
    if len(record.requests) + unfinished != record.num_arrived:
        raise CheckError(
            f"broken invariant: {record.num_arrived} requests arrived, {len(record.requests)} left and "
            f"{unfinished} are still inside"
        )
    delivered = int(table["output_tokens"].sum())
    if delivered != record.num_tokens_delivered:
        raise CheckError(f"broken invariant: {record.num_tokens_delivered} tokens delivered, requests hold {delivered}")
    _check_stamps(table)
    if unfinished == 0 and record.in_system_area_ns != record.sojourn_ns:
        raise CheckError(
            f"broken invariant (Little's law): integral of the number in system is {record.in_system_area_ns} ns, "
            f"sojourn times add up to {record.sojourn_ns} ns"
        )


def _check_stamps(table: dict[str, Ints]) -> None:
    """arrival <= first scheduled <= first token <= last token for everybody who was served."""
    served = table["status"] == rec.FINISHED
    stamps = ("arrival_ns", "first_scheduled_ns", "first_token_ns", "last_token_ns")
    for earlier, later in pairwise(stamps):
        wrong = np.flatnonzero(served & (table[earlier] > table[later]))
        if len(wrong):
            row = int(wrong[0])
            raise CheckError(
                f"broken invariant: request {int(table['id'][row])} has {earlier} {int(table[earlier][row])} "
                f"after {later} {int(table[later][row])}"
            )
    short = np.flatnonzero(served & (table["output_tokens"] < 1))
    if len(short):
        raise CheckError(f"broken invariant: request {int(table['id'][short[0]])} finished without a token")
