"""The N-way contrastive loss: dense against lines, and the lines against their products.

    python benchmarks/nway.py [--device cuda|cpu] [--json FILE] [--seconds 0.5]

One step is forward and backward, from features (B, D) that require gradients to their gradients,
normalisation included; N = 6, D = 512. "dense" is the norm score as published: every tuple of
vectors is summed, B^N × D numbers. "lines" is `headway.numerics.nway_contrastive`.

"products" is the time of the matrix products that the lines need and nothing else: for each of the
N axes one of (B, D) × (D, B) forward and two of (B, B) × (B, D) backward, 3 N in all, with plain
`@` in the same type (so in bfloat16 their results are rounded, and ours are not). Leave-one-out
needs every pair of modalities, 3 N (N − 1). The claim is: at most 2 times the products.

On a GPU kernels do the work between the products; their first call takes a few seconds, which
are not counted. "plain" is without them. Peak memory is what the step allocates beyond the
features; it needs a GPU.

Steps run one after the other, and each is waited for. The time of a small step is then the time
that the host needs to launch it, not the time on the device. "on the device" excludes the host:
the step is recorded once as a CUDA graph, and replayed; so are the products.
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
from torch import Tensor

from headway.numerics import nway_contrastive

N, D = 6, 512
LIMIT = 2.0
"""Claimed limit: time relative to the products."""
SMALL = 4096
"""Largest batch for which the time on the device is measured, too."""
TYPES = {"float32": torch.float32, "tf32": torch.float32, "bfloat16": torch.bfloat16}


class Bench:
    def __init__(self, device: str, seconds: float) -> None:
        self.device, self.seconds = torch.device(device), seconds
        self.cuda = self.device.type == "cuda"

    def wait(self) -> None:
        if self.cuda:
            torch.cuda.synchronize()

    def once(self, step: Callable[[], object]) -> float:
        self.wait()
        begun = time.perf_counter()
        step()
        self.wait()
        return time.perf_counter() - begun

    def measure(self, step: Callable[[], object]) -> tuple[float, int | None]:
        """Median seconds, and peak bytes beyond those allocated before. The first calls warm up."""
        self.once(step)
        peak = None
        if self.cuda:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            held = torch.cuda.memory_allocated()
        first = self.once(step)
        if self.cuda:
            peak = torch.cuda.max_memory_allocated() - held
        times = max(3, min(30, int(self.seconds / first)))
        return statistics.median(self.once(step) for _ in range(times)), peak

    def on_device(self, step: Callable[[], object]) -> float | None:
        """Median seconds without the host; None where the step cannot be recorded."""
        if not self.cuda:
            return None
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(3):
                step()
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                step()
        except RuntimeError as failed:
            print(f"cannot be recorded: {failed}"[:200])
            return None
        times = max(1, int(1e-2 / max(self.once(graph.replay), 1e-5)))

        def often() -> None:
            for _ in range(times):
                graph.replay()

        return statistics.median(self.once(often) for _ in range(5)) / times

    def features(self, batch: int, dtype: torch.dtype) -> list[Tensor]:
        draw = torch.Generator(self.device).manual_seed(0)
        return [
            torch.randn(batch, D, generator=draw, device=self.device).to(dtype).requires_grad_()
            for _ in range(N)
        ]

    def dense(self, batch: int) -> tuple[float, int | None, float]:
        """As published: S for every tuple, its norm, a cross entropy for each rotation."""
        features = self.features(batch, torch.float32)
        label = torch.zeros((batch,) * N, device=self.device)
        own = torch.arange(batch, device=self.device)
        label[(own,) * N] = 1
        value = 0.0

        def step() -> None:
            nonlocal value
            unit = [f / f.norm(dim=1, keepdim=True) for f in features]
            S = sum(
                f.view(*(batch if axis == k else 1 for axis in range(N)), D)
                for k, f in enumerate(unit)
            )
            logits = torch.linalg.vector_norm(S, dim=-1) / 0.07
            losses = [
                torch.nn.functional.cross_entropy(
                    logits.permute(order), label.permute(order), reduction="sum"
                )
                for order in ([(r + s) % N for s in range(N)] for r in range(N))
            ]
            loss = sum(losses[1:], losses[0]) / N / batch
            torch.autograd.grad(loss, features)
            value = loss.item()

        seconds, peak = self.measure(step)
        return seconds, peak, value

    def lines(self, batch: int, dtype: torch.dtype, **options: Any) -> dict[str, Any]:
        features = self.features(batch, dtype)

        def step() -> Tensor:
            loss = nway_contrastive(features, **options)
            torch.autograd.grad(loss, features)
            return loss

        seconds, peak = self.measure(step)
        value = step().item()
        small = batch <= SMALL
        return {
            "seconds": seconds,
            "peak": peak,
            "value": value,
            "on_device": self.on_device(step) if small else None,
        }

    def products(self, batch: int, dtype: torch.dtype, pairs: int = N) -> dict[str, Any]:
        """One forward and two backward products, as often as the score needs them."""
        X, Y = (f.detach() for f in self.features(batch, dtype)[:2])
        G = X @ Y.T

        def step() -> None:
            for _ in range(pairs):
                X @ Y.T
                G @ Y
                G.T @ X

        return {
            "products": self.measure(step)[0],
            "products_on_device": self.on_device(step) if batch <= SMALL else None,
        }


def shown(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e3:,.2f} ms"


def times(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.2f} x"


def size(peak: int | None) -> str:
    return "-" if peak is None else f"{peak / 2**20:,.0f} MiB"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--seconds", type=float, default=0.5, help="for each measurement")
    parser.add_argument("--batches", type=int, nargs="+")
    args = parser.parse_args()
    bench = Bench(args.device, args.seconds)
    begun = time.perf_counter()
    where = torch.cuda.get_device_name() if bench.cuda else platform.processor() or "cpu"
    print(f"{where}, torch {torch.__version__}, N = {N}, D = {D}, forward and backward\n")
    rows: list[dict[str, Any]] = []

    def tell(**row: Any) -> None:
        for name, of, to in (
            ("ratio", "seconds", "products"),
            ("ratio_on_device", "on_device", "products_on_device"),
        ):
            if row.get(of) and row.get(to):
                row[name] = row[of] / row[to]
        rows.append(row)
        print(
            f"{row['form']:<24} {row['type']:<9} B={row['batch']:<6}"
            f"{shown(row.get('seconds')):>12} {size(row.get('peak')):>11}"
            f"  products {shown(row.get('products')):>10}  {times(row.get('ratio')):<7}"
            + (
                f" on the device {shown(row['on_device'])}, products "
                f"{shown(row['products_on_device'])}  {times(row.get('ratio_on_device'))}"
                if row.get("on_device")
                else ""
            ),
            flush=True,
        )

    def run_form(form: str, kind: str, batch: int, about: dict[str, Any], **options: Any) -> None:
        row = {"form": form, "type": kind, "batch": batch, **about}
        try:
            tell(**row, **bench.lines(batch, TYPES[kind], **options))
        except Exception as failed:  # one form that fails must not hide the others
            print(f"{form} {kind} B={batch}: {type(failed).__name__}: {failed}"[:300])
            rows.append({**row, "failed": type(failed).__name__})
        if bench.cuda:
            torch.cuda.empty_cache()

    batch = 12 if bench.cuda else 4
    seconds, peak, value = bench.dense(batch)
    tell(form="dense norm", type="float32", batch=batch, seconds=seconds, peak=peak)
    ours = bench.lines(batch, torch.float32)["value"]
    print(f"{'':<24} the value is {value:.6f} dense and {ours:.6f} by lines\n")

    batches = args.batches or ([12, 1024, 8192, 32768] if bench.cuda else [12, 128, 512])
    types = list(TYPES) if bench.cuda else ["float32"]
    for batch in batches:
        forms: list[tuple[str, dict[str, Any]]] = [("lines norm", {})]
        if bench.cuda and batch >= 1024:
            forms.append(("lines norm, plain", {"fuse": False}))
        products: dict[str, dict[str, Any]] = {}
        for form, options in forms:
            for kind in types:
                torch.backends.cuda.matmul.allow_tf32 = kind == "tf32"
                if kind not in products:
                    products[kind] = bench.products(batch, TYPES[kind])
                run_form(form, kind, batch, products[kind], **options)
        print()
    torch.backends.cuda.matmul.allow_tf32 = False

    batch = 4096 if bench.cuda else 128
    for score in ("product", "variance", "std", "leave-one-out", "pairwise", "cosine", "distance"):
        pairs = N * (N - 1) if score in ("leave-one-out", "pairwise") else N
        pairs = 2 * N if score in ("cosine", "distance") else pairs
        about = bench.products(batch, torch.float32, pairs)
        run_form(f"lines {score}", "float32", batch, about, score=score)

    large = [row for row in rows if row.get("ratio") and row["batch"] == max(batches)]
    best = {
        kind: min((row["ratio"] for row in large if row["type"] == kind), default=None)
        for kind in types
    }
    print(f"\nat B={max(batches)}, best form: ", end="")
    print(", ".join(f"{kind} {ratio:.2f} x" for kind, ratio in best.items() if ratio), end="")
    print(
        f" of the products (claim: at most {LIMIT:g}); {time.perf_counter() - begun:.0f} s in all"
    )
    if args.json:
        about = {
            "date": time.strftime("%Y-%m-%d"),
            "device": where,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "N": N,
            "D": D,
            "limit": LIMIT,
        }
        args.json.write_text(json.dumps({**about, "best": best, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
