"""A trace that passes over clean modules finds what a trace of every op finds, or says that it may
not have.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from explain.origin_set import SCENARIOS, Scenario
from explain.origin_set.scenario import Case
from support.grids import every_nth
from support.replay_runs import scene_of
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from headway.explain import module_survey
from headway.explain.explanation import Origin
from headway.explain.failing_step import FailingStep, Outcome
from headway.explain.investigation import investigate
from headway.explain.locate import find_origins
from headway.explain.module_survey import CleanCalls, ModuleSurvey
from headway.explain.scoped_trace import ScopedTrace
from headway.explain.trace import Trace
from headway.explain.traced_call import TracedCall
from headway.torch_adapters.op_schema import PASSED_OVER

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*degrees of freedom is <= 0:UserWarning"),
    pytest.mark.filterwarnings("ignore:Deterministic behavior was enabled:UserWarning"),
]

Run = Callable[[Any, Outcome], None]
"""Runs a step, tells an observer of its events, and fills in the outcome."""


def survey(step: FailingStep, run: Run) -> CleanCalls:
    found, outcome = ModuleSurvey(step), Outcome()
    with found:
        run(found, outcome)
    return found.result(outcome)


def scoped(step: FailingStep, run: Run) -> tuple[ScopedTrace, tuple[Origin, ...]]:
    trace = ScopedTrace(step, survey(step, run))
    with trace:
        run(trace, Outcome())
    assert trace.errors == []
    return trace, find_origins(trace, step)


def whole(step: FailingStep, run: Run) -> tuple[Trace, tuple[Origin, ...]]:
    trace = Trace(step)
    with trace:
        run(trace, Outcome())
    return trace, find_origins(trace, step)


def examined(trace: Trace) -> list[TracedCall]:
    return [call for call in trace.calls if call.facts is not PASSED_OVER]


def observed(
    observer: Any, outcome: Outcome, loss: Tensor, parts: Any, parameters: Any, names: Any
) -> None:
    observer.backward_begins([loss], parts)
    loss.backward()
    parameters = [p for p in parameters if p.grad is not None]
    observer.gradients_ready(parameters)
    outcome.losses.append(float(loss.detach()))
    outcome.norms.update({names[id(p)]: float(p.grad.norm()) for p in parameters})


# The origins of the set.


def of_case(case: Case) -> tuple[FailingStep, Run]:
    names = {id(parameter): name for name, parameter in case.model.named_parameters()}
    step = FailingStep([case.model], [case.optimizer], [case.bad], names, scaler=case.scaler)
    buffers = {name: value.clone() for name, value in case.model.named_buffers()}

    def run(observer: Any, outcome: Outcome) -> None:
        torch.manual_seed(0)
        case.model.zero_grad(set_to_none=True)
        with torch.no_grad():
            for name, value in case.model.named_buffers():
                value.copy_(buffers[name])
        loss, parts = case.forward(case.bad)
        observed(observer, outcome, case.scaled(loss), parts, case.model.parameters(), names)

    return step, run


@pytest.mark.parametrize("precision", [None, torch.bfloat16], ids=str)
@pytest.mark.parametrize("scenario", every_nth(SCENARIOS, 4), ids=lambda scenario: scenario.name)
def test_the_origin_is_that_of_a_whole_trace(
    scenario: Scenario, precision: torch.dtype | None
) -> None:
    if precision is not None and str(precision).removeprefix("torch.") in scenario.excluded:
        pytest.skip("it would be another story")
    step, run = of_case(scenario.case("cpu", precision))
    trace, found = scoped(step, run)
    if trace.incomplete:
        return
    step, run = of_case(scenario.case("cpu", precision))
    survey(step, run)  # a scaler makes its scale in the first pass
    assert found == whole(step, run)[1]


# A deep model.


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(6), nn.Linear(6, 12), nn.Linear(12, 6)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Guilty(nn.Module):
    def __init__(self, work: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.inner, self.work = nn.Linear(6, 6), work

    def forward(self, x: Tensor) -> Tensor:
        return self.work(self.inner(x))


class Deep(nn.Module):
    def __init__(self, *work: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        guilty = [Guilty(each) for each in work]
        blocks = [Block() for _ in range(6)]
        self.blocks = nn.ModuleList([*blocks[:3], *guilty, *blocks[3:]])
        self.head = nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def of_model(
    model: nn.Module,
    loss_of: Callable[[Tensor], Tensor] = lambda y: y.square().mean(),
    batches: int = 1,
) -> tuple[FailingStep, Run]:
    torch.manual_seed(1)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.2)
    given = [torch.randn(4, 6) for _ in range(batches)]
    step = scene_of(model, *given)

    def run(observer: Any, outcome: Outcome) -> None:
        torch.manual_seed(0)
        model.zero_grad(set_to_none=True)
        for x in given:
            parameters = list(model.parameters())
            observed(observer, outcome, loss_of(model(x)), {}, parameters, step.names)

    return step, run


def first_is_zero(y: Tensor) -> Tensor:
    return torch.cat([y[:1] * 0.0, y[1:].abs() + 0.1])


def log_of_zero(y: Tensor) -> Tensor:
    return torch.log(first_is_zero(y))


def norm_at_zero(y: Tensor) -> Tensor:
    return y + first_is_zero(y).square().sum(-1, keepdim=True).sqrt()


def compared(step: FailingStep, run: Run) -> tuple[ScopedTrace, Origin]:
    """The scoped trace, and the origin that both traces find."""
    trace, found = scoped(step, run)
    full, expected = whole(step, run)
    assert not trace.incomplete
    assert found == expected
    assert list(trace.ends.gradients) == list(full.ends.gradients)
    assert len(trace.calls) == len(full.calls)
    assert len(examined(trace)) < len(full.calls)
    return trace, found[0]


def test_a_fault_in_the_forward_of_a_module() -> None:
    trace, origin = compared(*of_model(Deep(log_of_zero)))
    assert (origin.op, origin.module, origin.rows) == ("log", "blocks.3", (0,))
    paths = {call.module.path for call in examined(trace)}
    assert "blocks.3" in paths
    assert not any(path.startswith(("blocks.0", "blocks.3.inner")) for path in paths)
    assert all(call.phase == "forward" for call in examined(trace)), "a bad loss needs no backward"


def test_a_fault_in_the_loss() -> None:
    trace, origin = compared(*of_model(Deep(), lambda y: log_of_zero(y).mean()))
    assert (origin.op, origin.module) == ("log", "")
    assert {call.module.path for call in examined(trace)} == {""}


def test_a_fault_in_the_backward_of_a_module() -> None:
    trace, origin = compared(*of_model(Deep(norm_at_zero)))
    assert (origin.op, origin.module, origin.phase) == ("sqrt", "blocks.3", "backward")
    paths = {call.module.path for call in examined(trace)}
    assert not any(path.startswith(("blocks.4", "blocks.6", "head")) for path in paths)


def test_a_fault_in_the_backward_of_a_module_without_parameters() -> None:
    class Bare(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return norm_at_zero(x)

    model = Deep()
    model.blocks[3] = Bare()
    _, origin = compared(*of_model(model))
    assert (origin.op, origin.module, origin.phase) == ("sqrt", "blocks.3", "backward")


def test_the_nodes_of_a_clean_module_are_not_those_of_the_op_after_it() -> None:
    step, run = of_model(Deep(), lambda y: log_of_zero(y.detach() * 2).mean() + y.mean())
    numbered = [
        {(call.op, call.around.place, call.number is None) for call in trace.calls if call.module}
        for trace in (scoped(step, run)[0], whole(step, run)[0])
    ]
    assert {item for item in numbered[0] if item[1] is not None} <= numbered[1]


def test_two_faults_are_both_found() -> None:
    _, origin = compared(*of_model(Deep(log_of_zero, lambda y: y + torch.log(y.detach() * 0))))
    assert origin.module == "blocks.3"


def test_several_batches_that_accumulate() -> None:
    seen: list[int] = []

    def every_second(y: Tensor) -> Tensor:
        seen.append(1)
        return log_of_zero(y) if len(seen) % 2 == 0 else y

    _, origin = compared(*of_model(Deep(every_second), batches=2))
    assert origin.batch == 1


def test_a_function_that_clean_modules_call_as_well_has_several_callers() -> None:
    def log_of(y: Tensor, value: float) -> Tensor:
        return torch.log(y.detach() * 0 + value) + y

    def harmless(y: Tensor) -> Tensor:
        return log_of(y, 1.0)

    def guilty(y: Tensor) -> Tensor:
        return log_of(y, 0.0)

    model = Deep(harmless, guilty)
    _, origin = compared(*of_model(model))
    assert origin.module == "blocks.4"
    assert origin.called_from is not None


# What a survey does not see is noticed in the trace.


class Hides(nn.Module):
    """Its result is finite; it leaves a bad value somewhere else."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 6)
        self.penalty = torch.zeros(())
        self.register_buffer("level", torch.ones(4, 1))

    def forward(self, x: Tensor) -> Tensor:
        self.penalty = log_of_zero(self.inner(x)).mean()
        self.level.copy_(log_of_zero(x.detach()).mean(dim=1, keepdim=True))
        return self.inner(x)


def test_a_bad_value_that_leaves_a_module_by_another_way() -> None:
    model = Deep()
    model.blocks[1] = hides = Hides()
    step, run = of_model(model, lambda y: y.mean() + hides.penalty)
    trace, _ = scoped(step, run)
    assert trace.incomplete
    assert whole(step, run)[1][0].op == "log"


def test_a_buffer_that_a_clean_module_has_made_bad() -> None:
    model = Deep()
    model.blocks[1] = hides = Hides()
    step, run = of_model(model, lambda y: (y * hides.level).mean())
    trace, _ = scoped(step, run)
    assert trace.incomplete


def test_a_mask_made_by_a_clean_module() -> None:
    """Its infinities are meant: only a whole trace can know."""

    class Masks(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            self.mask = torch.zeros(6).masked_fill(torch.ones(6).bool(), -math.inf)
            return x

    model = Deep()
    model.blocks[1] = masks = Masks()
    step, run = of_model(model, lambda y: torch.softmax(y[:, :1] + masks.mask, 1).mean())
    trace, found = scoped(step, run)
    full = whole(step, run)[1]
    assert trace.incomplete or found == full


class Checkpointed(Deep):
    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return self.head(x)


@pytest.mark.parametrize("work", [log_of_zero, norm_at_zero], ids=["forward", "backward"])
def test_modules_that_run_again_in_backward(work: Callable[[Tensor], Tensor]) -> None:
    step, run = of_model(Checkpointed(work))
    trace, found = scoped(step, run)
    assert trace.incomplete or found == whole(step, run)[1]


def test_a_step_that_takes_another_way_the_second_time() -> None:
    """From where it does, nothing is passed over."""

    class TakesTurns(Deep):
        turns = 0

        def forward(self, x: Tensor) -> Tensor:
            self.turns += 1
            for block in self.blocks if self.turns == 1 else reversed(self.blocks):
                x = block(x)
            return self.head(x)

    model = TakesTurns()
    model.blocks[5] = Guilty(log_of_zero)
    trace, found = scoped(*of_model(model))
    assert not trace.incomplete
    assert (found[0].op, found[0].module) == ("log", "blocks.5")


# Within an investigation.


def passes_of(model: nn.Module, loss_of: Any = lambda y: y.mean()) -> tuple[list[str], Any]:
    step, run = of_model(model, loss_of)
    plan, observers = investigate(step), []
    one = next(plan)
    while True:
        for manager in one.within:
            manager.__enter__()
        observers.append(type(one.observer).__name__)
        run(one.observer or ModuleSurvey(step), one.outcome)
        for manager in reversed(one.within):
            manager.__exit__(None, None, None)
        try:
            one = plan.send(None)
        except StopIteration as over:
            return observers, over.value.explanation


def test_a_deep_model_is_surveyed_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module_survey, "MIN_MODULES", 20)
    observers, explained = passes_of(Deep(log_of_zero))
    assert observers[:2] == ["ModuleSurvey", "ScopedTrace"]
    assert "Trace" not in observers
    assert explained.origin.op == "log"
    monkeypatch.setattr(module_survey, "MIN_MODULES", 1000)
    assert passes_of(Deep(log_of_zero))[0][0] == "ScopedTrace"


def test_what_a_survey_misses_is_traced_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module_survey, "MIN_MODULES", 20)
    model = Deep()
    model.blocks[1] = hides = Hides()
    observers, explained = passes_of(model, lambda y: y.mean() + hides.penalty)
    assert observers[:3] == ["ModuleSurvey", "ScopedTrace", "Trace"]
    assert (explained.origin.op, explained.origin.module) == ("log", "blocks.1")
