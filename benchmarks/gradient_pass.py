"""One pass over the gradients: the fused kernel against `torch._foreach_norm`.

    python benchmarks/gradient_pass.py                  # CUDA: 124M (148 tensors), 300 tensors
    python benchmarks/gradient_pass.py --json out.json

First the bits: every kind of element, odd sizes, addresses that are not aligned, NaN and infinity
must give the norms of torch, bit for bit. Then the time of the device and of the host for norms of
all tensors and their total, where addresses stay and where all of them change at every step.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

import torch
from guard_overhead import CASES, Training
from torch import Tensor

from headway.torch_adapters.fused_norms import FusedNorms, TensorNorms

ODD_SIZES = (1, 3, 4, 63, 64, 2047, 2048, 2052, 65535, 65536, 65537, 131072, 200001, 40_000_000)
KINDS = (torch.float32, torch.bfloat16, torch.float16)


def foreach(gradients: list[Tensor]) -> Tensor:
    half = gradients[0].dtype in (torch.float16, torch.bfloat16)
    kind = {"dtype": torch.float32} if half else {}
    return torch.stack(torch._foreach_norm(gradients, 2.0, **kind))


def fused(measure: FusedNorms, gradients: list[Tensor]) -> TensorNorms:
    found = measure.measure(gradients)
    if found is None:
        raise SystemExit("the fused kernel does not run here")
    return found


def compare_bits() -> dict[str, Any]:
    """Tensors whose norm, largest magnitude or finiteness is not that of torch."""
    torch.manual_seed(0)
    wrong: dict[str, Any] = {}
    for kind in KINDS:
        gradients = [torch.randn(size, device="cuda").to(kind) for size in ODD_SIZES]
        gradients += [torch.randn(size + 1, device="cuda").to(kind)[1:] for size in ODD_SIZES]
        gradients += [torch.randn(1000, device="cuda").to(kind) for _ in range(4)]
        gradients[-1][5], gradients[-2][7] = float("nan"), float("inf")
        gradients[-3][8] = torch.finfo(kind).max
        found = fused(FusedNorms(gradients), gradients)
        expected = foreach(gradients)
        same = (found.each == expected) | (found.each.isnan() & expected.isnan())
        largest = torch.stack(
            [g.float().abs().nan_to_num(nan=0.0, posinf=float("inf")).max() for g in gradients]
        )
        finite = torch.stack([torch.isfinite(g).all() for g in gradients])
        wrong[str(kind)] = {
            "norms": [gradients[at].numel() for at in (~same).nonzero().flatten().tolist()],
            "largest": int((found.largest != largest).sum()),
            "nonfinite": int((found.nonfinite.bool() == finite).sum()),
        }
    return wrong


def device_microseconds(work: Callable[[], Any], repeats: int) -> float:
    work()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):  # without the gaps between launches
        for _ in range(repeats):
            work()
    spent = []
    for _ in range(5):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        spent.append(1e3 * start.elapsed_time(end) / repeats)
    return statistics.median(spent)


def host_microseconds(work: Callable[[], Any], repeats: int = 200) -> float:
    spent = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        began = time.perf_counter()
        work()
        spent.append(time.perf_counter() - began)
    torch.cuda.synchronize()
    return 1e6 * statistics.median(spent)


def measure(name: str, gradients: list[Tensor]) -> dict[str, Any]:
    kernel = FusedNorms(gradients)
    others = [gradient.clone() for gradient in gradients]
    turn = [gradients, others]

    def by_torch() -> Tensor:
        return torch.linalg.vector_norm(foreach(gradients), 2.0)

    def by_kernel() -> Tensor:
        return torch.linalg.vector_norm(fused(kernel, gradients).each, 2.0)

    def by_kernel_at_new_addresses() -> Tensor:
        turn.reverse()
        return torch.linalg.vector_norm(fused(kernel, turn[0]).each, 2.0)

    assert torch.equal(by_torch(), by_kernel()), "the totals differ"
    size = sum(g.numel() * g.element_size() for g in gradients)
    device = {
        "foreach": device_microseconds(by_torch, 20),
        "fused": device_microseconds(by_kernel, 20),
    }
    host = {
        "foreach": host_microseconds(by_torch),
        "fused": host_microseconds(by_kernel),
        "fused, new addresses": host_microseconds(by_kernel_at_new_addresses),
    }
    return {
        "case": name,
        "tensors": len(gradients),
        "bytes": size,
        "device_us": device,
        "host_us": host,
        "fused_gb_per_s": size / device["fused"] / 1e3,
        "foreach_gb_per_s": size / device["foreach"] / 1e3,
    }


def gradients_of(case: Any, kind: torch.dtype) -> list[Tensor]:
    training = Training(case, "cuda")
    return [torch.randn_like(p, dtype=kind) * 1e-3 for p in training.model.parameters()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="write the numbers here")
    options = parser.parse_args()
    print(f"{torch.cuda.get_device_name()}; torch {torch.__version__}")
    wrong = compare_bits()
    for kind, found in wrong.items():
        print(f"{kind}: different from torch: {found}")
    cases = CASES["cuda"]
    results = []
    for name, gradients in (
        ("124M", lambda: gradients_of(cases[0], torch.float32)),
        ("124M in bfloat16", lambda: gradients_of(cases[0], torch.bfloat16)),
        ("1.3B", lambda: gradients_of(cases[2], torch.float32)),
        ("300 tensors of 64", lambda: [torch.randn(8, 8, device="cuda") for _ in range(300)]),
        ("32 tensors of 64", lambda: [torch.randn(8, 8, device="cuda") for _ in range(32)]),
    ):
        results.append(measure(name, gradients()))
        found = results[-1]
        print(
            f"{name}, {found['tensors']} tensors: device µs {rounded(found['device_us'])} "
            f"({found['foreach_gb_per_s']:.0f} and {found['fused_gb_per_s']:.0f} GB/s), "
            f"host µs {rounded(found['host_us'])}"
        )
    if options.json:
        about = {
            "date": time.strftime("%Y-%m-%d"),
            "python": platform.python_version(),
            "torch": torch.__version__,
            "device": torch.cuda.get_device_name(),
        }
        options.json.write_text(
            json.dumps({**about, "wrong": wrong, "results": results}, indent=2) + "\n"
        )


def rounded(values: dict[str, float]) -> dict[str, float]:
    return {name: round(value, 1) for name, value in values.items()}


if __name__ == "__main__":
    main()
