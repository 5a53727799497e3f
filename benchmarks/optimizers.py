"""Whether a skipped step changes nothing, for the optimizers of torch and of PyPI packages.

    python benchmarks/optimizers.py [--only schedulefree lion_pytorch] [--json FILE]

Runs every optimizer of torch, and those of the PyPI packages that are installed. Each trains 12
steps under a guard with one NaN and one Inf in the loss, without a guard on the good batches alone,
and 12 healthy steps with and without a guard. Weights and everything that the optimizer holds are
compared bit by bit.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import inspect
import json
import logging
import os
import platform
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import torch
from support.outside_optimizers import (
    FAULTS,
    OUTSIDE,
    OutsideOptimizer,
    Training,
    load,
    matrices,
    try_healthy,
    try_skips,
)
from support.trainings import batches
from torch import nn

import headway

os.environ["HEADWAY_STRICT"] = "1"  # a guard that fails raises
SPARSE = "SparseAdam"
DISTRIBUTIONS = {"muon": "muon-optimizer", "torch": "torch", "ranger21": "ranger21"}
"""Distributions whose name is not that of the module."""


def torchs_own() -> Iterator[OutsideOptimizer]:
    """All of `torch.optim`; SparseAdam takes no dense gradients and is tested elsewhere."""
    for name, kind in sorted(vars(torch.optim).items()):
        if not inspect.isclass(kind) or not issubclass(kind, torch.optim.Optimizer):
            continue
        if kind is torch.optim.Optimizer or name == SPARSE:
            continue
        make: Callable[[nn.Module, Any], Any] = lambda model, module, name=name: getattr(  # noqa: E731
            module, name
        )(matrices(model) if name == "Muon" else model.parameters(), lr=1e-2)
        yield OutsideOptimizer("torch.optim", name, make, closure=name == "LBFGS")


def distribution(package: str) -> tuple[str, str]:
    """Name and version of the distribution that a module is from."""
    module = package.partition(".")[0]
    found = importlib.metadata.packages_distributions().get(module, [module])
    name = DISTRIBUTIONS.get(module, found[0])
    try:
        return name, importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return name, "?"


def try_one(item: OutsideOptimizer) -> dict[str, Any]:
    """The result for one optimizer."""
    name, version = distribution(item.package)
    row: dict[str, Any] = {"package": name, "version": version, "optimizer": item.name}
    begun = time.perf_counter()
    try:
        module = load(item.package)
    except Exception as error:  # not installed, or it does not load under this torch
        return row | {"result": "not installed", "detail": f"{type(error).__name__}: {error}"[:200]}

    def make(model: nn.Module) -> Any:
        return item.make(model, module)

    how = {"closure": item.closure, "graph": item.create_graph}
    try:
        training = Training(make, **how)
        for batch in batches(3):
            training.step(batch)
    except Exception as error:  # its own: it fails without a guard
        return row | {
            "result": "fails by itself",
            "detail": f"{type(error).__name__}: {error}"[:200],
        }
    try:
        healthy, skips = try_healthy(make, **how), try_skips(make, **how)
    except Exception as error:  # reported
        return row | {"result": "crash", "detail": f"{type(error).__name__}: {error}"[:300]}
    row |= {
        "changed_by_skip": skips.changed[:5],
        "later": skips.later[:5],
        "healthy": healthy[:5],
        "skipped": skips.skipped,
        "seconds": round(time.perf_counter() - begun, 1),
    }
    if healthy or skips.changed or skips.skipped != list(FAULTS):
        return row | {"result": "differs"}
    if skips.later:
        return row | {"result": "later draws differ" if item.draws else "differs"}
    return row | {"result": "exact"}


def summary(rows: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Results by package."""
    found: dict[str, dict[str, Any]] = {}
    for row in rows:
        entry = found.setdefault(
            row["package"], {"version": row["version"], "tried": 0, "exact": 0, "others": []}
        )
        if row["result"] in ("not installed", "fails by itself"):
            entry["others"].append(f"{row['optimizer']}: {row['result']}")
            continue
        entry["tried"] += 1
        entry["exact"] += row["result"] == "exact"
        if row["result"] != "exact":
            entry["others"].append(f"{row['optimizer']}: {row['result']}")
    return found


def markdown(by_package: dict[str, dict[str, Any]]) -> str:
    lines = ["| package | version | optimizers | exact | others |", "|---|---|---|---|---|"]
    lines += [
        f"| {name} | {entry['version']} | {entry['tried']} | {entry['exact']} | "
        f"{'; '.join(entry['others'])} |"
        for name, entry in by_package.items()
        if entry["tried"]
    ]
    return "\n".join(lines)


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    """Add these rows to a result, in place of older ones of the same optimizers."""
    new = {(row["package"], row["optimizer"]): row for row in rows}
    if path.exists():
        old = json.loads(path.read_text())["optimizers"]
        new = {(row["package"], row["optimizer"]): row for row in old} | new
    result = {
        "date": time.strftime("%Y-%m-%d"),
        "hardware": f"{platform.machine()}, {os.cpu_count()} cores, one thread",
        "versions": {
            "headway": headway.__version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
        "packages": summary(list(new.values())),
        "optimizers": list(new.values()),
    }
    path.write_text(json.dumps(result, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", default=[""], help="parts of the package and name")
    parser.add_argument("--json", type=Path, help="a result that exists is added to")
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    rows = []
    for item in (*torchs_own(), *OUTSIDE):
        if any(part in str(item) for part in options.only):
            rows.append(try_one(item))
            print(f"{rows[-1]['result']:18} {item}", rows[-1].get("detail", ""), flush=True)
            if options.json:
                write(options.json, rows)
    by_package = summary(rows)
    print(markdown(by_package))
    tried = sum(entry["tried"] for entry in by_package.values())
    exact = sum(entry["exact"] for entry in by_package.values())
    print(f"{exact} of {tried} exact, {sum(row['result'] == 'crash' for row in rows)} crashes")


if __name__ == "__main__":
    main()
