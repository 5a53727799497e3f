"""Cost of a stable op: forward and backward, against the naive op on the same numbers.

    python benchmarks/stable_ops.py [--shapes 4096x512 65536x1024] [--rounds 15]
                                    [--device cpu] [--dtype float32] [--compile] [--json FILE]

Both alternate in one process; the medians of their times are compared. "ordinary" inputs contain no
singular value. In "singular" one row is the op's bad case (zeros, all masked, an
overflow), where the naive op gives NaN or infinity in value or gradient and the safe form must run.
On an accelerator, and with --compile, the safe form always runs, so both columns measure it.

On CUDA there are two costs. Wall time, with a wait for the device at the end, is mostly launch time
for small tensors. The "device" columns are the time of the kernels alone: forward and backward are
captured in a CUDA graph each, and its replays are timed. This is the relevant time while the host
is ahead of the device, and for large tensors. If an op cannot be captured, "-" is shown.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

import torch
import torch.nn.functional as F
from torch import Tensor

import headway
from headway import numerics

LIMIT = 1.5
"""Claimed limit: time relative to the naive op, for ordinary numbers."""

Op = Callable[..., Tensor]


@dataclass(frozen=True)
class Case:
    """An op, its naive form, and its bad row."""

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


def inputs_of(
    case: Case, args: argparse.Namespace, shape: tuple[int, ...], singular: bool
) -> tuple[Any, ...]:
    maker = torch.Generator().manual_seed(0)
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


REPLAYS = 20
"""Of a graph, timed together: one replay of a small op is shorter than the clock's resolution."""


def captured(op: Op, inputs: tuple[Any, ...], upstream: Tensor) -> torch.cuda.CUDAGraph:
    """Forward and backward as one graph; run before on a stream of its own, as capturing wants."""
    leaves = [item for item in inputs if item.requires_grad]

    def once() -> None:
        torch.autograd.grad(op(*inputs), leaves, upstream)

    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(3):
            once()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        once()
    return graph


def device_seconds(graph: torch.cuda.CUDAGraph) -> float:
    begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begun.record()
    for _ in range(REPLAYS):
        graph.replay()
    ended.record()
    ended.synchronize()
    return begun.elapsed_time(ended) / 1e3 / REPLAYS


def in_turns(
    clocks: dict[str, Callable[[], float]], rounds: int, prefix: str = ""
) -> dict[str, float]:
    times: dict[str, list[float]] = {name: [] for name in clocks}
    for turn in range(rounds + 3):
        for name, clock in clocks.items():
            took = clock()
            if turn >= 3:  # the first ones warm up
                times[name].append(took)
    naive, stable = (statistics.median(times[name]) for name in ("naive", "stable"))
    return {
        f"{prefix}naive_ms": naive * 1e3,
        f"{prefix}stable_ms": stable * 1e3,
        f"{prefix}ratio": stable / naive,
    }


def measure(
    case: Case, args: argparse.Namespace, shape: tuple[int, ...], singular: bool
) -> dict[str, Any]:
    inputs = inputs_of(case, args, shape, singular)
    ops = {"naive": case.naive, "stable": case.stable}
    if args.compile:
        ops = {name: torch.compile(op, fullgraph=True) for name, op in ops.items()}
    with torch.no_grad():
        upstream = torch.randn_like(case.naive(*inputs).float()).to(inputs[0].dtype)
    found: dict[str, Any] = in_turns(
        {name: partial(seconds, op, inputs, upstream) for name, op in ops.items()}, args.rounds
    )
    if upstream.device.type == "cuda":
        try:
            graphs = {name: captured(op, inputs, upstream) for name, op in ops.items()}
            clocks = {name: partial(device_seconds, graph) for name, graph in graphs.items()}
            found |= in_turns(clocks, args.rounds, "device_")
        except RuntimeError as error:
            found["device_error"] = str(error).splitlines()[0]
    return found


def shape_of(text: str) -> tuple[int, int]:
    rows, columns = text.split("x")
    return int(rows), int(columns)


def line_of(name: str, ordinary: dict[str, Any], singular: dict[str, Any]) -> str:
    line = (
        f"{name:20} {ordinary['naive_ms']:6.2f} ms {ordinary['stable_ms']:6.2f} ms "
        f"{ordinary['ratio']:9.2f} {singular['ratio']:9.2f}"
    )
    if "device_ratio" in ordinary:
        line += (
            f"   {ordinary['device_naive_ms']:8.4f} ms {ordinary['device_stable_ms']:8.4f} ms "
            f"{ordinary['device_ratio']:9.2f} {singular.get('device_ratio', math.nan):9.2f}"
        )
    elif "device_error" in ordinary:
        line += f"   - ({ordinary['device_error']})"
    return line


def measured(args: argparse.Namespace, shape: tuple[int, ...]) -> dict[str, Any]:
    """All ops at one size, printed as they come."""
    columns = "naive", "stable", "ordinary", "singular"
    header = "{:>9} {:>9} {:>9} {:>9}".format(*columns)
    if args.device.startswith("cuda"):
        header += "   {:>11} {:>11} {:>9} {:>9}".format("device: " + columns[0], *columns[1:])
    print(f"{'x'.join(map(str, shape)):20} {header}   limit {LIMIT:g}")
    results: dict[str, Any] = {}
    for name, case in CASES.items():
        if args.only in name:
            ordinary, singular = (measure(case, args, shape, bad) for bad in (False, True))
            results[name] = {"ordinary": ordinary, "singular": singular}
            print(line_of(name, ordinary, singular), flush=True)
    above = [name for name, found in results.items() if found["ordinary"]["ratio"] > LIMIT]
    slow = [
        name
        for name, found in results.items()
        if found["ordinary"].get("device_ratio", 0.0) > LIMIT
    ]
    print(
        f"above the limit: {', '.join(above) or 'none'}; on the device: {', '.join(slow) or 'none'}"
    )
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shapes", type=shape_of, nargs="+", default=[(4096, 512)])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--only", default="", help="part of an op's name")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    sizes = [{"shape": list(shape), "ops": measured(args, shape)} for shape in args.shapes]
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
            "headway": headway.__version__,
            "machine": where,
            "dtype": args.dtype,
            "compiled": args.compile,
            "limit": LIMIT,
            **sizes[0],  # as it was when there was one size
            "sizes": sizes,
        }
        args.json.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
