"""Small trainings on several ranks, with faults planted on one of them."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch._dynamo  # DistributedDataParallel wants it, and importing takes it seconds
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.utils import clip_grad_norm_  # by name, long before any guard exists
from trainings import batches

from holdfast import Guard


class Net(nn.Module):
    """Sizes that no number of ranks divides: some ranks hold empty pieces."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 13)
        self.middle = nn.Linear(13, 5)
        self.norm = nn.BatchNorm1d(5)
        self.unused = nn.Linear(3, 2)
        self.head = nn.Linear(5, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.norm(self.middle(torch.tanh(self.inner(x))))))


class BadBackward(torch.autograd.Function):
    """Fine on the way there, NaN on the way back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        return gradient * float("nan")


@dataclass(frozen=True)
class Plan:
    """A training on several ranks."""

    kind: str = "ddp"
    steps: int = 30
    guarded: bool = True
    faults: dict[int, tuple[int, str]] = field(default_factory=dict)
    """By step: the rank it happens on, and what."""
    without: frozenset[int] = frozenset()
    """Steps whose batches nobody ever sees."""
    accumulate: int = 1
    clip: float | None = None
    wrap: dict[str, Any] = field(default_factory=dict)
    """Options of DistributedDataParallel."""
    guard: dict[str, Any] = field(default_factory=dict)
    optimizer: str = "Adam"
    keep_gradients: bool = False
    """Zero them instead of setting them to None."""
    always_reduce: bool = False
    """Reduce the gradients after every micro-batch, not only after the last."""
    fault_at: int = -1
    """The micro-batch of a step that a fault strikes; -1: the last."""
    each: Callable[[int, int, Any, Any], None] | None = None
    """Called before every step: (rank, step, model, guard)."""

    def but(self, **changes: Any) -> Plan:
        return replace(self, **changes)


@dataclass
class Outcome:
    """What one rank is left with."""

    state: dict[str, Tensor]
    whole: dict[str, Tensor]
    """The weights as they are over all ranks."""
    losses: list[float]
    actions: list[dict[str, Any]]
    findings: list[tuple[str, int | None, int | None]]
    said: list[str]
    collectives: list[int]
    """How many the default group made by the end of each step."""
    norms: list[float]


def train(rank: int, plan: Plan, device: str = "cpu") -> Outcome:
    """Run a plan on this rank."""
    said = listen()
    torch.manual_seed(0)
    net = Net().to(device)
    model = wrapped(net, plan)
    optimizer = _optimizer(plan, model)
    watched = net if plan.kind == "inner" else model
    guard = Guard(watched, optimizer, **plan.guard) if plan.guarded else None
    data = [
        (x.to(device), y.to(device))
        for at, (x, y) in enumerate(batches(plan.steps * plan.accumulate, seed=100 + rank))
        if at // plan.accumulate not in plan.without
    ]
    numbers = [at for at in range(plan.steps) if at not in plan.without]
    losses, collectives, norms = [], [], []
    for count, batch in enumerate(guard(data) if guard else data):
        number, micro = numbers[count // plan.accumulate], count % plan.accumulate
        last = micro == plan.accumulate - 1
        struck = micro == plan.fault_at % plan.accumulate
        fault = plan.faults.get(number) if struck else None
        with synchronised(model, last or plan.always_reduce):
            loss = loss_of(model, batch, fault[1] if fault and fault[0] == rank else "")
            (loss / plan.accumulate).backward()
        if not last:
            continue
        if plan.each is not None:
            plan.each(rank, number, model, guard)
        if plan.clip is not None:
            norm = clip_grad_norm_(model.parameters(), plan.clip)
            norms.append(float(norm.full_tensor() if isinstance(norm, DTensor) else norm))
        optimizer.step()
        optimizer.zero_grad(set_to_none=not plan.keep_gradients)
        losses.append(float(loss.detach()))
        collectives.append(collectives_so_far())
    if guard:
        guard.close()
    return Outcome(
        state=local_state(model, optimizer),
        whole={name: whole_of(tensor) for name, tensor in model.named_parameters()},
        losses=losses,
        actions=[action.to_dict() for action in guard.actions] if guard else [],
        findings=[(f.code, f.step, f.where.rank if f.where else None) for f in guard.findings]
        if guard
        else [],
        said=said,
        collectives=collectives,
        norms=norms,
    )


def wrapped(model: nn.Module, plan: Plan) -> nn.Module:
    if plan.kind == "local":
        return model
    if plan.kind in ("ddp", "inner"):  # inner: the guard is given what the wrapper holds
        options = dict(plan.wrap)
        if not (options.get("find_unused_parameters") or options.get("static_graph")):
            del model.unused
        hook = options.pop("hook", None)
        replica = nn.parallel.DistributedDataParallel(model, **options)
        if hook is not None:
            replica.register_comm_hook(None, hook)
        return replica
    size = dist.get_world_size()
    mesh = (
        init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("replicate", "shard"))
        if plan.kind == "hsdp"
        else init_device_mesh("cpu", (size,))
    )
    del model.unused  # FSDP2 has no gradient for what takes no part
    if plan.kind == "mixed":  # the head stays whole on every rank, and is averaged by hand
        for layer in (model.inner, model.middle):
            fully_shard(layer, mesh=mesh)
        for parameter in (*model.norm.parameters(), *model.head.parameters()):
            parameter.register_post_accumulate_grad_hook(average)
        return model
    for layer in (model.inner, model.middle):
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def average(parameter: Tensor) -> None:
    assert parameter.grad is not None
    dist.all_reduce(parameter.grad)
    parameter.grad /= dist.get_world_size()


def synchronised(model: nn.Module, last: bool) -> contextlib.AbstractContextManager[Any]:
    if isinstance(model, nn.parallel.DistributedDataParallel):
        return contextlib.nullcontext() if last else model.no_sync()
    if hasattr(model, "set_requires_gradient_sync"):
        model.set_requires_gradient_sync(last)
    return contextlib.nullcontext()


def loss_of(model: nn.Module, batch: tuple[Tensor, Tensor], fault: str) -> Tensor:
    x, y = batch
    if fault == "input":
        x = x.clone()
        x[1, 2] = float("nan")
    answer = model(x)
    if fault == "backward":
        answer = BadBackward.apply(answer)
    loss = ((answer - y) ** 2).mean()
    if fault == "loss":
        loss = loss * float("nan")
    if fault == "only the loss":  # its gradients are in order
        loss = loss + loss.detach() * float("inf")
    if fault == "spike":
        loss = loss * 1e5
    return loss


def _optimizer(plan: Plan, model: nn.Module) -> torch.optim.Optimizer:
    parameters = list(model.parameters())
    if plan.optimizer in ("SGD", "SGD fused"):
        fused = plan.optimizer == "SGD fused"
        return torch.optim.SGD(parameters, lr=1e-2, momentum=0.9, fused=fused)
    if plan.optimizer == "fused":
        return torch.optim.Adam(parameters, lr=1e-2, fused=True)
    return torch.optim.Adam(parameters, lr=1e-2)


def local_state(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Weights, buffers and moments as they lie on this rank."""
    state = {f"model.{name}": local_of(value) for name, value in model.state_dict().items()}
    for at, entry in enumerate(optimizer.state.values()):
        state |= {f"{at}.{key}": local_of(value) for key, value in entry.items()}
    return state


def local_of(tensor: Any) -> Any:
    if isinstance(tensor, DTensor):
        tensor = tensor.to_local()
    return tensor.detach().clone() if isinstance(tensor, Tensor) else tensor


def whole_of(tensor: Tensor) -> Tensor:
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().clone()


def collectives_so_far() -> int:
    """The default group counts them itself."""
    group = dist.distributed_c10d._get_default_group()
    return int(group._get_sequence_number_for_group())


def listen() -> list[str]:
    said: list[str] = []

    class Ear(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(record.getMessage())

    logging.getLogger("holdfast").addHandler(Ear())
    return said


def run_all(rank: int, works: Sequence[tuple[Callable[..., Any], Any]]) -> list[Any]:
    """Several pieces of work in one process group, one after the other."""
    return [work(rank, plan) for work, plan in works]
