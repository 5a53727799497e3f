"""A skipped step leaves no trace in any optimizer, and a healthy run none of the guard.

The awkward shapes of optimizers that people publish are re-created here. The packages themselves
are tested where they are installed: `benchmarks/optimizers.py` runs them all and prints a table.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.grids import every_nth
from support.outside_optimizers import (
    FAULTS,
    OUTSIDE,
    OutsideOptimizer,
    deep_state,
    differences,
    load,
    make_model,
    try_healthy,
    try_skips,
)
from support.trainings import batches, nothing_else_trains
from torch import Tensor, nn
from torch.optim import Optimizer

from headway import Guard
from headway.config import Settings
from headway.errors import UsageError
from headway.guard.script.launcher import ScriptLauncher
from headway.guard.script.script_guard import ScriptGuard
from headway.policy import Policy
from headway.torch_adapters import step_skipping


class CountsInGroups(Optimizer):
    """As schedule-free optimizers, Adan and Prodigy do: the counter is in `param_groups`."""

    def __init__(self, params: Any, lr: float = 1e-2) -> None:
        super().__init__(params, {"lr": lr, "k": 0, "weight_sum": 0.0, "d": torch.tensor(1e-3)})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        loss = None if closure is None else torch.enable_grad()(closure)()
        for group in self.param_groups:
            group["k"] += 1
            group["weight_sum"] += group["lr"] ** 2
            group["d"].mul_(1.5)
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.add_(parameter.grad, alpha=-group["lr"] / group["k"])
        return loss


class CountsInAttributes(Optimizer):
    """A counter, a list and a schedule of its own, in attributes."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 1e-2})
        self.calls = 0
        self.rates: list[float] = []
        self.settings = {"decayed": {"times": 0}}

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        self.calls += 1
        self.rates.append(1e-2 / self.calls)
        self.settings["decayed"]["times"] += 1
        for group in self.param_groups:
            group["lr"] *= 0.9
            for parameter in group["params"]:
                parameter.mul_(0.999)
                if parameter.grad is not None:
                    parameter.sub_(parameter.grad, alpha=self.rates[-1])


class NeedsGradients(Optimizer):
    """As some Muon packages: no look for None."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 1e-2})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                momentum = self.state[parameter].setdefault("m", torch.zeros_like(parameter))
                momentum.lerp_(parameter.grad, 0.1)
                parameter.sub_(momentum, alpha=group["lr"])


class SlowWeights(Optimizer):
    """As Lookahead does it: no `super().__init__()`, another optimizer inside."""

    def __init__(self, inner: Optimizer) -> None:
        self.optimizer, self.counter = inner, 0
        self.param_groups, self.defaults = inner.param_groups, inner.defaults
        self.state = inner.state
        # As torch_optimizer does: without it, torch itself hooks a `step` that has no hooks.
        self.zero_grad = inner.zero_grad  # type: ignore[method-assign]
        self.slow = [[p.detach().clone() for p in group["params"]] for group in self.param_groups]

    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        loss = self.optimizer.step(closure)
        self.counter = (self.counter + 1) % 3
        if self.counter == 0:
            for group, slow in zip(self.param_groups, self.slow, strict=True):
                for parameter, kept in zip(group["params"], slow, strict=True):
                    kept.lerp_(parameter.detach(), 0.5)
                    parameter.data = kept.clone()
        return loss


class NoOptimizer:
    """A wrapper that is no `torch.optim.Optimizer`."""

    def __init__(self, base: Optimizer) -> None:
        self.base, self.steps = base, 0

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return self.base.param_groups

    @property
    def state(self) -> Any:
        return self.base.state

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.base.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        return self.base.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.base.load_state_dict(state)

    def step(self, closure: Any = None) -> Any:
        self.steps += 1
        return self.base.step(closure)


class CallsSuper(torch.optim.AdamW):
    """A step of its own around that of torch: the hooks of both would run."""

    calls = 0

    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        self.calls += 1
        loss = super().step(closure)
        for group in self.param_groups:
            group["lr"] *= 0.99
        return loss


class Preconditioner:
    """An object in the state of a parameter."""

    def __init__(self, parameter: Tensor) -> None:
        self.statistics = [torch.zeros(size, size) for size in parameter.shape]
        self.updates = 0

    def add(self, gradient: Tensor) -> None:
        self.updates += 1
        for axis, one in enumerate(self.statistics):
            flat = gradient.transpose(0, axis).reshape(gradient.shape[axis], -1)
            one.add_(flat @ flat.T)


class KeepsObjects(Optimizer):
    """As Shampoo and SOAP: preconditioners in the state, and `eigh`, which fails on NaN."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 1e-2})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                made = state.setdefault("preconditioner", Preconditioner(parameter))
                made.add(parameter.grad)
                torch.linalg.eigh(made.statistics[0])
                state.setdefault("queue", []).append(parameter.grad.norm().item())
                parameter.sub_(parameter.grad, alpha=group["lr"])


class Quantised(Optimizer):
    """A state of 8 bits with a scale, and stochastic rounding by a generator of its own."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 1e-2})
        self.generator = torch.Generator().manual_seed(3)

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                if not state:
                    state["code"] = torch.zeros_like(parameter, dtype=torch.int8)
                    state["scale"] = torch.tensor(1e-3)
                gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                momentum = state["code"] * state["scale"] * 0.9 + 0.1 * gradient
                state["scale"] = momentum.abs().max() / 127 + 1e-12
                noise = torch.rand(parameter.shape, generator=self.generator)
                rounded = torch.floor(momentum / state["scale"] + noise)
                state["code"].copy_(rounded.nan_to_num(0.0).clamp(-127, 127))
                parameter.sub_(state["code"] * state["scale"], alpha=group["lr"])


class ClosureOnly(Optimizer):
    """As SAM and the schedule-free closures: the weights move before the closure is called."""

    def __init__(self, params: Any, *, memory: bool = False) -> None:
        super().__init__(params, {"lr": 1e-2, "k": 0})
        self.memory = memory

    @torch.no_grad()
    def step(self, closure: Callable[[], Tensor]) -> Tensor:  # type: ignore[override]
        self.param_groups[0]["k"] += 1
        for parameter in self.param_groups[0]["params"]:
            state = self.state[parameter]
            state["at"] = parameter.detach().clone()
            moved = parameter + 0.01 * parameter.sign()
            if self.memory:
                parameter.data = moved
            else:
                parameter.copy_(moved)
        with torch.enable_grad():
            loss = closure()
        for parameter in self.param_groups[0]["params"]:
            parameter.copy_(self.state[parameter]["at"]).sub_(parameter.grad, alpha=1e-2)
        return loss


def adamw(model: nn.Module) -> Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-2)


def slow(inner: Optimizer) -> SlowWeights:
    """Of a class of its own: `load_state_dict` of one lets torch hook the `step` of its class."""
    made: SlowWeights = type("SlowWeights", (SlowWeights,), {})(inner)
    return made


SHAPES: dict[str, Callable[[nn.Module], Any]] = {
    "counter in groups": lambda model: CountsInGroups(model.parameters()),
    "counter in attributes": lambda model: CountsInAttributes(model.parameters()),
    "no look for None": lambda model: NeedsGradients(model.parameters()),
    "wrapper": lambda model: slow(adamw(model)),
    "wrapper of a wrapper": lambda model: slow(slow(adamw(model))),
    "wrapper, no Optimizer": lambda model: NoOptimizer(adamw(model)),
    "super().step()": lambda model: CallsSuper(model.parameters(), lr=1e-2),
    "objects in the state": lambda model: KeepsObjects(model.parameters()),
    "quantised": lambda model: Quantised(model.parameters()),
    "closure": lambda model: ClosureOnly(model.parameters()),
    "closure, new memory": lambda model: ClosureOnly(model.parameters(), memory=True),
}
CLOSURES = ("closure", "closure, new memory")


@pytest.mark.parametrize("name", SHAPES)
def test_a_skipped_step_changes_nothing(name: str) -> None:
    result = try_skips(SHAPES[name], closure=name in CLOSURES)
    assert result.changed == []
    assert result.later == [], "differs from a run that never saw the bad batches"
    assert result.skipped == list(FAULTS)


@pytest.mark.parametrize("name", SHAPES)
def test_a_healthy_run_is_left_as_it_is(name: str) -> None:
    assert try_healthy(SHAPES[name], closure=name in CLOSURES) == []


@pytest.mark.parametrize("name", [name for name in SHAPES if name != "super().step()"])
def test_without_the_wrapper_of_torch_everything_is_restored(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The way of a torch whose wrapper looks different: run with zero gradients, then undo."""
    monkeypatch.setattr(step_skipping, "_WRAPPERS", frozenset())
    result = try_skips(SHAPES[name], closure=name in CLOSURES)
    assert result.changed == result.later == []


def test_the_two_kinds_of_hooks_count_one_step() -> None:
    """An `AdamW` was made before, so that its own `step` has hooks too."""
    model = make_model()
    adamw(model)
    optimizer = CallsSuper(model.parameters(), lr=1e-2)
    with Guard(model, optimizer) as guard:
        for x, y in guard(batches(4)):
            ((model(x) - y) ** 2).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        assert guard.step == 4
    assert optimizer.calls == 4


def test_a_wrapper_and_the_optimizer_inside_it_are_one_step() -> None:
    model = make_model()
    inner = adamw(model)
    outer = slow(inner)
    with Guard(model, [outer, inner]) as guard:
        for number, (x, y) in enumerate(guard(batches(6))):
            before = deep_state(outer)
            loss = ((model(x) - y) ** 2).mean()
            (loss * math.nan if number == 4 else loss).backward()
            outer.step()
            inner.zero_grad()
            if number == 4:
                assert differences(before, deep_state(outer)) == []
        assert [action.step for action in guard.actions] == [4]


def test_a_step_that_raises_does_not_disturb_the_next_one() -> None:
    class Fails(CountsInGroups):
        broken = False

        def step(self, closure: Any = None) -> Any:
            if self.broken:
                raise ZeroDivisionError("the user's mistake")
            return super().step(closure)

    model = make_model()
    optimizer = Fails(model.parameters())
    with Guard(model, optimizer) as guard:
        for number, (x, y) in enumerate(guard(batches(8))):
            before = deep_state(optimizer)
            optimizer.zero_grad()
            loss = ((model(x) - y) ** 2).mean()
            (loss * math.nan if number == 6 else loss).backward()
            optimizer.broken = number == 3
            if number == 3:
                with pytest.raises(ZeroDivisionError):
                    optimizer.step()
            else:
                optimizer.step()
            optimizer.broken = False
            assert (differences(before, deep_state(optimizer)) == []) == (number in (3, 6))
        assert [action.step for action in guard.actions] == [6]


def test_another_hook_that_raises_in_a_skipped_step() -> None:
    """The step never came: the next one is not skipped in its place."""
    model = make_model()
    optimizer = CountsInGroups(model.parameters())
    with Guard(model, optimizer):
        raising = True

        def hook(*_: Any) -> None:
            if raising:
                raise ZeroDivisionError("the user's mistake")

        optimizer.register_step_pre_hook(hook)
        for number, (x, y) in enumerate(batches(3)):
            optimizer.zero_grad()
            loss = ((model(x) - y) ** 2).mean()
            raising = number == 1
            (loss * math.nan if raising else loss).backward()
            if raising:
                with pytest.raises(ZeroDivisionError):
                    optimizer.step()
            else:
                optimizer.step()
    assert optimizer.param_groups[0]["k"] == 2


def test_other_optimizers_of_the_class_step_meanwhile() -> None:
    """The function of a step belongs to the class; a skipped step is one of one optimizer."""
    model, other = make_model(), make_model()
    optimizer, free = CountsInGroups(model.parameters()), CountsInGroups(other.parameters())
    x, y = batches(1)[0]
    with Guard(model, optimizer):

        def step_other(*_: Any) -> None:
            ((other(x) - y) ** 2).mean().backward()
            free.step()

        optimizer.register_step_pre_hook(step_other)
        (((model(x) - y) ** 2).mean() * math.nan).backward()
        optimizer.step()
    assert optimizer.param_groups[0]["k"] == 0
    assert free.param_groups[0]["k"] == 1


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")
@pytest.mark.parametrize("first", [True, False], ids=["scheduler first", "guard first"])
@pytest.mark.parametrize("name", ["counter in groups", "wrapper"])
def test_schedulers(name: str, first: bool) -> None:
    """A scheduler wraps `optimizer.step` too, before the guard or after it."""
    states = []
    for guarded in (True, False):
        model = make_model()
        optimizer = SHAPES[name](model)
        guard = Guard(model, optimizer) if guarded and not first else None
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, gamma=0.5)
        guard = Guard(model, optimizer) if guarded and first else guard
        for x, y in batches(8):
            optimizer.zero_grad()
            ((model(x) - y) ** 2).mean().backward()
            optimizer.step()
            scheduler.step()
        if guard is not None:
            assert guard.step == 8
            guard.close()
        states.append([deep_state(model), optimizer.param_groups[0]["lr"]])
        optimizer.step()  # after the guard has gone
    assert differences(*states) == []


def test_a_closed_guard_leaves_nothing_on_a_wrapper() -> None:
    model = make_model()
    optimizer: Any = NoOptimizer(adamw(model))
    with Guard(model, optimizer):
        assert "step" in vars(optimizer)
    assert "step" not in vars(optimizer)


def test_what_is_no_optimizer_is_refused() -> None:
    with pytest.raises(UsageError, match="not a torch Optimizer"):
        Guard(make_model(), nn.Linear(2, 2))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["counter in groups", "wrapper", "quantised"])
def test_a_scaler(name: str) -> None:
    """An overflow is the scaler's; a NaN in the loss is skipped by the guard, or by both."""
    model = make_model()
    optimizer = SHAPES[name](model)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**4)
    with Guard(model, optimizer, scaler=scaler):
        for number, (x, y) in enumerate(batches(8)):
            before = deep_state(optimizer)
            optimizer.zero_grad()
            loss = ((model(x) - y) ** 2).mean()
            scaler.scale(loss * math.nan if number == 5 else loss).backward()
            scaler.step(optimizer)
            scaler.update()
            assert (differences(before, deep_state(optimizer)) == []) == (number == 5)


def test_random_numbers_that_a_skipped_step_has_drawn_stay_drawn() -> None:
    """Dropout of a skipped step: generators go on from where the step left them, as documented."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.Dropout(0.5), nn.Linear(16, 1))
    optimizer = CountsInGroups(model.parameters())
    states = []
    with Guard(model, optimizer) as guard:
        for number, (x, y) in enumerate(guard(batches(6))):
            optimizer.zero_grad()
            loss = ((model(x) - y) ** 2).mean()
            (loss * math.nan if number == 4 else loss).backward()
            drawn = torch.get_rng_state()
            optimizer.step()
            assert torch.equal(drawn, torch.get_rng_state())
            states.append(drawn)
        assert [action.step for action in guard.actions] == [4]
    torch.manual_seed(0)
    again = nn.Sequential(nn.Linear(6, 16), nn.Dropout(0.5), nn.Linear(16, 1))
    for (x, _), expected in zip(batches(6), states, strict=True):
        again(x)
        assert torch.equal(torch.get_rng_state(), expected), "as without the guard"


# Under `headway run`, which finds the optimizers by itself.


def run_alone(work: Callable[[], None]) -> list[ScriptGuard]:
    """Run a training as a script; the guards that were made for it."""
    guards: list[ScriptGuard] = []
    launch = ScriptLauncher(settings=Settings(), policy=Policy())
    launch.on_guard.append(guards.append)
    with nothing_else_trains():
        with launch:
            work()
        launch.close()
    return guards


@pytest.mark.parametrize("name", ["wrapper", "wrapper of a wrapper", "super().step()"])
def test_a_script_with_a_wrapper_has_one_guard(name: str) -> None:
    made: list[Any] = []

    def work() -> None:
        model = make_model()
        optimizer = SHAPES[name](model)
        made.append(optimizer)
        for number, (x, y) in enumerate(batches(8)):
            optimizer.zero_grad()
            loss = ((model(x) - y) ** 2).mean()
            (loss * math.nan if number == 5 else loss).backward()
            before = deep_state(optimizer)
            optimizer.step()
            assert (differences(before, deep_state(optimizer)) == []) == (number == 5)

    (guard,) = run_alone(work)
    assert guard.optimizers == (made[0],)
    assert (guard.step, [action.step for action in guard.actions]) == (8, [5])


def test_a_script_that_steps_the_optimizer_inside_a_wrapper() -> None:
    """As with SAM in two steps: `step` of the wrapper is never called."""
    made: list[Any] = []

    def work() -> None:
        model = make_model()
        inner = adamw(model)
        made.extend([inner, slow(inner)])
        for number, (x, y) in enumerate(batches(8)):
            inner.zero_grad()
            loss = ((model(x) - y) ** 2).mean()
            (loss * math.nan if number == 5 else loss).backward()
            inner.step()

    guard = run_alone(work)[-1]
    assert guard.optimizers == (made[0],)
    assert (guard.step, [action.step for action in guard.actions]) == (8, [5])


# The packages, where they are installed.


def _makes(item: OutsideOptimizer) -> Callable[[nn.Module], Any]:
    module = pytest.importorskip(item.package, exc_type=ImportError)
    return lambda model: item.make(model, module)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("item", every_nth(OUTSIDE, 4), ids=str)
def test_packages(item: OutsideOptimizer) -> None:
    make = _makes(item)
    result = try_skips(make, closure=item.closure, graph=item.create_graph)
    assert result.changed == []
    assert item.draws or result.later == []
    assert result.skipped == list(FAULTS)
    assert try_healthy(make, closure=item.closure, graph=item.create_graph) == []


def test_the_list_of_packages_is_long_enough() -> None:
    assert len({item.package for item in OUTSIDE}) >= 6
    assert len(OUTSIDE) >= 30
    assert callable(load)
