"""The `config.json` of a model of the Hugging Face hub: from the cache on this machine, else asked for.

Owns where the cache lies and how long an answer is waited for. The network is used only here, by `huggingface_hub`.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import re
import threading
from pathlib import Path
from typing import Any

TIMEOUT_S = 10.0
FILES = ("config.json", "hf_quant_config.json")
"""What is asked for; the second only where the first says nothing of a format."""

_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_TRUE = ("1", "on", "yes", "true")
_INSTALL = 'pip install "simkit-llm[hub]" asks the hub for it'
_ANSWERS = {
    "RepositoryNotFoundError": "the hub has no such model, or not for you",
    "GatedRepoError": "the hub shows it only to accounts that were let in",
    "EntryNotFoundError": "it has no config.json on the hub",
    "RemoteEntryNotFoundError": "it has no config.json on the hub",
    "LocalEntryNotFoundError": "the hub does not answer",
    "OfflineModeIsEnabled": "HF_HUB_OFFLINE is set",
}


class NoConfig(Exception):
    """There is no config, for the reason that it says."""


def is_id(name: str) -> bool:
    """Whether a name has the form of an id: owner/name."""
    return _ID.fullmatch(name) is not None


def cached_config(repo: str) -> Path | None:
    """The config of the revision that `main` was when last fetched, else of the last by name; None: not there."""
    folder = _cache() / f"models--{repo.replace('/', '--')}"
    try:
        revision = (folder / "refs" / "main").read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        revision = ""
    found = sorted(file for file in folder.glob("snapshots/*/config.json") if file.is_file())
    return next((file for file in found if file.parent.name == revision), found[-1] if found else None)


def fetched_config(repo: str) -> Path:
    """The config as the hub has it, which is then in the cache. Raises NoConfig."""
    if os.environ.get("HF_HUB_OFFLINE", os.environ.get("TRANSFORMERS_OFFLINE", "")).lower() in _TRUE:
        raise NoConfig("HF_HUB_OFFLINE is set")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")  # it reads this when it is imported
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # or it says each time that it tries again
    try:
        hub = importlib.import_module("huggingface_hub")
    except ImportError:
        raise NoConfig(_INSTALL) from None
    file = _within(lambda: Path(hub.hf_hub_download(repo_id=repo, filename=FILES[0], etag_timeout=TIMEOUT_S)))
    if "quantization_config" not in file.read_text(encoding="utf-8", errors="replace"):
        with contextlib.suppress(NoConfig):  # most models have none
            _within(lambda: Path(hub.hf_hub_download(repo_id=repo, filename=FILES[1], etag_timeout=TIMEOUT_S)))
    return file


def _cache() -> Path:
    """Where `huggingface_hub` keeps files, by its environment variables."""
    own = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE")
    if own:
        return Path(own).expanduser()
    home = os.environ.get("HF_HOME")
    if home:
        return Path(home).expanduser() / "hub"
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "huggingface" / "hub"


def _within(ask: Any) -> Path:
    """What `ask` answers within the time limit, whatever it tries again meanwhile. Raises NoConfig."""
    answer: list[Path | Exception] = []

    def work() -> None:
        try:
            answer.append(ask())
        except Exception as error:
            answer.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(TIMEOUT_S)
    if not answer:
        raise NoConfig(f"the hub does not answer within {TIMEOUT_S:g} s")
    found = answer[0]
    if isinstance(found, Exception):
        raise NoConfig(_ANSWERS.get(type(found).__name__, "the hub does not answer")) from None
    return found
