"""Trainings on several ranks whose bad steps are re-run; one rank has a planted origin."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from headway import Guard, Policy
from headway.explain import locate
from support.rank_trainings import local_state, synchronised

ROWS = 8


class Trap(torch.autograd.Function):
    """Fine on the way there, raises on the way back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        raise ValueError("a trap in backward")


class Net(nn.Module):
    """A share that is 0 for a sample whose first feature is."""

    trap = staticmethod(lambda where: False)
    """Whether to raise here and now."""
    spares = False
    """Whether the spare layer takes part."""

    def __init__(self, *, normed: bool = True) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 12)
        self.norm = nn.BatchNorm1d(12) if normed else nn.Identity()
        self.drop = nn.Dropout(0.2)
        self.head = nn.Linear(12, 4)
        self.spare = nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.drop(torch.relu(self.norm(self.inner(x))))
        if self.trap("forward"):
            raise ValueError("a trap in forward")
        if self.trap("backward"):
            hidden = Trap.apply(hidden)
        scores = self.head(hidden)
        if self.spares:
            scores = scores + self.spare(hidden)
        shares = scores.softmax(-1) * (x[:, :1] != 0)
        return torch.log(shares)  # born here


def born_on() -> int:
    """The line of the planted origin."""
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
    """(step, rank, row) of samples with far too large a weight."""
    accumulate: int = 1
    always_reduce: bool = False
    clip: float | None = None
    keep_gradients: bool = False
    wrap: dict[str, Any] = field(default_factory=dict)
    policy: dict[str, Any] = field(default_factory=dict)
    run_dir: Path | None = None
    normed: bool = True
    trap: tuple[str, int, int] | None = None
    """(where, rank, pass): there a step that is run again raises."""
    twist: str = ""
    """What rank 1 does otherwise than the others."""

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
    compiled: int
    """Calls of what was compiled."""


def data_of(rank: int, plan: Plan) -> list[tuple[Tensor, Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(100 + rank)
    found = [
        (
            torch.randn(ROWS, 6, generator=generator),
            torch.randint(0, 4, (ROWS,), generator=generator),
            torch.ones(ROWS),
        )
        for _ in range(plan.steps * plan.accumulate)
    ]
    for step, who, row in plan.bad:
        if who == rank:
            found[step * plan.accumulate][0][row, 0] = 0
    for step, who, row in plan.large:
        if who == rank:
            found[step * plan.accumulate][2][row] = 1e8
    return found


def train(rank: int, plan: Plan) -> Outcome:
    """Run a plan on this rank."""
    torch.manual_seed(0)
    model = wrapped(Net(normed=plan.normed), plan)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    policy = Policy(**{"replay_gap": 0, **plan.policy})
    group = dist.group.WORLD if plan.kind == "by hand" else None
    guard = Guard(model, optimizer, run_dir=plan.run_dir, policy=policy, group=group)
    compiled = Counter()
    if plan.twist == "compiled":
        model.compile(backend=compiled)
    trap = _Trap(plan.trap, rank, guard)
    users(model).trap = trap
    losses: list[float] = []
    data = data_of(rank, plan)
    otherwise = plan.twist if rank == 1 else ""
    if otherwise == "in a generator":
        losses += _trained(guard, data, model, optimizer)
        data = []
    for at, (x, y, weight) in enumerate(data if otherwise == "no loader" else guard(data), 1):
        if trap("begin"):
            raise ValueError("a trap before anything")
        if otherwise == "dies" and guard.replaying:
            os._exit(1)
        users(model).spares = plan.twist == "spares" and at % 2 == 0
        last = at % plan.accumulate == 0
        with synchronised(model, last or plan.always_reduce):
            loss = loss_of(model, x, y, weight) / plan.accumulate
            loss.backward()
        losses.append(float(loss.detach()))
        if trap("end"):
            raise ValueError("a trap after all")
        if otherwise == "changes its batch":
            x.zero_()
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
        compiled.calls,
    )


def _trained(guard: Guard, data: Any, model: nn.Module, optimizer: Any) -> Iterator[float]:
    """A loop whose body cannot be taken out of it."""
    for x, y, weight in guard(data):
        loss = loss_of(model, x, y, weight)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield float(loss.detach())


def loss_of(model: nn.Module, x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    return (nn.functional.nll_loss(model(x), y, reduction="none") * weight).mean()


class Counter:
    """A compiler that changes nothing and counts."""

    calls = 0

    def __call__(self, graph: Any, inputs: Any) -> Any:
        def run(*args: Any) -> Any:
            self.calls += 1
            return graph(*args)

        return run


class _Trap:
    """Springs once, in one pass of a step that is run again."""

    def __init__(self, plan: tuple[str, int, int] | None, rank: int, guard: Guard) -> None:
        self._armed = plan is not None and plan[1] == rank
        self._where, _, self._at = plan or ("", 0, 0)
        self._guard = guard
        self._seen = 0

    def __call__(self, where: str) -> bool:
        if not self._armed or where != self._where or not self._guard.replaying:
            return False
        self._seen += 1
        return self._seen == self._at + 1


def users(model: nn.Module) -> Any:
    return model.module if isinstance(model, nn.parallel.DistributedDataParallel) else model


def vars_of(where: Any) -> dict[str, Any]:
    names = ("file", "line", "op", "module", "rank", "sample")
    return {} if where is None else {name: getattr(where, name) for name in names}


def wrapped(model: Net, plan: Plan) -> nn.Module:
    if not (plan.wrap.get("find_unused_parameters") or plan.wrap.get("static_graph")):
        del model.spare
    if plan.kind == "by hand":
        return model
    if plan.kind == "ddp":
        replica = nn.parallel.DistributedDataParallel(model, **plan.wrap)
        if plan.twist == "compressed":
            replica.register_comm_hook(None, in_half)
        return replica
    size = dist.get_world_size()
    mesh = (
        init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("replicate", "shard"))
        if plan.kind == "hsdp"
        else init_device_mesh("cpu", (size,))
    )
    fully_shard(model.inner, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def in_half(state, bucket):  # type: ignore[no-untyped-def]  # torch reads annotations
    """Gradients travel in float16."""
    return default_hooks.fp16_compress_hook(None, bucket)


def average(model: nn.Module) -> None:
    for parameter in model.parameters():
        assert parameter.grad is not None
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()


def each(rank: int, plans: Sequence[Plan]) -> list[tuple[Outcome, Outcome]]:
    """Of every plan: looked into, and merely skipped."""
    found = []
    for plan in plans:
        skipping = plan.but(policy={**plan.policy, "replay": False}, run_dir=None, trap=None)
        found.append((train(rank, plan), train(rank, skipping)))
    return found


def with_a_defect(rank: int, plan: Plan) -> Outcome:
    """On rank 1 the investigation itself breaks."""
    os.environ.pop("HEADWAY_STRICT", None)
    if rank == 1:
        locate.find_origins = None  # type: ignore[assignment]
    return train(rank, plan)


def collectives_of_rerun(rank: int, plan: Plan) -> int:
    """How many collectives the ranks make to run a bad step again: those of the guard's group."""
    # In memory that a re-run does not restore.
    count = memoryview(mmap.mmap(-1, mmap.PAGESIZE)).cast("q")

    def counted(original: Any) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            count[0] += options.get("group") is not dist.group.WORLD
            return original(*args, **options)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for name in ("all_reduce", "all_gather", "broadcast"):
            patch.setattr(dist, name, counted(getattr(dist, name)))
        train(rank, plan)
    return count[0]


def until_lost(rank: int, plan: Plan) -> str:
    """What a rank hears when another is gone."""
    try:
        train(rank, plan)
    except Exception as error:
        return type(error).__name__
    return ""
