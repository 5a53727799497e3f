"""Cost of the guard: a guarded step against the same step with `clip_grad_norm_`, in one run.

    python benchmarks/guard_overhead.py                  # CPU: 10M parameters, 150 tensors
    python benchmarks/guard_overhead.py --device cuda    # transformers of 124M and 1.3B

Variants alternate on the same model, so that other processes disturb all of them alike; the ratio
is computed within each round, and the median over rounds is printed. On CUDA the guarded
steps run under `torch.cuda.set_sync_debug_mode("error")`: a single wait for the device would raise.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headway import Guard

MAX_NORM = 1.0


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, -1).transpose(1, 2)
            for part in self.qkv(self.norm1(x)).chunk(3, dim=-1)
        )
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Transformer(nn.Module):
    """A GPT-2-shaped language model."""

    def __init__(self, layers: int, width: int, heads: int, vocabulary: int, length: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.places.weight[: ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


@dataclass(frozen=True)
class Case:
    name: str
    layers: int
    width: int
    heads: int
    vocabulary: int
    length: int
    batch: int
    steps: int
    rounds: int


CASES = {
    "cuda": [
        Case("124M, batch 8", 12, 768, 12, 50304, 1024, 8, 20, 9),
        Case("124M, batch 32", 12, 768, 12, 50304, 1024, 32, 8, 7),
        Case("1.3B, batch 8", 24, 2048, 16, 50304, 1024, 8, 5, 7),
    ],
    # 12 layers of width 256: 150 tensors, 10.6M parameters
    "cpu": [Case("10M, batch 4", 12, 256, 4, 4096, 128, 4, 6, 10)],
}


class Training:
    """A model, its optimizer and one batch."""

    def __init__(self, case: Case, device: str) -> None:
        torch.manual_seed(0)
        self.case, self.device = case, device
        self.model = Transformer(
            case.layers, case.width, case.heads, case.vocabulary, case.length
        ).to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-5, fused=device == "cuda")
        self.ids = torch.randint(case.vocabulary, (case.batch, case.length + 1), device=device)

    def clip(self) -> None:
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), MAX_NORM)

    def step(self, between: Callable[[], None] = lambda: None) -> None:
        with torch.autocast(self.device, torch.bfloat16, enabled=self.device == "cuda"):
            logits = self.model(self.ids[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), self.ids[:, 1:].flatten())
        loss.backward()
        between()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)


@contextlib.contextmanager
def plain(training: Training) -> Iterator[Callable[[], None]]:
    yield training.step


@contextlib.contextmanager
def clipped(training: Training) -> Iterator[Callable[[], None]]:
    yield lambda: training.step(training.clip)


@contextlib.contextmanager
def guarded(training: Training) -> Iterator[Callable[[], None]]:
    """Gradients are clipped, measured per tensor, judged, recorded, and read by every check."""
    with tempfile.TemporaryDirectory() as folder:
        guard = Guard(training.model, training.optimizer, max_norm=MAX_NORM, run_dir=folder)
        batches = iter(guard(itertools.repeat(training.ids)))

        def step() -> None:
            next(batches)
            training.step()

        yield step
        guard.close()


@contextlib.contextmanager
def guarded_user_clip(training: Training) -> Iterator[Callable[[], None]]:
    """The guard together with the user's own `clip_grad_norm_`."""
    with Guard(training.model, training.optimizer) as guard:
        assert guard.run_dir is None
        yield lambda: training.step(training.clip)


@contextlib.contextmanager
def item_loop(training: Training) -> Iterator[Callable[[], None]]:
    """A common pattern: a norm and an `.item()` per parameter, then `clip_grad_norm_`."""

    def between() -> None:
        norms = {
            name: parameter.grad.norm().item()
            for name, parameter in training.model.named_parameters()
            if parameter.grad is not None
        }
        assert norms
        training.clip()

    yield lambda: training.step(between)


@contextlib.contextmanager
def histograms(training: Training) -> Iterator[Callable[[], None]]:
    """As `wandb.watch` does: a 64-bin histogram of every gradient, copied to the host."""

    def between() -> None:
        for parameter in training.model.parameters():
            if parameter.grad is not None:
                flat = parameter.grad.float()
                low, high = flat.min().item(), flat.max().item()
                torch.histc(flat, 64, low, high).tolist()
        training.clip()

    yield lambda: training.step(between)


VARIANTS: dict[str, Any] = {
    "plain": plain,
    "clip_grad_norm_": clipped,
    "guarded": guarded,
    "guard + own clip": guarded_user_clip,
    ".item() loop": item_loop,
    "histograms": histograms,
}


def measure(case: Case, device: str, variants: list[str]) -> dict[str, Any]:
    training = Training(case, device)
    for _ in range(3):
        training.step()
    times: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(case.rounds):
        for name in variants:
            with VARIANTS[name](training) as step:
                times[name].append(time_steps(step, case, device, no_sync=name.startswith("guard")))
    return summary(case, training, times)


def measure_by_turns(case: Case, device: str, variants: list[str]) -> dict[str, Any]:
    """On the CPU a step is long and timings are noisy: variants alternate at every step."""
    times: dict[str, list[float]] = {name: [] for name in variants}
    with contextlib.ExitStack() as stack:
        trainings = {name: Training(case, device) for name in variants}
        steps = {name: stack.enter_context(VARIANTS[name](trainings[name])) for name in variants}
        for turn in range(case.rounds * case.steps):
            for name in variants[turn % len(variants) :] + variants[: turn % len(variants)]:
                began = time.perf_counter()
                steps[name]()
                times[name].append(time.perf_counter() - began)
    return summary(case, trainings[variants[0]], {name: t[2:] for name, t in times.items()})


def summary(case: Case, training: Training, times: dict[str, list[float]]) -> dict[str, Any]:
    base = times["clip_grad_norm_"]
    return {
        "case": case.name,
        "parameters": sum(p.numel() for p in training.model.parameters()),
        "tensors": len(list(training.model.parameters())),
        "ms": {name: 1e3 * statistics.median(found) for name, found in times.items()},
        "ratio": {
            name: statistics.median(a / b for a, b in zip(found, base, strict=True))
            for name, found in times.items()
        },
    }


def time_steps(step: Callable[[], None], case: Case, device: str, *, no_sync: bool) -> float:
    """Seconds per step, after a warm-up: a guard examines the first 16 steps more closely."""
    for _ in range(20 if no_sync else 2):
        step()
    synchronise(device)
    if device == "cuda" and no_sync:
        torch.cuda.set_sync_debug_mode("error")
    began = time.perf_counter()
    try:
        for _ in range(case.steps):
            step()
    finally:
        if device == "cuda":
            torch.cuda.set_sync_debug_mode("default")
    synchronise(device)
    return (time.perf_counter() - began) / case.steps


def synchronise(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def host_microseconds(device: str, tensors: int = 300, steps: int = 300) -> dict[str, float]:
    """Host time that the guard, and `clip_grad_norm_`, add to a step with many tiny tensors."""
    torch.manual_seed(0)
    model = nn.ParameterList(nn.Parameter(torch.randn(8, 8, device=device)) for _ in range(tensors))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=True)
    gradients = [torch.randn(8, 8, device=device) for _ in model]

    def run(guard: Guard | None, clip: bool) -> float:
        spent = []
        for _ in range(steps):
            for parameter, gradient in zip(model, gradients, strict=True):
                parameter.grad = gradient
            synchronise(device)
            began = time.perf_counter()
            if clip:
                torch.nn.utils.clip_grad_norm_(list(model.parameters()), 1e9)
            optimizer.step()
            spent.append(time.perf_counter() - began)
        if guard is not None:
            guard.close()
        return 1e6 * statistics.median(spent)

    bare = run(None, clip=False)
    clip = run(None, clip=True)
    with tempfile.TemporaryDirectory() as folder:
        watched = run(Guard(model, optimizer, max_norm=1e9, run_dir=folder), clip=False)
    return {
        "tensors": tensors,
        "clip_grad_norm_ adds": clip - bare,
        "guard adds": watched - bare,
        "guard over clip_grad_norm_": watched - clip,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--json", type=Path, help="write the numbers here")
    parser.add_argument("--variants", default=",".join(VARIANTS), help="device to measure on")
    parser.add_argument("--only", default="", help="cases whose name contains this text")
    options = parser.parse_args()
    variants = [name for name in VARIANTS if name in options.variants.split(",")]
    machine = (
        torch.cuda.get_device_name() if options.device == "cuda" else f"CPU, {platform.machine()}"
    )
    print(f"{machine}; torch {torch.__version__}; {torch.get_num_threads()} threads")
    results = []
    for case in (case for case in CASES[options.device] if options.only in case.name):
        how = measure if options.device == "cuda" else measure_by_turns
        result = how(case, options.device, variants)
        results.append(result)
        print(f"\n{case.name}: {result['parameters']:,} parameters in {result['tensors']} tensors")
        for name in variants:
            ratio = result["ratio"][name]
            print(f"  {name:18} {result['ms'][name]:9.2f} ms   {ratio:6.3f} of clip_grad_norm_")
    host = host_microseconds(options.device)
    print("\nhost time per step, 300 tensors of 64 elements:")
    for name, value in host.items():
        print(f"  {name:28} {value:8.0f}" + ("" if name == "tensors" else " µs"))
    if options.json:
        record = {
            "date": time.strftime("%Y-%m-%d"),
            "machine": machine,
            "torch": torch.__version__,
            "python": platform.python_version(),
            "results": results,
            "host": host,
        }
        options.json.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
