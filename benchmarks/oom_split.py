"""A batch that does not fit, with and without `Policy(on_oom="split")`, on five models.

    python benchmarks/oom_split.py [-o result.json]

Each model trains on four batches, of which the third is 16 times as large. Under a limit of the
address space the plain script fails with an error of the CPU allocator; with "split" it finishes.
Its weights are compared with those of a run without a limit.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import headway
from headway import Guard, Policy

LARGE = 2
"""The position of the batch that does not fit."""


class Images(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 32, 3, padding=1)
        self.norm = nn.GroupNorm(4, 32)
        self.head = nn.Linear(32, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.norm(self.conv(x))).mean((2, 3)))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(16, 128, batch_first=True)
        self.head = nn.Linear(128, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x)[0][:, -1])


class LanguageModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 64)
        layer = nn.TransformerEncoderLayer(64, 2, 128, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(64, 50)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.layers(self.table(ids)))


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 4096), nn.Tanh(), nn.Linear(4096, 5))


def classify(model: nn.Module, x: Tensor) -> Tensor:
    return F.cross_entropy(model(x), torch.arange(len(x)) % 5)


def predict(model: nn.Module, ids: Tensor) -> Tensor:
    return F.cross_entropy(model(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def contrast(model: nn.Module, x: Tensor) -> Tensor:
    """Each row's loss depends on all others."""
    features = F.normalize(model(x), dim=1)
    return torch.logsumexp(features @ features[:256].T, 1).mean()


Case = tuple[Callable[[], nn.Module], Callable[[nn.Module, Tensor], Tensor], int, tuple[int, ...]]
CASES: dict[str, Case] = {
    "mlp": (mlp, classify, 512, (64,)),
    "cnn": (Images, classify, 64, (3, 32, 32)),
    "lstm": (Recurrent, classify, 48, (64, 16)),
    "transformer": (LanguageModel, predict, 32, (64,)),
    "contrastive": (mlp, contrast, 512, (64,)),
}
"""Model, loss, rows of a small batch, shape of a row."""


def batches(name: str) -> Iterator[Tensor]:
    random = torch.Generator().manual_seed(1)
    _, compute, rows, shape = CASES[name]
    for position in range(4):
        size = (rows * (16 if position == LARGE else 1), *shape)
        if compute is predict:
            yield torch.randint(0, 50, size, generator=random)
        else:
            yield torch.randn(size, generator=random)


def limit_memory(free: int) -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    used = pages * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + free, resource.RLIM_INFINITY))


def train(name: str, free: int | None, policy: Policy | None, out: Path) -> None:
    make, compute, _, _ = CASES[name]
    torch.manual_seed(0)
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    guard = None if policy is None else Guard(model, optimizer, policy=policy)
    data = list(batches(name))
    for position, batch in enumerate(data if guard is None else guard(data)):
        if position == LARGE and free is not None:
            limit_memory(free)
        optimizer.zero_grad()
        compute(model, batch).backward()
        optimizer.step()
    facts: dict[str, Any] = {}
    if guard is not None:
        guard.close()
        codes = [item for item in guard.findings if item.code in ("HD808", "HD809")]
        facts = dict(codes[0].evidence) if codes else {}
    weights = [p.detach().tolist() for p in model.parameters()]
    kept = {name: facts.get(name) for name in ("action", "survived")}
    out.write_text(json.dumps({"weights": weights, "facts": kept}))


def in_child(name: str, free: int | None, policy: Policy | None, folder: Path) -> dict[str, Any]:
    """Train in a forked process, so that its limit is its own."""
    out = folder / "out.json"
    out.unlink(missing_ok=True)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            train(name, free, policy, out)
            status = 0
        except (RuntimeError, MemoryError) as error:
            out.write_text(json.dumps({"error": str(error).splitlines()[0][:160]}))
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    found: dict[str, Any] = json.loads(out.read_text()) if out.exists() else {}
    return {**found, "status": os.waitstatus_to_exitcode(status)}


def flatten(values: Any) -> Iterator[float]:
    for value in values if isinstance(values, list) else ():
        if isinstance(value, list):
            yield from flatten(value)
        else:
            yield float(value)


def compare(name: str, free: int, folder: Path) -> dict[str, Any]:
    whole = in_child(name, None, None, folder)
    alone = in_child(name, free, None, folder)
    split = in_child(name, free, Policy(on_oom="split"), folder)
    outcome = split.get("facts") or {"error": split.get("error")}
    row = {
        "free_mib": free >> 20,
        "alone": {"status": alone["status"], "error": alone.get("error")},
        "split": {"status": split["status"], **outcome},
    }
    if "weights" in split:
        one, other = list(flatten(whole["weights"])), list(flatten(split["weights"]))
        row["largest_difference"] = max(abs(a - b) for a, b in zip(one, other, strict=True))
        row["largest_weight"] = max(map(abs, one))
        row["bit_equal"] = one == other
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--out", type=Path)
    parser.add_argument("--free", type=int, default=160, help="MiB that the large batch may use")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in CASES:
            rows[name] = compare(name, arguments.free << 20, Path(folder))
            print(name, rows[name], flush=True)
    result = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "headway": headway.__version__,
        "models": rows,
    }
    if arguments.out:
        arguments.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
