"""A row of a benchmark table as a scenario, by these rules.

What a row states holds; what it leaves out is the base scenario's, else a rule below, and is told as an assumption; a
row that leaves out too much raises `Unsuitable`. Settings given for all rows come last.

- Model, GPU, engine and number format: `rows.names`; what is refused: `rows.refusals`.
- vLLM: its version where stated. Before 0.8 prompts are taken whole and go before decodes, and there is no prefix
  cache; async scheduling is on from 0.14. A fixed batch without a version is one of 2024, as 0.6.
- TensorRT-LLM and SGLang: 8,192 tokens a step and whole prompts, which are their defaults; SGLang takes prompts
  before decodes, TensorRT-LLM admits who fits to the end of the answer beside all who run
  (`capacity_scheduler_policy`). Host terms are those that ship for the engine.
- GPUs are linked by NVLink where they have it; cards with a bridge only in pairs; several nodes need `hardware.link`.
- A GPU whose part is not stated is the SXM part; half of the draws for its interval take the PCIe card.
- fp8: the KV cache is in 16 bits, but in fp8 for NVIDIA's own checkpoints, which TensorRT-LLM takes.
- Lengths are alike, but where the benchmark draws them: InferenceX from 0.8 of the stated length to it.
- `kv_cache_tokens`: so many whole blocks, beside the block that the scheduler keeps as a dummy.
- When requests come: a finite rate is Poisson; `max_concurrency` is a closed loop; a rate of inf sends all at once; so
  does a fixed batch (`batch_size`). Of several the first of these counts; a rate of inf is the last.
- Lengths are the same for all requests but where `other_config` says ``generated N``: the outputs then add up to N.
- Prompts share nothing, but for `cached_prompt_share` of each, which is alike in all of them and in the prefix cache
  from the start.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from simkit.errors import InputError
from simkit.latency.link import NODE_GPUS
from simkit.scenario import Scenario, apply_sets, from_labelled
from simkit.scenario.workload import AllAtOnce, ClosedLoop
from simkit.scenario.yaml import parse_set, set_label
from simkit.specs.hardware import list_gpus, load_gpu
from simkit.specs.model_spec import ModelSpec
from simkit.validation.rows import engine as row_engine
from simkit.validation.rows.names import PCIE_PART, PROFILE_OF, SGLANG, TRTLLM, EngineName, gpu_of, model_of
from simkit.validation.rows.read import CACHED, LENGTHS, Row, Section
from simkit.validation.rows.refusals import TOO_FAST, Assumptions, Unsuitable, is_impossible, refuse, shares_experts

SECTIONS = ("engine", "hardware", "latency", "workload")
"""Made of what each row states."""

CONTEXT_TOKENS = 8192
"""`max_model_len` where the row does not state it, unless its requests are longer or the model allows less."""

CONTEXT_ASSUMED = (
    f"max_model_len not stated: {CONTEXT_TOKENS}, or what requests need, or what the model allows, or the pool holds,"
    " or the budget where prompts are whole"
)
HOST_OF = {TRTLLM: "trt-llm", SGLANG: "sglang"}
"""Engines whose host terms are not vLLM's."""

BRIDGED = ("a100-pcie-40gb", "a100-pcie-80gb", "h100-pcie-80gb", "rtx-3090", "rtx-a6000")
"""GPUs whose NVLink bridge joins two cards only (their data sheets)."""

_RUNNING = re.compile(r"\bmax logged running\s+(\d{1,9})\b", re.IGNORECASE)
_NODES = re.compile(r"\b(?:[2-9]|\d\d) nodes\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class RowRun:
    """A row that can be simulated.

    `engine` is family and version, which share their host terms. `concurrency`: clients, batch or requests at once;
    None at a finite rate. `assumed`: what the row left open, in words that are the same for all rows alike. `or_else`:
    the scenario if the GPU is the other part that its name may stand for.
    """

    row: Row
    scenario: Scenario
    engine: str
    concurrency: int | None
    assumed: tuple[str, ...]
    or_else: Scenario | None = None

    @property
    def logged_running(self) -> int | None:
        """The largest number of running sequences that the engine logged."""
        found = _RUNNING.search(self.row.text("other_config"))
        return int(found[1]) if found is not None else None


def run_of(row: Row, base: Scenario | None = None, sets: tuple[str, ...] = ()) -> RowRun:
    """The simulation of a row. Raises Unsuitable, and InputError as `from_labelled` does."""
    assumed = Assumptions()
    refuse(row)
    model, stated_format, unsure = model_of(row.text("model"))
    if unsure is not None:
        assumed.add(unsure, "model")
    own = {} if base is None else base.engine.model_dump(mode="json", exclude_unset=True)
    stated = row_engine.stated(row, model, stated_format, assumed)
    last = given_in(sets, "engine")
    stated |= row_engine.blocks(row, own | stated | last)
    known = own | stated | last
    name = row_engine.name_of(row, known, assumed)
    rules = row_engine.rules(name, _context(row, model, name, known, assumed), known, assumed)
    rules |= row_engine.kv_rule(row, name, known, assumed) | row_engine.cached(cached_share(row), known)
    engine = rules | own | stated
    _check_budget(name, engine | last)
    gpu = _gpu(row, given_in(sets, "hardware"), assumed)
    hardware = _hardware(row, gpu, given_in(sets, "hardware"), assumed)
    if hardware.get("expert_parallel") and not model.is_moe:
        raise Unsuitable("expert parallelism of a model without experts")
    latency = _latency(name, gpu, assumed)
    data: Section = {
        "name": "row",
        "model": model.name,
        "hardware": hardware,
        "engine": engine,
        "latency": latency,
        "workload": load_of(row, assumed),
        # A benchmark counts every request.
        "warmup": "none",
    }
    given = {*(f"engine.{key}" for key in known), *(parse_set(text)[0] for text in sets)}
    if base is not None:
        data["seed"] = base.seed
        given |= _take_over(hardware, latency, base)
        assumed.add("what rows leave open of engine, latency and interconnect: as the scenario has it")
    scenario = from_labelled(data, {}, row_engine.keeping_host(sets, latency))
    _check(row, model, scenario)
    if scenario.engine.enable_prefix_caching and scenario.workload.prefix is None:
        assumed.add("a prefix cache that is empty at the start, and prompts that share nothing")
    if row.text("other_config"):
        assumed.add("other_config: only generated tokens, running sequences, nodes and parallelism are read")
    if base is not None and base.base_dir is not None:
        scenario = scenario.based_at(base.base_dir)
    open_part = given.isdisjoint(("hardware.gpu", "hardware.interconnect", "hardware.link", "latency.profile"))
    other = _other_part(row, scenario) if open_part else None
    return RowRun(row, scenario, name.label, _at_once(scenario), assumed.holding(given), other)


def _other_part(row: Row, scenario: Scenario) -> Scenario | None:
    """The scenario on the card of the same name; None where the row says which part it is, or there is no card."""
    gpu, left_open = gpu_of(row.text("gpu"))
    if left_open is None or gpu not in PCIE_PART:
        return None
    card = PCIE_PART[gpu]
    values = {"gpu": card, "interconnect": "pcie"}
    keys = {f"hardware.{key}": value for key, value in values.items()} | {"latency.profile": PROFILE_OF.get(card, gpu)}
    return apply_sets(scenario, keys, label="the other part")


def _check_budget(name: EngineName, engine: Section) -> None:
    context, budget = engine["max_model_len"], engine.get("max_num_batched_tokens")
    whole = row_engine.takes_whole_prompts(name, engine)
    if whole and isinstance(context, int) and isinstance(budget, int) and budget < context:
        raise Unsuitable("a token budget below the context, with whole prompts")


def _check(row: Row, model: ModelSpec, scenario: Scenario) -> None:
    """Raise Unsuitable where the scenario cannot give what was measured."""
    ranks = scenario.hardware.tensor_parallel_size
    several = ranks > NODE_GPUS or (ranks > 1 and _NODES.search(row.text("other_config")))
    if several and scenario.hardware.link is None:
        raise Unsuitable("several nodes, and the link between them is not stated")
    most = scenario.workload.max_tokens
    if most is not None and most < math.ceil(row.numbers["output_len"]):
        raise Unsuitable("answers longer than workload.max_tokens, which would cut them")
    if scenario.engine.max_model_len is not None and longest_tokens(row) > scenario.engine.max_model_len:
        raise Unsuitable("requests longer than max_model_len")
    whole = generated_tokens(row) is None and _shortest_share(row) is None
    if is_impossible(row, model, scenario, whole_answers=whole):
        raise Unsuitable(TOO_FAST)


def _at_once(scenario: Scenario) -> int | None:
    """Clients or batch; None at a rate."""
    arrivals = scenario.workload.arrivals
    if isinstance(arrivals, ClosedLoop):
        return arrivals.concurrency
    return scenario.workload.num_requests if isinstance(arrivals, AllAtOnce) else None


def longest_tokens(row: Row) -> int:
    """Prompt and output of the longest request."""
    return math.ceil(row.numbers["input_len"]) + math.ceil(row.numbers["output_len"])


def _gpu(row: Row, last: Section, assumed: Assumptions) -> str:
    """The GPU; `last` is what is set for all rows."""
    gpu, open_gpu = gpu_of(row.text("gpu"))
    if open_gpu is not None:
        assumed.add(open_gpu, "hardware.gpu")
    return next((known.name for known in list_gpus() if known.name == last.get("gpu")), gpu)


def _hardware(row: Row, gpu: str, last: Section, assumed: Assumptions) -> Section:
    """The GPU, how many of them, and the link between them."""
    if row.count("tp") is None:
        assumed.add("tensor parallelism not stated: 1 GPU", "hardware.tensor_parallel_size")
    ranks = last.get("tensor_parallel_size", row.count("tp") or 1)
    hardware: Section = {"gpu": gpu, "tensor_parallel_size": ranks}
    if shares_experts(row):
        hardware["expert_parallel"] = True
    count = ranks if isinstance(ranks, int) else 1
    if count > 1 and (not load_gpu(gpu).nvlink_bytes_per_s or (count > 2 and gpu in BRIDGED)):
        hardware["interconnect"] = "pcie"
        assumed.add(f"{gpu}: linked by PCIe", "hardware.interconnect")
    return hardware


def _latency(engine: EngineName, gpu: str, assumed: Assumptions) -> Section:
    latency: Section = {"profile": PROFILE_OF.get(gpu, "auto")}
    if gpu in PROFILE_OF:
        text = f"{gpu}: the profile of {PROFILE_OF[gpu]}, scaled to its limits"
        assumed.add(text, "latency.profile", "hardware.gpu")
    if engine.family in HOST_OF:
        version = "" if engine.version is None else " {}.{}".format(*engine.version)
        latency["host"] = {"engine": f"{HOST_OF[engine.family]}{version}"}
    return latency


def _context(row: Row, model: ModelSpec, name: EngineName, known: Section, assumed: Assumptions) -> int:
    """`max_model_len`: what is known of it, else enough."""
    longest = longest_tokens(row)
    if longest > model.max_position:
        raise Unsuitable(f"requests longer than the context of {model.name}")
    stated = known.get("max_model_len")
    if isinstance(stated, int):
        return stated
    assumed.add(CONTEXT_ASSUMED, "engine.max_model_len")
    budget = known.get("max_num_batched_tokens") if row_engine.takes_whole_prompts(name, known) else None
    limits = (row_engine.pool_tokens(known), budget, model.max_position)
    return max(longest, min(CONTEXT_TOKENS, *(limit for limit in limits if isinstance(limit, int))))


def _take_over(hardware: Section, latency: Section, base: Scenario) -> set[str]:
    """What the base scenario says beside its engine and that holds for all rows; returns its keys."""
    given = base.model_dump(mode="json", exclude_unset=True)
    taken = set[str]()
    for key in ("interconnect", "link"):
        if key in given["hardware"]:
            hardware[key] = given["hardware"][key]
            taken.add(f"hardware.{key}")
    for key, value in given.get("latency", {}).items():
        if not (key == "host" and "host" in latency):
            latency[key] = value
            taken.add(f"latency.{key}")
    return taken


def places(sets: Sequence[str]) -> set[str]:
    """Where an error of these settings says that it is. InputError for one that would replace what rows state."""
    keys = [parse_set(text)[0] for text in sets]
    for key in keys:
        if key in SECTIONS:
            text = f"expected a key within it ({key}.NAME), the section is what each row states"
            raise InputError(text, where=set_label(key))
    return set(map(set_label, keys))


def given_in(sets: Sequence[str], section: str) -> Section:
    """What `sets` say of the keys right below a section, the last of several."""
    parsed = [(key.rpartition("."), value) for key, value in map(parse_set, sets)]
    return {name: value for (within, _, name), value in parsed if within == section}


# --- load
LOOPS = 10
"""Requests of a client of a closed loop, where the row does not say how many there were."""

OPEN_REQUESTS = 1000
"""Requests of a rate, where the row does not say how many there were."""

NOT_STATED = "number of requests not stated: {}"
AT_A_RATE = NOT_STATED.format(f"{OPEN_REQUESTS} at a rate")
A_CLIENT = NOT_STATED.format(f"{LOOPS} a client")
AT_ONCE = NOT_STATED.format(f"{OPEN_REQUESTS} at once")
REQUESTS_UNSTATED = (AT_A_RATE, A_CLIENT, AT_ONCE)
"""What is assumed of a row that does not say how many requests there were."""

MOST_LISTED = 1_000_000
"""Requests whose lengths are written out one by one."""

INFERENCEX_SHORTEST = 0.8
_SAID_IN = ("dataset", "workload", "other_config", "notes", "source")
_RANGE_RATIO = re.compile(r"(?<![a-z])range[ _-]ratio[ =:]*(\d*\.?\d+)", re.IGNORECASE)
_INFERENCEX = re.compile(r"\binference(?:x|max)\b|\bsource_file=20\d\d-\d\d-\d\d\.csv\b", re.IGNORECASE)
_EXACT = re.compile(r"\bexact\b|\bstdev 0\b", re.IGNORECASE)
"""What a benchmark says whose lengths are all alike."""

_GENERATED = re.compile(r"\bgenerated\s+(\d{1,12})\b", re.IGNORECASE)


def load_of(row: Row, assumed: Assumptions) -> Section:
    """The section `workload`; what it assumes is added to `assumed`."""
    rate, clients, batch = row.numbers.get("request_rate"), row.count("max_concurrency"), row.count("batch_size")
    number = row.count("num_prompts")
    arrivals: Section = {"process": "all_at_once"}
    if rate is not None and math.isfinite(rate):
        arrivals = {"process": "poisson", "rate_per_s": rate}
        if number is None:
            number = OPEN_REQUESTS
            assumed.add(AT_A_RATE, "workload.num_requests")
        if clients is not None:
            assumed.add("a rate and a cap of concurrency: the cap is left out", "workload.arrivals.process")
    elif clients is not None:
        arrivals = {"process": "closed_loop", "concurrency": clients}
        if number is None:
            number = LOOPS * clients
            assumed.add(A_CLIENT, "workload.num_requests")
    elif batch is not None:
        if number is not None and number > batch:
            raise Unsuitable("batches one after another are not simulated")
        number = number or batch
        assumed.add("a fixed batch: all at once", "workload.arrivals.process")
    elif rate is not None:
        if number is None:
            number = OPEN_REQUESTS
            assumed.add(AT_ONCE, "workload.num_requests")
    else:
        raise Unsuitable("no load is stated (rate, concurrency or batch)")
    if any(not row.numbers[name].is_integer() or row.text(name).lower().startswith("mean ") for name in LENGTHS):
        assumed.add(
            "mean lengths: requests of nearly the same length", "workload.prompt_tokens", "workload.output_tokens"
        )
    load: Section = {"num_requests": number, "arrivals": arrivals}
    if cached_share(row):
        load["prefix"] = {"groups": 1, "share": cached_share(row), "warm": True}
        assumed.add("cached_prompt_share: the first tokens of all prompts, alike and cached before", "workload.prefix")
    shortest = _shortest_share(row)
    if shortest is not None and generated_tokens(row) is None:
        assumed.add(
            f"lengths drawn by the benchmark: evenly from {shortest:g} of the stated one to it",
            "workload.prompt_tokens",
            "workload.output_tokens",
        )
        return load | {
            "prompt_tokens": _drawn(row.numbers["input_len"], shortest),
            "output_tokens": _drawn(row.numbers["output_len"], shortest),
        }
    prompts, outputs = _spread(round(row.numbers["input_len"] * number), number), _outputs(row, number, assumed)
    is_loop = arrivals["process"] == "closed_loop" and clients != 1
    if is_loop and number > 1 and outputs["dist"] == "fixed":
        assumed.add(
            "lengths that are all equal: clients go in lockstep, their prompts come at the same moment",
            "workload.prompt_tokens",
            "workload.output_tokens",
            "workload.arrivals.process",
        )
    return load | {"prompt_tokens": prompts, "output_tokens": outputs}


def cached_share(row: Row) -> float:
    """The share of each prompt that was in the prefix cache before."""
    return row.numbers.get(CACHED, 0.0)


def _shortest_share(row: Row) -> float | None:
    """The shortest length that the benchmark draws, as a share of the stated one; None where all are alike.

    InferenceX runs its client with `--random-range-ratio 0.8`: lengths are drawn evenly from 0.8 of the stated ones to
    these. Its dumps are files that are called by their date; a row may say so in words, too.
    """
    if _EXACT.search(row.text("dataset")):
        return None
    stated = next((found for name in _SAID_IN if (found := _RANGE_RATIO.search(row.text(name)))), None)
    if stated is not None:
        ratio = float(stated[1])
        return ratio if 0.0 < ratio < 1.0 else None
    is_dump = any(_INFERENCEX.search(row.text(name)) for name in _SAID_IN)
    return INFERENCEX_SHORTEST if is_dump else None


def _drawn(longest: float, share: float) -> Section:
    """Whole tokens from `share` of the longest to it."""
    high = max(1, math.floor(longest))
    return {"dist": "uniform", "low": max(1, math.floor(share * longest)), "high": high}


def generated_tokens(row: Row) -> int | None:
    """The tokens of all answers together, where ``other_config`` says ``generated N``."""
    found = _GENERATED.search(row.text("other_config"))
    return int(found[1]) if found is not None else None


def _outputs(row: Row, number: int, assumed: Assumptions) -> Section:
    """As long as asked, or, where fewer were generated in all, so many: as equal as whole tokens allow."""
    total = generated_tokens(row)
    if total is None or row.count("num_prompts") is None:
        return _spread(round(row.numbers["output_len"] * number), number)
    if not number <= total <= number * math.ceil(row.numbers["output_len"]):
        raise Unsuitable("generated tokens that do not fit the number of requests and their output length")
    if total < round(row.numbers["output_len"] * number):
        assumed.add(
            "outputs that ended before their limit: equal lengths with the total that was generated",
            "workload.output_tokens",
        )
    return _spread(total, number)


def _spread(total: int, number: int) -> Section:
    """`total` tokens over `number` requests, at least one each: two lengths that differ by one, evenly mixed."""
    low, more = divmod(max(total, number), number)
    if not more:
        return {"dist": "fixed", "value": low}
    if number > MOST_LISTED:
        raise Unsuitable(f"lengths with a fraction, of more than {MOST_LISTED:,} requests")
    return {"dist": "list", "values": [low + ((i + 1) * more // number - i * more // number) for i in range(number)]}
