"""Trainings on several ranks whose bad steps are run again, with a birth planted on one of them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from gang import gang
from together import collectives_so_far, local_state, synchronised
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from holdfast import Guard, Policy

ROWS = 8


class Net(nn.Module):
    """A share that is 0 for a sample whose first feature is."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 12)
        self.norm = nn.BatchNorm1d(12)
        self.drop = nn.Dropout(0.2)
        self.head = nn.Linear(12, 4)
        self.spare = nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.drop(torch.relu(self.norm(self.inner(x))))
        shares = self.head(hidden).softmax(-1) * (x[:, :1] != 0)
        return torch.log(shares)  # born here


def born_on() -> int:
    """The line of the planted birth."""
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    return next(at for at, line in enumerate(lines, 1) if line.endswith("# born here"))


@dataclass(frozen=True)
class Plan:
    """A training on several ranks."""

    kind: str = "ddp"
    steps: int = 12
    bad: tuple[tuple[int, int, int], ...] = ((7, 1, 3),)
    """(step, rank, row) of the samples that are no good."""
    large: tuple[tuple[int, int, int], ...] = ()
    """(step, rank, row) of samples that are far too large."""
    accumulate: int = 1
    always_reduce: bool = False
    clip: float | None = None
    keep_gradients: bool = False
    wrap: dict[str, Any] = field(default_factory=dict)
    policy: dict[str, Any] = field(default_factory=dict)
    run_dir: Path | None = None
    twist: str = ""
    """What else happens, and to whom; see `_Twist`."""

    def but(self, **changes: Any) -> Plan:
        return replace(self, **changes)


@dataclass
class Outcome:
    """What one rank is left with."""

    losses: list[float]
    state: dict[str, Any]
    explanations: list[dict[str, Any]]
    findings: list[tuple[str, int | None, dict[str, Any]]]
    actions: list[dict[str, Any]]
    collectives: int


def data_of(rank: int, plan: Plan) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(100 + rank)
    found = [
        (
            torch.randn(ROWS, 6, generator=generator),
            torch.randint(0, 4, (ROWS,), generator=generator),
        )
        for _ in range(plan.steps * plan.accumulate)
    ]
    for step, who, row in plan.bad:
        if who == rank:
            found[step * plan.accumulate][0][row, 0] = 0
    for step, who, row in plan.large:
        if who == rank:
            found[step * plan.accumulate][0][row] *= 1e6
    return found


def train(rank: int, plan: Plan) -> Outcome:
    """Run a plan on this rank."""
    torch.manual_seed(0)
    model = wrapped(Net(), plan)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    policy = Policy(**{"replay_gap": 0, **plan.policy})
    group = dist.group.WORLD if plan.kind == "by hand" else None
    guard = Guard(model, optimizer, run_dir=plan.run_dir, policy=policy, group=group)
    losses: list[float] = []
    at = 0
    for x, y in guard(data_of(rank, plan)):
        at += 1
        last = at % plan.accumulate == 0
        with synchronised(model, last or plan.always_reduce):
            loss = nn.functional.nll_loss(model(x), y) / plan.accumulate
            loss.backward()
        losses.append(float(loss.detach()))
        if not last:
            continue
        if plan.kind == "by hand":
            average(model)
        if plan.clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), plan.clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=not plan.keep_gradients)
    guard.close()
    return Outcome(
        losses,
        local_state(model, optimizer),
        [explanation.to_dict() for explanation in guard.explanations],
        [(f.code, f.step, vars_of(f.where)) for f in guard.findings],
        [action.to_dict() for action in guard.actions],
        collectives_so_far(),
    )


def vars_of(where: Any) -> dict[str, Any]:
    names = ("file", "line", "op", "module", "rank", "sample")
    return {} if where is None else {name: getattr(where, name) for name in names}


def wrapped(model: Net, plan: Plan) -> nn.Module:
    if not (plan.wrap.get("find_unused_parameters") or plan.wrap.get("static_graph")):
        del model.spare
    if plan.kind == "by hand":
        return model
    if plan.kind == "ddp":
        return nn.parallel.DistributedDataParallel(model, **plan.wrap)
    size = dist.get_world_size()
    mesh = (
        init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("replicate", "shard"))
        if plan.kind == "hsdp"
        else init_device_mesh("cpu", (size,))
    )
    fully_shard(model.inner, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def average(model: nn.Module) -> None:
    for parameter in model.parameters():
        assert parameter.grad is not None
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()


def both(rank: int, plan: Plan) -> tuple[Outcome, Outcome]:
    """Looked into, and merely skipped."""
    return train(rank, plan), train(rank, plan.but(policy={"replay": False}, run_dir=None))
