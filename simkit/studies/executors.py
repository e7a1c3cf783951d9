"""Where the tasks of a study are computed: in this process, in local processes, or on Dask. All through joblib.

Owns processes and the network, and what happens when a worker dies; knows nothing of what a task is. Joblib and Dask
are imported when they are used.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import socket
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor
from dataclasses import dataclass
from typing import Any, Protocol, cast

from simkit.errors import InputError

ANSWER_S = 3.0
"""How long a Dask scheduler may take to answer, and to name a worker."""

AUTO = "auto"
_ADDRESS = re.compile(r"(?:(?:tcp|tls)://)?(\[[^\]\s]+\]|[^\[\]/:\s]+):(\d{1,5})")

Work = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Lost:
    """Instead of a result: the worker died, or the result never came back."""

    reason: str


class Pool(Protocol):
    """A place where work is done. `patience`: after how many losses a task is tried alone, to see whether it is it."""

    patience: int

    def run(self, work: Work, calls: Iterator[tuple[int, Any]]) -> Iterator[tuple[int, Any]]:
        """(index, result or Lost) for the calls that were taken, as they finish. Not every call needs to be taken."""

    def is_alive(self) -> bool:
        """Whether it makes sense to try again."""


def spread(
    work: Work, items: Sequence[Any], jobs: int, dask: str | None, wanted: Callable[[int], bool]
) -> Iterator[tuple[int, Any]]:
    """(index, ``work(item)``) of every item, as they finish; `Lost` where work killed its worker even when alone.

    `work` is a function of a module and does not raise. Items that are not `wanted` when their turn comes are left
    out. `jobs` is at least 2 unless there is a `dask` to go to. Items should be slotted dataclasses without a
    ``__weakref__``: joblib copies anything else to single Dask workers, and what is lost with one is lost for good.
    """
    with _dask_pool(dask, jobs) if dask is not None else contextlib.nullcontext(_Local(max(2, jobs))) as pool:
        yield from _persist(pool, work, items, wanted)


def _persist(pool: Pool, work: Work, items: Sequence[Any], wanted: Callable[[int], bool]) -> Iterator[tuple[int, Any]]:
    """Try everything until each item has a result, or was alone when its worker died."""
    losses = dict.fromkeys(range(len(items)), 0)
    while losses:
        suspects = [index for index, count in losses.items() if count >= pool.patience]
        batch = suspects[:1] or list(losses)
        for index, result in pool.run(work, ((index, items[index]) for index in batch if wanted(index))):
            if isinstance(result, Lost) and not suspects and pool.is_alive():
                losses[index] += 1
            else:
                del losses[index]
                yield index, result
        for index in [index for index in losses if not wanted(index)]:
            del losses[index]


class _Local:
    """Processes of this machine (joblib's loky). The death of one takes all the others along."""

    patience = 2

    def __init__(self, jobs: int) -> None:
        self._jobs = jobs

    def is_alive(self) -> bool:
        """Whether it can be asked again."""
        return True  # joblib starts new processes

    def run(self, work: Work, calls: Iterator[tuple[int, Any]]) -> Iterator[tuple[int, Any]]:
        """(index, result) of each call as it ends; `Lost` for those that were under way when a process died."""
        import joblib

        out: dict[int, None] = {}

        def delayed() -> Iterator[Any]:
            for index, item in calls:
                out[index] = None
                yield joblib.delayed(_call)(index, work, item)

        # No more tasks on their way than there are processes, so that few are under suspicion when one dies.
        parallel = joblib.Parallel(
            n_jobs=self._jobs,
            backend="loky",
            batch_size=1,
            pre_dispatch=self._jobs,
            return_as="generator_unordered",
            max_nbytes=None,
        )
        try:
            with _quiet_tracker(), contextlib.closing(parallel(delayed())) as results:
                for index, result in results:
                    del out[index]
                    yield index, result
        except BrokenExecutor:
            for index in list(out):
                yield index, Lost("the process that simulated it died (killed, or out of memory)")


TRACKER = "joblib.externals.loky.backend.resource_tracker"


@contextlib.contextmanager
def _quiet_tracker() -> Iterator[None]:
    """Keep loky's tracker of semaphores from warning that somebody was faster to remove one, after an interrupt.

    It is a process of its own, so that only its environment reaches it.
    """
    before = os.environ.get("PYTHONWARNINGS")
    os.environ["PYTHONWARNINGS"] = ",".join(filter(None, [before, f"ignore::UserWarning:{TRACKER}"]))
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONWARNINGS"]
        else:
            os.environ["PYTHONWARNINGS"] = before


def _call(index: int, work: Work, item: Any) -> tuple[int, Any]:
    """What a local process does. An interrupt is for the parent, who then ends its processes."""
    import signal

    with contextlib.suppress(ValueError):  # not in the main thread
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    return index, work(item)


class _Dask:
    """The workers of a Dask scheduler, which tries the tasks of a dead worker again on others, up to three times."""

    patience = 1

    def __init__(self, client: Any) -> None:
        self._client = client

    def is_alive(self) -> bool:
        """Whether the scheduler still answers."""
        return bool(self._client.status == "running")

    def run(self, work: Work, calls: Iterator[tuple[int, Any]]) -> Iterator[tuple[int, Any]]:
        """(index, result) of each call as it ends."""
        import joblib

        parallel = joblib.Parallel(
            backend=_joblib_dask()(client=self._client),
            batch_size=1,
            pre_dispatch="all",  # Dask queues them itself, and workers may come later
            return_as="generator_unordered",
        )
        delayed = (joblib.delayed(_pair)(index, work, item) for index, item in calls)
        with contextlib.closing(parallel(delayed)) as results:
            yield from results


def _pair(index: int, work: Work, item: Any) -> tuple[int, Any]:
    return index, work(item)


def _joblib_dask() -> Any:
    """joblib's Dask backend with two holes mended.

    It reports a task that Dask gave up (its worker died too often, its code cannot be imported, the scheduler went
    away) to nobody, and Parallel would wait for ever; and with one worker it would compute in this process.
    """
    from joblib._dask import DaskDistributedBackend

    class Backend(DaskDistributedBackend):  # type: ignore[misc]
        def effective_n_jobs(self, n_jobs: int) -> int:
            return max(2, int(super().effective_n_jobs(n_jobs)))

        def submit(self, func: Any, callback: Callable[[Any], None]) -> Any:
            ((_, (index, *_rest), _),) = func.items

            def tell(outcome: Any) -> None:
                callback(outcome if isinstance(outcome, list) else [(index, Lost(_why_lost(outcome)))])

            future = super().submit(func, tell)
            future.add_done_callback(lambda done: tell(done.exception()) if done.exception() is not None else None)
            return future

    return Backend


def _why_lost(error: Any) -> str:
    kind = type(error).__name__
    if kind == "KilledWorker":
        return "the Dask workers that simulated it died (killed, or out of memory)"
    if "Cancelled" in kind:
        return "the Dask scheduler went away"
    text = " ".join(str(error).split())[:200]
    return f"lost on a Dask worker: {kind}" + (f": {text}" if text else "")


@contextlib.contextmanager
def _dask_pool(address: str, jobs: int) -> Iterator[_Dask]:
    """A client of the scheduler at `address`, or of a local cluster of `jobs` processes for ``auto``."""
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
        yield _Dask(client)


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


@contextlib.contextmanager
def no_warnings() -> Iterator[None]:
    """joblib warns of work that was stopped, on purpose or by the death of a worker: both are told otherwise."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=UserWarning, module=r"joblib\..*")
        yield


def usable_cores() -> int:
    """Processors that this process may use; knows affinity and the limits of a container."""
    if hasattr(os, "sched_getaffinity") and len(os.sched_getaffinity(0)) == 1:
        return 1
    import joblib

    return int(joblib.cpu_count())
