"""Small trainings on several ranks, with faults planted on one of them."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
import torch._dynamo  # DistributedDataParallel wants it, and importing takes it seconds
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.utils import clip_grad_norm_  # by name, long before any guard exists

from headway import Guard
from headway.errors import UsageError
from headway.guard import optimizer_step
from headway.guard.measure.step_record import LAG, HostTransfer
from headway.guard.optimizer_step import OptimizerStep
from headway.guard.ranks.rank_vote import StepVote
from headway.guard.recorder import Recorder
from headway.guard.step_machine import StepMachine
from headway.guard.step_outcomes import StepOutcomes
from headway.torch_adapters.process_groups import rank_group
from headway.torch_adapters.step_skipping import HostBrake
from support.trainings import batches


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
    resume: bool = False
    """Take up what an earlier run has left in the run directory."""
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
    if guard and plan.resume:
        guard.resume()
    data = [
        (x.to(device), y.to(device))
        for at, (x, y) in enumerate(batches(plan.steps * plan.accumulate, seed=100 + rank))
        if at // plan.accumulate not in plan.without
    ]
    numbers = [at for at in range(plan.steps) if at not in plan.without]
    losses, collectives, norms = [], [], []
    done = guard.step * plan.accumulate if guard else 0
    for count, batch in enumerate(guard(data) if guard else data, start=done):
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
        whole={name: _whole(tensor) for name, tensor in model.named_parameters()},
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
        if hook == "built-in":
            replica._register_builtin_comm_hook(dist.BuiltinCommHookType.ALLREDUCE)
        elif hook is not None:
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
            parameter.register_post_accumulate_grad_hook(_average)
        return model
    for layer in (model.inner, model.middle):
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def _average(parameter: Tensor) -> None:
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
    state = {f"model.{name}": _local(value) for name, value in model.state_dict().items()}
    for at, entry in enumerate(optimizer.state.values()):
        state |= {f"{at}.{key}": _local(value) for key, value in entry.items()}
    return state


def _local(tensor: Any) -> Any:
    if isinstance(tensor, DTensor):
        tensor = tensor.to_local()
    return tensor.detach().clone() if isinstance(tensor, Tensor) else tensor


def _whole(tensor: Tensor) -> Tensor:
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

    logging.getLogger("headway").addHandler(Ear())
    return said


def run_all(rank: int, works: Sequence[tuple[Callable[..., Any], Any]]) -> list[Any]:
    """Several pieces of work in one process group, one after the other."""
    return [work(rank, plan) for work, plan in works]


def halved(state, bucket):  # type: ignore[no-untyped-def]  # torch reads annotations
    """Somebody's own communication hook: the average, sent as bfloat16."""
    return default_hooks.bf16_compress_hook(None, bucket)


def train_with_defect(rank: int, plan: Plan, victim: int, method: str, after: int) -> Outcome:
    """A plan in which a method of the guard breaks on one rank after some calls."""
    os.environ.pop("HEADWAY_STRICT", None)
    if rank == victim:
        owner = {
            "watch": OptimizerStep,
            "machine": StepMachine,
            "outcomes": StepOutcomes,
            "recorder": Recorder,
            "ballot": StepVote,
            "brake": HostBrake,
        }[method.partition(".")[0]]
        _break(owner, method.partition(".")[2], after)
    return train(rank, plan)


def _break(owner: type, name: str, after: int) -> None:
    original, calls = getattr(owner, name), []

    def broken(*args: Any, **kwargs: Any) -> Any:
        calls.append(name)
        if len(calls) == after + 1:
            raise ValueError("a defect")
        return original(*args, **kwargs)

    setattr(owner, name, broken)


def train_until_lost(
    rank: int, plan: Plan, victim: int, at: int, hangs: bool = False
) -> tuple[str, str, int]:
    """One rank dies, or hangs, between its backward and its step; what each rank hears, and how far
    it came."""
    steps: list[int] = []

    def each(rank: int, number: int, model: Any, guard: Any) -> None:
        steps.append(number)
        if plan.each is not None:
            plan.each(rank, number, model, guard)
        if rank == victim and number == at:
            if hangs:
                time.sleep(7)
            os._exit(1)

    os.environ.pop("HEADWAY_STRICT", None)
    try:
        train(rank, plan.but(each=each))
    except Exception as error:
        return type(error).__name__, str(error), steps[-1]
    return "", "", steps[-1]


def train_until_asked_to_leave(rank: int, plan: Plan, victim: int, at: int) -> int:
    """One rank is asked to leave; the step after which each of them goes."""
    steps = []

    def each(rank: int, number: int, model: Any, guard: Any) -> None:
        steps.append(number)
        if rank == victim and number == at:
            guard._ranks.request_exit()

    try:
        train(rank, plan.but(each=each))
    except SystemExit as left:
        return steps[-1] if left.code == 128 + signal.SIGTERM else -1
    return -1


def poison_a_weight(rank: int, step: int, model: Any, guard: Any) -> None:
    """Rank 1's own copy or piece of a weight goes bad at step 8."""
    if rank == 1 and step == 8:
        weight = next(model.parameters())
        local = weight.to_local() if isinstance(weight, DTensor) else weight
        with torch.no_grad():
            local[0, 0] = float("nan")


def nudge_a_weight(rank: int, step: int, model: Any, guard: Any) -> None:
    """Rank 1's copy of a weight moves by the least there is, at step 50."""
    if rank == 1 and step == 50:
        weight = next(model.parameters())
        with torch.no_grad():
            weight[0, 0] = torch.nextafter(weight[0, 0], torch.tensor(9.0))


def train_with_two_defects(rank: int, plan: Plan) -> Outcome:
    """The guards of the ranks after the first fail one after the other."""
    return train_with_defect(rank, plan, rank if rank else -1, "watch.before", 4 + rank)


def train_scaled(
    rank: int, plan: Plan, defect: str = "", scale: float = 2.0**127
) -> tuple[Outcome, list[float]]:
    """A plan under a GradScaler that has to find its scale; the scale after each step."""
    said = listen()
    if defect and rank == 1:
        os.environ.pop("HEADWAY_STRICT", None)
        _break(StepMachine, defect, 1)
    torch.manual_seed(0)
    model = wrapped(Net(), plan)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=4)
    options = {**plan.guard, "group": dist.group.WORLD if plan.kind == "local" else None}
    guard = Guard(model, optimizer, scaler=scaler, **options) if plan.guarded else None
    scales, collectives = [], []
    for number, batch in enumerate(batches(plan.steps, seed=100 + rank)):
        fault = plan.faults.get(number)
        loss = loss_of(model, batch, fault[1] if fault and fault[0] == rank else "")
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        scales.append(scaler.get_scale())
        collectives.append(collectives_so_far())
    if guard:
        guard.close()
    whole = {name: _whole(tensor) for name, tensor in model.named_parameters()}
    actions = [action.to_dict() for action in guard.actions] if guard else []
    state = local_state(model, optimizer)
    return Outcome(state, whole, [], actions, [], said, collectives, []), scales


def train_two(rank: int, plan: Plan) -> list[dict[str, Any]]:
    """Two models, two optimizers, steps in turn; the actions of the guard."""
    torch.manual_seed(0)
    nets = [wrapped(Net(), plan) for _ in range(2)]
    optimizers = [torch.optim.SGD(net.parameters(), lr=1e-2) for net in nets]
    with Guard(nets, optimizers, **plan.guard) as guard:
        for number, batch in enumerate(guard(batches(plan.steps, seed=100 + rank))):
            fault = plan.faults.get(number)
            for at in (0, 1):
                struck = fault is not None and fault[0] == rank and at == 1
                # The second looks through the first, whose gradients it fills and clears.
                loss = loss_of(nets[at], batch, fault[1] if struck and fault else "")
                if at:
                    loss = loss + loss_of(nets[0], batch, "")
                loss.backward()
                optimizers[at].step()
                for optimizer in optimizers:
                    optimizer.zero_grad()
    whole = [_whole(tensor) for net in nets for tensor in net.parameters()]
    return [*[action.to_dict() for action in guard.actions], {"whole": whole}]


def train_by_closure(rank: int, plan: Plan) -> Outcome:
    """LBFGS, which calls backward itself."""
    torch.manual_seed(0)
    model = wrapped(Net(), plan)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)
    guard = Guard(model, optimizer, **plan.guard) if plan.guarded else None
    for number, batch in enumerate(batches(plan.steps, seed=100 + rank)):
        fault = plan.faults.get(number)
        struck = fault[1] if fault and fault[0] == rank else ""

        def closure(batch: Any = batch, struck: str = struck) -> Tensor:
            optimizer.zero_grad()
            loss = loss_of(model, batch, struck)
            loss.backward()
            return loss

        if number not in plan.without:
            optimizer.step(closure)
    if guard:
        guard.close()
    whole = {name: _whole(tensor) for name, tensor in model.named_parameters()}
    actions = [action.to_dict() for action in guard.actions] if guard else []
    return Outcome(local_state(model, optimizer), whole, [], actions, [], [], [], [])


def train_apart(rank: int, plan: Plan, steps: Sequence[int]) -> tuple[Outcome, int]:
    """Every rank trains a model of its own, for as many steps as it likes."""
    before = collectives_so_far()
    outcome = train(rank, plan.but(kind="local", steps=steps[rank]))
    return outcome, outcome.collectives[-1] - before


def train_with_group(rank: int, plan: Plan) -> Outcome:
    """Gradients are averaged by hand; the guard is told who does it."""

    def each(rank: int, number: int, model: Any, guard: Any) -> None:
        for parameter in model.parameters():
            if parameter.grad is not None:
                _average(parameter)

    return train(rank, plan.but(kind="local", each=each, guard={"group": dist.group.WORLD}))


def refusals(rank: int) -> list[str]:
    """What a guard says about groups it cannot follow."""
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    dist.barrier()  # a rank that leaves while another connects fails there
    others = dist.new_group([1])
    found = []
    if rank == 0:
        try:
            Guard(model, optimizer, group=others)
        except UsageError as error:
            found.append(str(error))
    return found


def train_same_data(rank: int, plan: Plan) -> Outcome:
    """Every rank reads what rank 0 reads."""
    return train(0 if rank else rank, plan)


class Lagging(HostTransfer):
    """The CPU behaves like a device whose numbers come two steps later."""

    lag = LAG

    def __init__(self, take: Any) -> None:
        super().__init__(take)
        self._pending: deque[tuple[Any, Any]] = deque()

    def send(self, note: Any, tensors: Any) -> None:
        readings = {name: tensor.reshape(-1).tolist() for name, tensor in tensors.items()}
        self._pending.append((note, readings))

    def collect(self) -> None:
        while len(self._pending) >= LAG:
            self._take(*self._pending.popleft())

    def flush(self) -> None:
        while self._pending:
            self._take(*self._pending.popleft())


def as_on_a_device(rank: int, work: Callable[..., Any], *args: Any) -> Any:
    """The verdict stays in the fused kernel, which the CPU has as well; the host learns it late."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(optimizer_step, "is_fused_on_cuda", lambda optimizer: True)
        patch.setattr(optimizer_step, "HostTransfer", Lagging)
        return work(rank, *args)


def look_at_findings_on_one_rank(rank: int, step: int, model: Any, guard: Any) -> None:
    if rank == 0:
        assert isinstance(guard.findings, list)


def train_wrapped_late(rank: int) -> list[str]:
    """The guard comes before the wrapper."""
    said = listen()
    model = nn.Linear(6, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    with Guard(model, optimizer):
        replica = nn.parallel.DistributedDataParallel(model)
        loss_of(replica, batches(1, seed=rank)[0], "").backward()
        optimizer.step()
    return said


def train_unevenly(rank: int) -> tuple[list[str], list[Tensor]]:
    """Ranks with different numbers of batches, in torch's own way."""
    said = listen()
    torch.manual_seed(0)
    replica = nn.parallel.DistributedDataParallel(nn.Linear(6, 1))
    optimizer = torch.optim.SGD(replica.parameters(), lr=1e-2)
    with Guard(replica, optimizer) as guard, replica.join():
        for batch in guard(batches(4 + 3 * rank, seed=rank)):
            loss_of(replica, batch, "").backward()
            optimizer.step()
            optimizer.zero_grad()
    return said, [parameter.detach() for parameter in replica.parameters()]


def train_idly(rank: int, plan: Plan) -> Outcome:
    """Rank 1's optimizer now and then finds no gradients; averaged by hand where there are."""

    def each(rank: int, number: int, model: Any, guard: Any) -> None:
        for parameter in model.parameters():
            if parameter.grad is not None:
                _average(parameter)
        if number % 5 == 0 and (rank == 1 or number % 2):
            for parameter in model.parameters():
                parameter.grad = None

    options = {**plan.guard, "group": dist.group.WORLD}
    return train(rank, plan.but(kind="local", each=each, guard=options))


def train_flat(rank: int, plan: Plan) -> tuple[Outcome, list[float]]:
    """FullyShardedDataParallel, the first, which cuts up flat parameters."""
    said = listen()
    torch.manual_seed(0)
    net = Net()
    del net.unused
    model = FullyShardedDataParallel(net, device_id=torch.device("cpu"), use_orig_params=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    guard = Guard(model, optimizer, **plan.guard) if plan.guarded else None
    norms = []
    for number, batch in enumerate(batches(plan.steps, seed=100 + rank)):
        fault = plan.faults.get(number)
        if number in plan.without:
            continue
        loss_of(model, batch, fault[1] if fault and fault[0] == rank else "").backward()
        if not plan.guarded:
            norms.append(float(model.clip_grad_norm_(1e9)))
        optimizer.step()
        optimizer.zero_grad()
    if guard:
        guard.close()
    actions = [action.to_dict() for action in guard.actions] if guard else []
    return Outcome(local_state(model, optimizer), {}, [], actions, [], said, [], []), norms


def spoil_a_gradient(rank: int, step: int, model: Any, guard: Any) -> None:
    """After it was averaged, rank 1's copy alone: NaN at step 24, far too large at step 27."""
    factor = {24: float("nan"), 27: 1e6}.get(step)
    if rank == 1 and factor is not None:
        gradient = next(model.parameters()).grad
        assert gradient is not None
        gradient *= factor


def clip_badly(rank: int, step: int, model: Any, guard: Any) -> None:
    """Rank 1 clips to NaN at step 7."""
    if rank == 1 and step == 7:
        clip_grad_norm_(model.parameters(), float("nan"))


def train_on_cuda(rank: int, plan: Plan) -> Outcome:
    """Two ranks may share a device when they talk over gloo."""
    outcome = train(rank, plan, "cuda")
    outcome.state = {name: _on_host(value) for name, value in outcome.state.items()}
    outcome.whole = {name: _on_host(value) for name, value in outcome.whole.items()}
    return outcome


def _on_host(value: Any) -> Any:
    return value.cpu() if isinstance(value, Tensor) else value


def train_over_nccl(rank: int, steps: int, bad: Sequence[int]) -> list[int]:
    """A rank that agrees with nobody but itself, over NCCL, and whose host never waits."""
    dist.destroy_process_group()
    store = dist.HashStore()
    torch.cuda.set_device(0)
    dist.init_process_group("nccl", store=store, rank=0, world_size=1)
    torch.manual_seed(0)
    net = Net().cuda()
    del net.unused
    model = nn.parallel.DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
    data = [(x.cuda(), y.cuda()) for x, y in batches(steps)]
    followed = rank_group.RankGroup(dist.group.WORLD, [model])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rank_group, "find_rank_group", lambda *_: followed)
        guard = Guard(model, optimizer)
    for number, batch in enumerate(guard(data)):
        if number == 5:
            torch.cuda.set_sync_debug_mode("error")
        if number == min(bad):
            torch.cuda.set_sync_debug_mode("default")  # an incident may wait
        loss_of(model, batch, "loss" if number in bad else "").backward()
        optimizer.step()
        optimizer.zero_grad()
    guard.close()
    return [action.step for action in guard.actions]
