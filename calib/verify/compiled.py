"""Ahead-of-time compilation of the kernels: what fits a GPU and what spills, found without one.

`variants` lists what a calibration launches (what a usual model needs, some 60 kernels, built by the launchers' own
builders from tensors that hold no data), `compile_all` compiles it in parallel and so fills Triton's cache, and the
reports say what to distrust. Triton's compiler lets a program take more shared memory than a GPU has, which only the
launch would refuse, and says nothing of spilled registers, so both are read from the machine code here.

Needs kernels that are compiled: not under TRITON_INTERPRET=1.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from calib.kernels import gemm, mixed, paged_decode, paged_prefill, rms_norm, rotary_kv_write, silu_and_mul
from calib.kernels.launch import OPTIONS, Capability, Constant, Launch, shared_limit_bytes
from calib.kernels.paged_attention import PagedInputs

POINTER_TYPES = {
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
    torch.float32: "*fp32",
    torch.int32: "*i32",
    torch.int64: "*i64",
}


@dataclass(frozen=True, slots=True)
class Variant:
    """One kernel as one launch compiles it. `divisible`: indices of arguments known to be multiples of 16."""

    name: str
    module: str
    kernel: str
    signature: tuple[tuple[str, str], ...]
    constants: tuple[tuple[str, Constant], ...]
    divisible: tuple[int, ...]
    num_warps: int
    num_stages: int


@dataclass(frozen=True, slots=True)
class Report:
    """What became of a variant on a target. None is what could not be found out, `reason` then says why.

    `ok` only if it compiled, fits and was seen not to spill.
    """

    name: str
    target: str
    shared_bytes: int | None
    stack_bytes: int | None
    registers: int | None
    spill_stores: int | None
    spill_loads: int | None
    ok: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Code:
    """What the machine code of a kernel says of registers."""

    stack_bytes: int | None = None
    registers: int | None = None
    spill_stores: int | None = None
    spill_loads: int | None = None
    unread: str = ""


def variant_of(name: str, launch: Launch) -> Variant:
    """The variant that Triton compiles for a launch: types, and what it specialises integers for."""
    kernel = launch.kernel
    if not hasattr(kernel, "params"):
        raise RuntimeError("kernels are interpreted, not compiled: unset TRITON_INTERPRET before importing triton")
    signature: list[tuple[str, str]] = []
    constants, divisible = dict(launch.constants), []
    for index, param in enumerate(kernel.params):
        if param.name in launch.constants:
            signature.append((param.name, "constexpr"))
            continue
        arg = launch.args[index]
        if isinstance(arg, torch.Tensor):
            signature.append((param.name, POINTER_TYPES[arg.dtype]))
            divisible.append(index)  # torch aligns what it allocates
        elif isinstance(arg, float):
            signature.append((param.name, "fp32"))
        elif arg == 1 and not param.do_not_specialize:
            signature.append((param.name, "constexpr"))
            constants[param.name] = 1
        else:
            signature.append((param.name, "i32" if -(2**31) <= arg < 2**31 else "i64"))
            if arg % 16 == 0 and not param.do_not_specialize:
                divisible.append(index)
    return Variant(
        name,
        kernel.fn.__module__,
        kernel.fn.__name__,
        tuple(signature),
        tuple(constants.items()),
        tuple(divisible),
        launch.num_warps,
        launch.num_stages,
    )


def source_of(variant: Variant) -> ASTSource:
    """What Triton compiles."""
    return ASTSource(
        fn=getattr(importlib.import_module(variant.module), variant.kernel),
        signature=dict(variant.signature),
        constexprs=dict(variant.constants),
        attrs={(index,): [["tt.divisibility", 16]] for index in variant.divisible},
    )


def compile_variant(variant: Variant, capability: Capability) -> Report:
    """Compiles for a GPU of that capability and reads the result."""
    arch = 10 * capability[0] + capability[1]
    options = {"num_warps": variant.num_warps, "num_stages": variant.num_stages, **OPTIONS}
    try:
        compiled = triton.compile(source_of(variant), target=GPUTarget("cuda", arch, 32), options=options)
    except Exception as error:  # whatever a compiler pass throws belongs in the report, beside the others
        reason = f"does not compile: {type(error).__name__}: {error}".split("\n")[0]
        return Report(variant.name, f"cuda:{arch}", None, None, None, None, None, False, reason)
    shared, limit = int(compiled.metadata.shared), shared_limit_bytes(capability)
    code = read_code(compiled.asm["cubin"])
    faults = []
    if shared > limit:
        faults.append(f"takes {shared} bytes of shared memory, the GPU has {limit}")
    if code.spill_stores or code.spill_loads:
        faults.append(f"spills registers: {code.spill_stores} stores, {code.spill_loads} loads")
    if code.unread:
        faults.append(code.unread)
    return Report(
        variant.name,
        f"cuda:{arch}",
        shared,
        code.stack_bytes,
        code.registers,
        code.spill_stores,
        code.spill_loads,
        not faults,
        "; ".join(faults),
    )


def tool(name: str) -> str | None:
    """Path of one of CUDA's binary tools: triton's own, or the system's."""
    bundled = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / name
    return str(bundled) if bundled.is_file() else shutil.which(name)


def read_code(cubin: bytes) -> Code:
    """Registers and stack by cuobjdump; loads from and stores to the stack, where there is one, by nvdisasm.

    A stack is the sign of spilled registers: what cuobjdump calls LOCAL is 0 for them.
    """
    cuobjdump, nvdisasm = tool("cuobjdump"), tool("nvdisasm")
    if cuobjdump is None:
        return Code(unread="spills not checked: triton bundles no cuobjdump, and none is installed")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        usage = _run(cuobjdump, "-res-usage", str(path))
        found = re.search(r"REG:(\d+) STACK:(\d+)", usage)
        if found is None:
            return Code(unread="spills not checked: cuobjdump printed no usage of registers")
        registers, stack = int(found[1]), int(found[2])
        if stack == 0:
            return Code(0, registers, 0, 0)
        if nvdisasm is None:
            return Code(stack, registers, unread=f"a stack of {stack} bytes, and no nvdisasm to see what it is for")
        code = _run(nvdisasm, "-c", str(path))
    return Code(stack, registers, len(re.findall(r"\bSTL\b", code)), len(re.findall(r"\bLDL\b", code)))


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def compile_all(
    wanted: Iterable[Variant], capability: Capability, workers: int | None = None, cache_dir: Path | None = None
) -> tuple[Report, ...]:
    """Reports in the order of `wanted`, by `workers` processes (one a CPU). They compile into Triton's own cache unless
    there is a `cache_dir`."""
    listed = list(wanted)
    workers = min(workers or os.cpu_count() or 1, max(len(listed), 1))
    # Spawned: a forked child of a process that has used CUDA cannot.
    pool = ProcessPoolExecutor(
        workers, multiprocessing.get_context("spawn"), initializer=_use_cache, initargs=(cache_dir,)
    )
    with pool:
        return tuple(pool.map(compile_variant, listed, [capability] * len(listed)))


def _use_cache(cache_dir: Path | None) -> None:
    if cache_dir is not None:
        os.environ["TRITON_CACHE_DIR"] = str(cache_dir)


HIDDEN_SIZES = (2048, 4096, 8192, 16384)
UNEVEN_K = 4096 + 16
HEAD_DIMS_AND_BLOCK_SIZES = ((64, 16), (64, 32), (64, 64), (128, 16), (128, 32), (128, 64), (256, 16))

Named = Iterator[tuple[str, Launch]]


def variants(capability: Capability, dtype: torch.dtype) -> tuple[Variant, ...]:
    """Every kernel that a calibration in `dtype` launches on a GPU of that capability, each once."""
    found: dict[Variant, Variant] = {}
    for name, launch in named_launches(capability, dtype):
        variant = variant_of(name, launch)
        found.setdefault(replace(variant, name=""), variant)
    return tuple(found.values())


def named_launches(capability: Capability, dtype: torch.dtype) -> Named:
    """The launches that `variants` are of, on tensors of the device "meta"; some compile to the same."""
    yield from _gemms(capability, dtype)
    yield from _attention(capability, dtype)
    yield from _elementwise(dtype)


def _empty(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def _gemms(capability: Capability, dtype: torch.dtype) -> Named:
    configs = gemm.CONFIGS if dtype.itemsize == 2 else gemm.FULL_CONFIGS
    fitting = [c for c in configs if c.shared_bytes(dtype.itemsize) <= shared_limit_bytes(capability)]
    uneven = [c for c in fitting if c in (gemm.SQUARE, gemm.FEW_16, gemm.FULL, gemm.FULL_FEW)]
    for k, chosen in ((4096, fitting), (UNEVEN_K, uneven)):
        for c in chosen:
            m, n = c.block_m, 1024
            out = _empty(m, n, dtype=dtype)
            parts = _empty(c.split_k, m, n, dtype=torch.float32) if c.split_k > 1 else None
            x, weight = _empty(m, k, dtype=dtype), _empty(n, k, dtype=dtype)
            name = f"{c.block_m}x{c.block_n}x{c.block_k}/{c.split_k}" + (" uneven" if k % c.block_k else "")
            product, *total = gemm.launches(x, weight, out, parts, c)
            yield f"gemm {name}", product
            for launch in total:
                yield f"sum_splits {c.split_k}", launch


def _attention(capability: Capability, dtype: torch.dtype) -> Named:
    batch, heads, kv_heads, tokens = 4, 32, 8, 128
    seq_lens, starts = _empty(batch, dtype=torch.int32), _empty(batch + 1, dtype=torch.int32)
    for head_dim, block_size in HEAD_DIMS_AND_BLOCK_SIZES:
        name = f"d{head_dim} block{block_size}"
        cache = _empty(64, block_size, kv_heads, head_dim, dtype=dtype)
        table = _empty(batch, 16, dtype=torch.int32)
        one, many = _empty(batch, heads, head_dim, dtype=dtype), _empty(tokens, heads, head_dim, dtype=dtype)
        values = _empty(batch, heads, 2, head_dim, dtype=torch.float32)
        split = (values, _empty(*values.shape[:3], dtype=torch.float32))
        for parts in (None, split):
            inputs = PagedInputs(one, cache, cache, table, seq_lens)
            decodes = paged_decode.launches(inputs, one, parts, None, capability)
            yield f"decode {name}" + (" split" if parts else ""), decodes[0]
            if parts:
                yield f"join_splits d{head_dim}", decodes[1]
        inputs = PagedInputs(many, cache, cache, table, seq_lens)
        yield f"prefill {name}", paged_prefill.launches(inputs, starts, tokens, many, None, capability)[0]
        yield f"mixed {name}", mixed.launches(inputs, starts, many, None, capability)[0]


def _elementwise(dtype: torch.dtype) -> Named:
    tokens = 16
    for hidden in HIDDEN_SIZES:
        x, weight = _empty(tokens, hidden, dtype=dtype), _empty(hidden, dtype=dtype)
        yield f"rms_norm {hidden}", rms_norm.launches(x, weight, None, 1e-6, x)[0]
        yield f"add_rms_norm {hidden}", rms_norm.launches(x, weight, x, 1e-6, x)[0]
    x = _empty(tokens, 4096, dtype=dtype)
    yield "silu_and_mul", silu_and_mul.launches(x, _empty(tokens, 2048, dtype=dtype))[0]
    whole = _empty(tokens, dtype=torch.int64)
    for head_dim in (64, 128, 256):
        q, kv = _empty(tokens, 32, head_dim, dtype=dtype), _empty(tokens, 8, head_dim, dtype=dtype)
        cache, cos_sin = _empty(64, 16, 8, head_dim, dtype=dtype), _empty(4096, head_dim, dtype=dtype)
        yield (
            f"rotary_kv_write d{head_dim}",
            rotary_kv_write.launches(q, kv, kv, cos_sin, whole, cache, cache, whole, q)[0],
        )
