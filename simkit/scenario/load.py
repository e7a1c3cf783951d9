"""The scenario file: its schema, and how to load, build, change and print one.

Attribute names are the YAML keys. Values that depend on the GPU or the model stay None here and are resolved by the
engine's builder; a resolved scenario is an ordinary `Scenario` with those values written in.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, PrivateAttr, ValidationError, model_validator

from simkit.errors import InputError
from simkit.scenario import yaml as io
from simkit.scenario.engine import Engine, Failure, Hardware, Latency, Slo, Warmup, check_failures
from simkit.scenario.explain import Origin, explain, is_text, key_error
from simkit.scenario.types import Name, PositiveInt, Replications, Seed, Strict, Text, conflict
from simkit.scenario.workload import (
    Workload,
)

# The arms of a comparison serve the same customers and are named by the comparison.
NOT_IN_VARIANTS = ("name", "seed", "replications", "variants")
_FORBIDDEN = "expected a key under which arms may differ, not name, seed, replications or variants"


class Scenario(Strict):
    """One scenario. Immutable; change it with `apply_sets`, print it with `to_dict`."""

    name: Name = "scenario"
    model: Text
    hardware: Hardware
    replicas: Annotated[PositiveInt, Field(le=4096)] = 1
    router: Literal["round_robin", "least_outstanding", "prefix_affinity"] = "round_robin"
    failures: Annotated[tuple[Failure, ...], Field(strict=False)] = ()
    engine: Engine = Engine()
    workload: Workload
    latency: Latency = Latency()
    slo: Slo | None = None
    seed: Seed = 0
    replications: Replications = 1
    warmup: Warmup = "auto"
    variants: dict[Name, dict[str, Any]] = Field(default_factory=dict)

    _base_dir: Path | None = PrivateAttr(default=None)
    _origin: Origin = PrivateAttr(default_factory=Origin)

    @model_validator(mode="after")
    def _check(self) -> Self:
        check_failures(self.failures, self.replicas)
        trace = self.workload.trace
        if trace is not None and trace.warmup_s and self.warmup not in ("auto", "none"):
            where = ("workload", "trace", "warmup_s")
            raise conflict(("warmup",), f"none beside {'.'.join(where)}, which says what is not measured", "both")
        return self

    @property
    def base_dir(self) -> Path | None:
        """Folder of the file it came from: relative paths inside the scenario start there. None = working directory."""
        return self._base_dir

    def based_at(self, folder: Path) -> Scenario:
        """A copy whose relative paths start at `folder`."""
        copy = self.model_copy()
        copy._base_dir = folder
        return copy

    def refuse(self, key: str, text: str) -> InputError:
        """An error about what stands at `key`, with the file and line, or the option, that set it."""
        return self._origin.error(text, tuple(key.split(".")))

    def blame(self, error: InputError) -> InputError:
        """`error` with the place that set the key it is about; as it is where it has a place, or no key of these."""
        if error.where or not error.key or error.key.partition(".")[0] not in type(self).model_fields:
            return error
        return self.refuse(error.key, error.text)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON-able data in the order of the design page, every default written out.

        `failures`, the `link` of GPUs, how experts are shared and routed to, and `drift`, `reuse` and `servegen` of the
        workload are there only where given.
        """
        data = self.model_dump(mode="json")
        for key in ("drift", "reuse", "servegen"):
            if not data["workload"][key]:
                del data["workload"][key]
        if self.hardware.link is None:
            del data["hardware"]["link"]
        if not self.hardware.expert_parallel:
            del data["hardware"]["expert_parallel"]
        if self.engine.moe_routing is None:
            del data["engine"]["moe_routing"]
        if not self.failures:
            del data["failures"]
        if self.slo is not None:
            data["slo"] = self.slo.model_dump(mode="json", exclude_none=True)
        return data


def load(path: str | Path, sets: Sequence[str] = (), workload: str | Path | None = None) -> Scenario:
    """Read a scenario file and apply ``KEY=VALUE`` settings (values are YAML).

    `workload` is a file whose `workload:` takes the place of the scenario's; relative paths in it start where those of
    the scenario do. Raises InputError, one line, for anything wrong with any of them.
    """
    text, file = io.read(path), io.one_line(path, 4096)
    if workload is None:
        return loads(text, sets, file=file, base_dir=Path(path).parent)
    other = io.one_line(workload, 4096)
    part = io.parse(io.read(workload), other).data
    if list(part) != ["workload"]:
        raise InputError(f"{other}: expected the key workload and no other, got {', '.join(map(str, part))}")
    source = io.parse(text, file)
    source.data.setdefault("name", _slug(Path(file).stem))
    source.data["workload"] = part["workload"]
    origin = Origin(file=file, root=source.root, labels={("workload",): f"--workload {other}: workload"})
    return _build(source.data, origin, sets, Path(path).parent)


def loads(text: str, sets: Sequence[str] = (), *, file: str = "scenario", base_dir: Path | None = None) -> Scenario:
    """Like `load`, from text. `file` begins the messages, and its stem is the name of a scenario that states none."""
    source = io.parse(text, file)
    source.data.setdefault("name", _slug(Path(file).stem))
    return _build(source.data, Origin(file=file, root=source.root), sets, base_dir)


REPLAYED_KEYS = ("stop", "max_tokens", "priority", "tenants", "samples", "timeout_s", "queue_limit")
"""Keys of a workload that a log leaves as they are."""


def for_replay(
    before: Scenario, trace: Mapping[str, Any], labels: Mapping[str, str], sets: Sequence[str] = ()
) -> Scenario:
    """A scenario with a log in place of its workload, but for the REPLAYED_KEYS; variants are dropped.

    `trace` has keys of `Trace`, each with what `labels` call it in messages. Its path starts at the working directory,
    and so do all others: those that start at the folder of the scenario are written anew. Raises InputError.
    """
    data = before.model_dump(mode="json", exclude_unset=True)
    data["name"] = _slug(f"{before.name}-{_stem(str(trace['path']))}")
    data["workload"] = {key: value for key, value in data["workload"].items() if key in REPLAYED_KEYS}
    data["workload"]["trace"] = dict(trace)
    data.pop("variants", None)
    if trace.get("warmup_s"):
        data.pop("warmup", None)
    folder = before.base_dir or Path()
    for section, key in ((data, "model"), (data["hardware"], "gpu"), (data.get("latency", {}), "profile")):
        beside = folder / str(section.get(key, ""))
        if section.get(key) and beside.is_file():
            section[key] = str(beside)
    origin = before._origin.copy()
    origin.labels |= {("workload", "trace", key): label for key, label in labels.items()}
    return _build(data, origin, sets, base_dir=None)


def _stem(path: str) -> str:
    """The name of a log without its folder and endings."""
    return re.sub(r"(\.(csv|jsonl?|parquet|txt|gz|zstd?))+$", "", Path(path).name, flags=re.IGNORECASE)


def from_flags(model: str, gpu: str, rate: float, prompt: int, output: int, sets: Sequence[str] = ()) -> Scenario:
    """The scenario of ``run --model M --gpu G --rate R --prompt P --output O``: Poisson arrivals, fixed lengths."""
    data: dict[str, Any] = {
        "name": _slug(f"{model}-{gpu}"),
        "model": model,
        "hardware": {"gpu": gpu},
        "workload": {
            "arrivals": {"process": "poisson", "rate_per_s": rate},
            "prompt_tokens": {"dist": "fixed", "value": prompt},
            "output_tokens": {"dist": "fixed", "value": output},
        },
    }
    flags = {
        ("model",): "--model",
        ("hardware", "gpu"): "--gpu",
        ("workload", "arrivals", "rate_per_s"): "--rate",
        ("workload", "prompt_tokens", "value"): "--prompt",
        ("workload", "output_tokens", "value"): "--output",
    }
    return from_labelled(data, flags, sets)


def from_labelled(data: dict[str, Any], labels: Mapping[tuple[str, ...], str], sets: Sequence[str] = ()) -> Scenario:
    """A scenario from plain data whose keys were given otherwise, e.g. by flags: `labels` begin the error messages."""
    return _build(io.plain(data), Origin(labels=dict(labels)), sets, base_dir=None)


def from_dict(data: Mapping[str, Any], *, label: str = "scenario") -> Scenario:
    """A scenario from plain data, e.g. the `scenario` of a manifest; `label` begins the error messages."""
    return _build(io.plain(data), Origin(file=label), (), base_dir=None)


def apply_sets(scenario: Scenario, mapping: Mapping[str, Any], *, label: str = "--set") -> Scenario:
    """A changed copy; `mapping` is dotted key -> plain value, and a mapping given as value replaces the old one whole.

    Keys the scenario never mentioned keep following their defaults. Raises InputError that begins with
    ``LABEL KEY:``; `label` says where the change came from (``--set``, ``--axis``, ``variant x``).
    """
    data = scenario.model_dump(mode="json", exclude_unset=True)
    origin = scenario._origin.copy()
    for key, value in mapping.items():
        _set(data, key, io.plain(value), f"{label} {io.one_line(key)}", origin)
    return _validate(data, origin, scenario.base_dir)


def parse_axes(scenario: Scenario, texts: Sequence[str], *, check_values: bool = True) -> dict[str, list[Any]]:
    """``KEY=A,B`` texts to dotted key -> values, each checked on `scenario`. Raises InputError.

    Without `check_values` only the keys are checked: a value that cannot be is found out by whoever tries it.
    """
    axes: dict[str, list[Any]] = {}
    for text in texts:
        key, equals, listed = text.partition("=")
        label = f"--axis {io.one_line(key)}"
        if not equals or not key.strip() or not listed.strip():
            raise InputError(f"--axis {io.one_line(text)}: expected KEY=A,B, e.g. --axis engine.max_num_seqs=32,64")
        if key in axes:
            raise InputError(f"{label}: expected each key once; list all its values after one =")
        if io.split_key(key)[0] in NOT_IN_VARIANTS:
            raise InputError(f"{label}: {_FORBIDDEN}")
        if is_text(Scenario, io.split_key(key)):
            values: list[Any] = [part.strip() for part in listed.split(",")]
        else:
            values = io.parse_value(f"[{listed}]", label)
        problem = key_error(Scenario, io.split_key(key), scenario.model_dump(mode="json", exclude_unset=True))
        if problem is not None:
            raise InputError(f"{label}: {problem}")
        for position, value in enumerate(values):
            if check_values:
                apply_sets(scenario, {key: value}, label="--axis")
            if value in values[:position]:
                raise InputError(f"{label}: expected each value once, got {value!r} twice")
        axes[key] = values
    return axes


def template() -> str:
    """The commented scenario that ``simkit init`` prints; it loads as it stands."""
    from importlib.resources import files

    return files("simkit").joinpath("data/scenario_template.yaml").read_text(encoding="utf-8")


def _slug(text: str) -> str:
    """`text` as a valid scenario name."""
    return re.sub(r"[^\w.+@-]+", "-", text).strip("-.+@")[-100:].lstrip("-.+@") or "scenario"


def _build(data: dict[str, Any], origin: Origin, sets: Sequence[str], base_dir: Path | None) -> Scenario:
    for text in sets:
        key, value = io.parse_set(text)
        raw = text.partition("=")[2].strip()
        if isinstance(value, int | float) and is_text(Scenario, io.split_key(key)):
            value = raw
        _set(data, key, value, io.set_label(key), origin)
    scenario = _validate(data, origin, base_dir)
    _check_variants(scenario, data, origin)
    return scenario


def _set(data: dict[str, Any], key: str, value: Any, label: str, origin: Origin) -> None:
    path = io.split_key(key)
    problem = key_error(Scenario, path, data)
    if problem is not None:
        raise InputError(f"{label}: {problem}")
    try:
        io.put(data, path, value)
    except InputError as error:
        raise InputError(f"{label}: {error}") from None
    origin.labels[path] = label


def _validate(data: dict[str, Any], origin: Origin, base_dir: Path | None) -> Scenario:
    try:
        scenario = Scenario.model_validate(data)
    except ValidationError as error:
        raise explain(error, Scenario, data, origin) from None
    scenario._base_dir, scenario._origin = base_dir, origin
    return scenario


def _check_variants(scenario: Scenario, data: dict[str, Any], origin: Origin) -> None:
    """Every variant must itself be a valid scenario; blame the line and the key inside `variants`."""
    for name, changes in scenario.variants.items():
        arm = io.plain(data)
        arm_origin = origin.copy()
        for key, value in changes.items():
            where, rest = origin.place(("variants", name, key))
            here = f"{where}: {rest}" if rest else where
            path = io.split_key(key)
            problem = key_error(Scenario, path, arm)
            if problem is None and path[0] in NOT_IN_VARIANTS:
                problem = _FORBIDDEN
            if problem is not None:
                raise InputError(f"{here}: {problem}")
            try:
                io.put(arm, path, io.plain(value))
            except InputError as error:
                raise InputError(f"{here}: {error}") from None
            arm_origin.labels[path] = here
        _validate(arm, arm_origin, None)
