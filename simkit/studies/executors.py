"""Where the items of a study are computed: in this process, in processes of this machine, or on Dask.

Owns processes and the network, and what happens when a worker dies; knows nothing of what an item is. What makes
processes, and Dask, are imported when they are used.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import re
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from queue import SimpleQueue
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

from simkit.errors import InputError

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.context import BaseContext

ANSWER_S = 3.0
"""How long a Dask scheduler may take to answer, and to name a worker."""

AUTO = "auto"
_ADDRESS = re.compile(r"(?:(?:tcp|tls)://)?(\[[^\]\s]+\]|[^\[\]/:\s]+):(\d{1,5})")

Work = Callable[[Any], Any]
Submit = Callable[[Work, Any], Future[Any]]
"""What an executor calls so."""


@dataclass(frozen=True, slots=True)
class Lost:
    """Instead of a result: the worker died, or the result never came back."""

    reason: str


@dataclass(frozen=True, slots=True)
class _Pool:
    """A place where work is done, `at_once` items at a time.

    `patience`: after how many losses an item is tried alone, to see whether it is it. `is_alive`: whether it makes
    sense to try again.
    """

    open: Callable[[], AbstractContextManager[Submit]]
    at_once: int
    patience: int
    why_lost: Callable[[Exception], str]
    is_alive: Callable[[], bool]


def is_here(num_items: int, jobs: int | None, dask: str | None) -> bool:
    """Whether `spread` computes so many items in this process."""
    return dask is None and _num_processes(num_items, jobs) == 1


def spread(
    work: Work,
    items: Sequence[Any],
    jobs: int | None,
    dask: str | None,
    wanted: Callable[[int], bool] = lambda index: True,
    here: Callable[[int], Any] | None = None,
) -> Iterator[tuple[int, Any]]:
    """(index, ``work(item)``) of every item, as they finish; `Lost` where work killed its worker even when alone.

    `work` is a function of a module and does not raise. Items that are not `wanted` when their turn comes are left
    out. `jobs` is the number of processes, None for one a core; one of them is this one, where ``here(index)`` may do
    the same as ``work(item)``.
    """
    if is_here(len(items), jobs, dask):
        for index, item in enumerate(items):
            if wanted(index):
                yield index, work(item) if here is None else here(index)
    elif items:
        number = _num_processes(len(items), jobs)
        with _local_pool(work, number) if dask is None else _dask_pool(dask, number) as pool:
            yield from _persist(pool, work, items, wanted)


def _persist(pool: _Pool, work: Work, items: Sequence[Any], wanted: Callable[[int], bool]) -> Iterator[tuple[int, Any]]:
    """Try everything until each item has a result, or was alone when its worker died."""
    losses = dict.fromkeys(range(len(items)), 0)
    while losses:
        suspects = [index for index, count in losses.items() if count >= pool.patience]
        batch = suspects[:1] or list(losses)
        for index, result in _run(pool, work, ((index, items[index]) for index in batch if wanted(index))):
            if isinstance(result, Lost) and not suspects and pool.is_alive():
                losses[index] += 1
            else:
                del losses[index]
                yield index, result
        for index in [index for index in losses if not wanted(index)]:
            del losses[index]


def _run(pool: _Pool, work: Work, calls: Iterator[tuple[int, Any]]) -> Iterator[tuple[int, Any]]:
    """(index, result or Lost) for the calls that were taken, as they finish; none is taken after a process died."""
    taken: dict[Future[Any], int] = {}
    finished: SimpleQueue[Future[Any]] = SimpleQueue()

    def take() -> None:
        for index, item in islice(calls, pool.at_once - len(taken)):
            future = submit(work, item)
            taken[future] = index
            future.add_done_callback(finished.put)

    with pool.open() as submit, contextlib.suppress(BrokenExecutor):
        take()
        while taken:
            future = finished.get()
            index = taken.pop(future)
            try:
                result = future.result()
            except Exception as error:
                result = Lost(pool.why_lost(error))
            yield index, result
            take()


# --- processes of this machine ----------------------------------------------------------------------------------------
def _num_processes(num_items: int, jobs: int | None) -> int:
    """Processes for so many items; 1, which is this one, where others cannot be started."""
    number = max(1, min(jobs or usable_cores(), num_items))
    return number if number > 1 and _can_start() else 1


def _can_start() -> bool:
    import multiprocessing

    try:
        _context().Lock()
    except (ImportError, OSError):
        return False
    return not multiprocessing.current_process().daemon


def _context() -> BaseContext:
    """Processes that are copies of one that has loaded what work needs; where there are no copies, each loads it."""
    import multiprocessing

    return multiprocessing.get_context(
        "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
    )


@contextlib.contextmanager
def _local_pool(work: Work, jobs: int) -> Iterator[_Pool]:
    """The death of one process takes all the others along, so no more items are on their way than there are processes:
    few are under suspicion when one dies."""
    yield _Pool(lambda: _processes(work, jobs), jobs, patience=2, why_lost=_why_died, is_alive=lambda: True)


@contextlib.contextmanager
def _processes(work: Work, jobs: int) -> Iterator[Submit]:
    """Processes that end with the block, at once where it is left by an error or an interrupt.

    A thread starts them: no interrupt reaches it, so that none is left half begun, and none reaches what it starts.
    """
    from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

    context = _context()
    context.set_forkserver_preload([work.__module__])
    theirs, ours = context.Pipe(duplex=False)
    executor = ProcessPoolExecutor(jobs, mp_context=context, initializer=_begin, initargs=(theirs,))

    def submit(work: Work, item: Any) -> Future[Any]:
        with _no_script():
            return executor.submit(work, item)

    try:
        with ThreadPoolExecutor(1, initializer=_hold_interrupts) as starter:
            yield lambda work, item: starter.submit(submit, work, item).result()
    except BaseException:
        ours.close()
        raise
    finally:
        executor.shutdown(cancel_futures=True)
        ours.close()
        theirs.close()


def _hold_interrupts() -> None:
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})


@contextlib.contextmanager
def _no_script() -> Iterator[None]:
    """New processes import the script that Python was started with, unless there is none; no work needs it."""
    script = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = script


def _begin(pipe: Connection) -> None:
    """What a process does first. It ends, whatever it is at, when the other end of `pipe` does; an interrupt is for the
    process that has that end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def wait() -> None:
        with contextlib.suppress(EOFError, OSError):
            pipe.recv()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def _why_died(error: Exception) -> str:
    if isinstance(error, BrokenExecutor):
        return "the process that simulated it died (killed, or out of memory)"
    raise error


CPU_LIMITS = (
    ("/sys/fs/cgroup/cpu.max",),
    ("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "/sys/fs/cgroup/cpu/cpu.cfs_period_us"),
)
"""Where a container says how many us of processor time it has in how many: its second version, and its first."""


def usable_cores() -> int:
    """Processors that this process may use; knows affinity and the limits of a container."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for files in CPU_LIMITS:
        with contextlib.suppress(OSError, ValueError):  # no such limit, or "max"
            quota, period = (int(word) for name in files for word in Path(name).read_text().split())
            if quota > 0 < period:
                cores = min(cores, math.ceil(quota / period))
    return max(1, cores)


# --- Dask -------------------------------------------------------------------------------------------------------------
def _why_lost(error: Exception) -> str:
    kind = type(error).__name__
    if kind == "KilledWorker":
        return "the Dask workers that simulated it died (killed, or out of memory)"
    if "Cancelled" in kind:
        return "the Dask scheduler went away"
    text = " ".join(str(error).split())[:200]
    return f"lost on a Dask worker: {kind}" + (f": {text}" if text else "")


@contextlib.contextmanager
def _dask_pool(address: str, jobs: int) -> Iterator[_Pool]:
    """The workers of the scheduler at `address`, or of a local cluster of `jobs` processes for ``auto``.

    Dask tries the items of a dead worker again on others, up to three times; it has all items at once, since workers
    may come later.
    """
    label = f"--dask {address}"
    match = _ADDRESS.fullmatch(address)
    if address != AUTO and match is None:
        raise InputError(f"{label}: expected {AUTO}, or a scheduler such as tcp://host:8786")
    try:
        from dask import distributed
    except ImportError:
        raise InputError(f'{label}: Dask is not installed; pip install "simkit-llm[distributed]"') from None
    new_cluster, new_client = cast(Any, distributed.LocalCluster), cast(Any, distributed.Client)
    with _silent("distributed"), contextlib.ExitStack() as stack:
        try:
            if match is None:
                # As in local processes: no limit of memory, nothing that listens to others. Without an address of its
                # own the web server would try Dask's usual port, and warn when that is taken.
                target = stack.enter_context(
                    new_cluster(
                        n_workers=jobs,
                        threads_per_worker=1,
                        processes=True,
                        host="127.0.0.1",
                        dashboard_address="127.0.0.1:0",
                        memory_limit=0,
                        silence_logs=logging.CRITICAL,
                    )
                )
            else:
                target = address
                _probe(match[1].strip("[]"), int(match[2]), encrypted=address.startswith("tls"))
            client = stack.enter_context(new_client(target, timeout=ANSWER_S, set_as_default=False))
        except (OSError, ValueError, OverflowError, AssertionError, MemoryError) as error:
            raise InputError(f"{label}: no Dask scheduler answers there ({_reason(error)})") from None
        try:
            client.wait_for_workers(1, timeout=ANSWER_S)
        except TimeoutError:
            raise InputError(f"{label}: the scheduler has no workers; start some with `dask worker`") from None
        yield _Pool(
            lambda: _client_executor(client),
            sys.maxsize,
            patience=1,
            why_lost=_why_lost,
            is_alive=lambda: bool(client.status == "running"),
        )


@contextlib.contextmanager
def _client_executor(client: Any) -> Iterator[Submit]:
    executor: Executor = client.get_executor(pure=False)
    try:
        yield executor.submit
    finally:
        executor.shutdown(wait=False)


def _probe(host: str, port: int, encrypted: bool) -> None:
    """Raise OSError unless something like Dask listens there: the client may wait for ever for anything else.

    Dask speaks first, unless it is encrypted, and begins with the length of what it says in 8 bytes.
    """
    with socket.create_connection((host, port), timeout=ANSWER_S) as probe:
        head = b"\0" * 8 if encrypted else probe.recv(8)
    if len(head) != 8 or int.from_bytes(head, "little") >> 32:
        raise OSError("something else listens there")


def _reason(error: BaseException) -> str:
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return " ".join(text.split())[:120]


@contextlib.contextmanager
def _silent(package: str) -> Iterator[None]:
    """Keep the log of a package from the terminal: what went wrong is told in our own words."""
    names = [package, *(name for name in logging.root.manager.loggerDict if name.startswith(f"{package}."))]
    before = {name: logging.getLogger(name).level for name in names}
    for name in names:
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for name, level in before.items():
            logging.getLogger(name).setLevel(level)
