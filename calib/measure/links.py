"""All-reduce between GPUs of this machine, by PyTorch's process groups: NCCL on GPUs, Gloo on a CPU for tests.

Owns the processes, one a GPU. All of them take the same number of calls and samples, those that the slowest of them
asks for: a call that one of them leaves out would leave the others waiting.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import tempfile
import time
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from calib.measure.bench import Refused, first_line
from calib.measure.device import Device, import_torch
from calib.measure.shapes import Point
from calib.measure.timing import CudaTimer, GroupTimer, Timing

START_S = 120.0
"""The longest that processes may take to find each other: each of them imports PyTorch and opens its GPU."""

ANSWER_S = 60.0
"""The longest that they may take for one size, beside the time that they are given for it."""

_END_S = 10.0
_CAPTURE = "thread_local"
"""NCCL's watchdog asks the driver things of its own while a graph is captured, which this mode allows."""


@dataclass(frozen=True, slots=True)
class _Rank:
    """What a process of a group is told. `index`: its CUDA device, None on a CPU."""

    rank: int
    world_size: int
    index: int | None
    dtype: str
    store: str


class Links:
    """All-reduces between a device and its peers. Use as a context manager: it ends the processes.

    Processes stay from one size to the next of the same number of GPUs; a group that failed is not tried again.
    """

    def __init__(self, device: Device, dtype: str) -> None:
        software = device.software
        head = f"simkit {software.get('simkit', 'unknown')} torch {software['torch'].partition('+')[0]}"
        self.source = f"{head} {'gloo' if device.kind == 'cpu' else 'nccl'}"
        self._device, self._dtype = device, dtype
        self._group: _Group | None = None
        self._failed: dict[int, str] = {}

    def __enter__(self) -> Links:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        """End the processes."""
        if self._group is not None:
            self._group.close()
            self._group = None

    def time(self, point: Point, budget_s: float) -> Timing:
        """One all-reduce. Raises Refused with the reason where the GPUs cannot do it together."""
        size = point.get("world_size")
        if size in self._failed:
            raise Refused(self._failed[size])
        try:
            if self._group is None or self._group.world_size != size:
                self.close()
                self._group = _Group(self._device, self._dtype, size)
            return self._group.time(point.get("bytes"), budget_s)
        except Refused as refused:
            self._failed[size] = str(refused)
            self.close()
            raise


class _Group:
    """Processes that wait for a size: the first answers with its time, any of them with what went wrong."""

    def __init__(self, device: Device, dtype: str, world_size: int) -> None:
        self.world_size = world_size
        self._folder = tempfile.TemporaryDirectory(prefix="simkit-links-")
        store = (Path(self._folder.name) / "store").as_uri()
        spawn = multiprocessing.get_context("spawn")
        self._ends: list[Connection] = []
        self._processes: list[BaseProcess] = []
        for rank in range(world_size):
            index = device.peers[rank] if device.kind == "cuda" else None
            mine, theirs = spawn.Pipe()
            told = _Rank(rank, world_size, index, dtype, store)
            process = spawn.Process(target=_serve, args=(told, theirs), daemon=True)
            process.start()
            theirs.close()
            self._ends.append(mine)
            self._processes.append(process)
        self._wait_s = START_S

    def time(self, num_bytes: int, budget_s: float) -> Timing:
        """All-reduce of so many bytes. Raises Refused."""
        for end in self._ends:
            with contextlib.suppress(OSError):  # one that is gone is told below
                end.send((num_bytes, budget_s))
        limit_s, self._wait_s = self._wait_s + budget_s, ANSWER_S
        waiting, found = list(self._ends), None
        end_s = time.monotonic() + limit_s
        while waiting:
            ready = wait(waiting, max(0.0, end_s - time.monotonic()))
            if not ready:
                raise Refused(f"{self.world_size} GPUs did not answer within {limit_s:.0f} s")
            for end in waiting[:]:
                if end not in ready:
                    continue
                answer = _answer(end)
                if isinstance(answer, str):
                    raise Refused(answer)
                found = answer if end is self._ends[0] else found
                waiting.remove(end)
        assert found is not None
        return found

    def close(self) -> None:
        """Let the processes go, and end those that do not."""
        for end in self._ends:
            with contextlib.suppress(OSError):
                end.send(None)
        end_s = time.monotonic() + _END_S
        for process in self._processes:
            process.join(max(0.0, end_s - time.monotonic()))
            if process.is_alive():
                process.terminate()
                process.join()
        for end in self._ends:
            end.close()
        self._folder.cleanup()


def _answer(end: Connection) -> Timing | str:
    """What a process says, or that it is gone."""
    try:
        answer: Timing | str = end.recv()
    except (EOFError, OSError):
        return "a process of the group ended"
    return answer


# --- in a process of the group ----------------------------------------------------------------------------------------
def _serve(told: _Rank, asked: Connection) -> None:
    """Time one size after the other, until there is no more to do."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the sweep ends its processes when it is interrupted
    _silence()
    try:
        torch, device = _join(told)
        while (size := asked.recv()) is not None:
            num_bytes, budget_s = size
            asked.send(_time(torch, device, told, num_bytes, budget_s))
        torch.distributed.destroy_process_group()
    except EOFError:
        return  # the sweep is gone
    except Exception as error:
        with contextlib.suppress(OSError):
            asked.send(first_line(error))


def _silence() -> None:
    """Nothing of what libraries print: stdout is the command's, and errors travel as answers."""
    null = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(null, stream)


def _join(told: _Rank) -> tuple[Any, Any]:
    """PyTorch and the device of this process, which is in the group from now on."""
    torch = import_torch()
    if told.index is None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        torch.set_num_threads(1)
        device = torch.device("cpu")
    else:
        device = torch.device("cuda", told.index)
        torch.cuda.set_device(device)
    torch.distributed.init_process_group(
        "gloo" if told.index is None else "nccl",
        init_method=told.store,
        rank=told.rank,
        world_size=told.world_size,
        timeout=timedelta(seconds=START_S),
    )
    return torch, device


def _time(torch: Any, device: Any, told: _Rank, num_bytes: int, budget_s: float) -> Timing:
    """One all-reduce of `num_bytes`, in place."""
    dtype = getattr(torch, told.dtype)
    values = torch.zeros(num_bytes // dtype.itemsize, dtype=dtype, device=device)
    call = partial(torch.distributed.all_reduce, values)
    agree = partial(_slowest, torch, device)
    if told.index is None:
        return GroupTimer(agree).time(call, budget_s)
    return CudaTimer(torch, agree=agree, capture_mode=_CAPTURE).time((call,), budget_s)


def _slowest(torch: Any, device: Any, value: float) -> float:
    """The largest of what the processes say, known to all of them."""
    largest = torch.tensor([value], dtype=torch.float64, device=device)
    torch.distributed.all_reduce(largest, op=torch.distributed.ReduceOp.MAX)
    return float(largest.item())
