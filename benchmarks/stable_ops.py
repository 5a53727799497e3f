"""What a stable op costs: forward and backward, against the naive op on the same numbers.

    python benchmarks/stable_ops.py [--rows 4096] [--columns 512] [--rounds 15]
                                    [--device cpu] [--dtype float32] [--compile] [--json FILE]

Both take turns in one process; the medians of their times are compared. "ordinary" are numbers with
nothing singular among them. In "singular" one row is the op's bad case (zeros, all masked, an
overflow), where the naive op gives NaN or infinity in value or gradient and the safe form must run.
On an accelerator, and with --compile, the safe form always runs, so both columns measure it.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

import torch
import torch.nn.functional as F
from torch import Tensor

import holdfast
from holdfast import numerics

LIMIT = 1.5
"""Times the naive op: the claim, for ordinary numbers."""

Op = Callable[..., Tensor]


@dataclass(frozen=True)
class Case:
    """An op, what one would write instead, and its bad row."""

    stable: Op
    naive: Op
    inputs: tuple[str, ...] = ("normal",)
    bad: float = 0.0
    masked: bool = False


def naive_masked_mean(x: Tensor, mask: Tensor) -> Tensor:
    return (x * mask).sum(-1) / mask.sum(-1)


CASES = {
    "sqrt": Case(numerics.sqrt, torch.sqrt, ("positive",)),
    "log": Case(numerics.log, torch.log, ("positive",)),
    "exp": Case(numerics.exp, torch.exp, bad=1e4),
    "divide": Case(numerics.divide, torch.div, ("normal", "positive")),
    "norm": Case(numerics.norm, lambda x: x.norm(dim=-1)),
    "normalize": Case(numerics.normalize, lambda x: x / x.norm(dim=-1, keepdim=True)),
    "std": Case(numerics.std, lambda x: x.std(-1)),
    "var": Case(numerics.var, lambda x: x.var(-1)),
    "cosine_similarity": Case(
        numerics.cosine_similarity, lambda a, b: F.cosine_similarity(a, b, -1), ("normal",) * 2
    ),
    "logsumexp": Case(numerics.logsumexp, lambda x: x.logsumexp(-1), bad=-torch.inf),
    "masked_mean": Case(
        lambda x, mask: numerics.masked_mean(x, mask, -1), naive_masked_mean, masked=True
    ),
    "masked_softmax": Case(
        numerics.masked_softmax,
        lambda x, mask: x.masked_fill(~mask, -torch.inf).softmax(-1),
        masked=True,
    ),
    "masked_log_softmax": Case(
        numerics.masked_log_softmax,
        lambda x, mask: x.masked_fill(~mask, -torch.inf).log_softmax(-1),
        masked=True,
    ),
}


def inputs_of(case: Case, args: argparse.Namespace, singular: bool) -> tuple[Any, ...]:
    maker = torch.Generator().manual_seed(0)
    shape = (args.rows, args.columns)
    made: list[Tensor] = []
    for kind in case.inputs:
        x = torch.randn(shape, generator=maker)
        if kind == "positive":
            x = x.abs() + 0.1
        if singular and not case.masked:
            x[0] = case.bad
        made.append(x.to(args.device, getattr(torch, args.dtype)).requires_grad_())
    if case.masked:
        mask = torch.rand(shape, generator=maker) < 0.7
        mask[0] = not singular
        return (*made, mask.to(args.device))
    return tuple(made)


def seconds(op: Op, inputs: tuple[Any, ...], upstream: Tensor) -> float:
    for item in inputs:
        item.grad = None
    _wait(upstream)
    begun = time.perf_counter()
    op(*inputs).backward(upstream)
    _wait(upstream)
    return time.perf_counter() - begun


def _wait(tensor: Tensor) -> None:
    if tensor.device.type == "cuda":
        torch.cuda.synchronize()


def measure(case: Case, args: argparse.Namespace, singular: bool) -> dict[str, float]:
    inputs = inputs_of(case, args, singular)
    ops = {"naive": case.naive, "stable": case.stable}
    if args.compile:
        ops = {name: torch.compile(op, fullgraph=True) for name, op in ops.items()}
    with torch.no_grad():
        upstream = torch.randn_like(case.naive(*inputs).float()).to(inputs[0].dtype)
    times: dict[str, list[float]] = {name: [] for name in ops}
    for turn in range(args.rounds + 3):
        for name, op in ops.items():
            took = seconds(op, inputs, upstream)
            if turn >= 3:  # the first ones warm up
                times[name].append(took)
    naive, stable = (statistics.median(times[name]) for name in ("naive", "stable"))
    return {"naive_ms": naive * 1e3, "stable_ms": stable * 1e3, "ratio": stable / naive}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=4096)
    parser.add_argument("--columns", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--only", default="", help="part of an op's name")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{'':20} {'naive':>9} {'stable':>9} {'ordinary':>9} {'singular':>9}   limit {LIMIT:g}")
    results: dict[str, Any] = {}
    for name, case in CASES.items():
        if args.only not in name:
            continue
        ordinary, singular = (measure(case, args, bad) for bad in (False, True))
        results[name] = {"ordinary": ordinary, "singular": singular}
        print(
            f"{name:20} {ordinary['naive_ms']:6.2f} ms {ordinary['stable_ms']:6.2f} ms "
            f"{ordinary['ratio']:9.2f} {singular['ratio']:9.2f}",
            flush=True,
        )
    if args.json:
        where = (
            torch.cuda.get_device_name()
            if args.device.startswith("cuda")
            else f"{platform.machine()}, {os.cpu_count()} cores, CPU only, one thread"
        )
        record = {
            "date": time.strftime("%Y-%m-%d"),
            "python": platform.python_version(),
            "torch": torch.__version__,
            "holdfast": holdfast.__version__,
            "machine": where,
            "shape": [args.rows, args.columns],
            "dtype": args.dtype,
            "compiled": args.compile,
            "limit": LIMIT,
            "ops": results,
        }
        args.json.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
