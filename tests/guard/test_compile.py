"""Compiled models: no graph break and no recompilation is added, and bad steps are held as ever."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from support.paired_trainings import headers_of
from support.trainings import Net, assert_same, batches, make_net, squared_error, state_of
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch._dynamo.utils import counters

from headway import Guard
from headway.guard import step_hooks
from headway.torch_adapters import patching

STEPS = 14
BAD = 11
BACKENDS = [
    "eager",
    "aot_eager",
    pytest.param("inductor", marks=pytest.mark.slow),
]

pytestmark = pytest.mark.filterwarnings(
    # torch's own, on the way through its compiler.
    "ignore::DeprecationWarning",
    "ignore::FutureWarning",
    "ignore:The .grad attribute of a Tensor that is not a leaf",
    "ignore:.*optimizer contains a parameter group with",
)


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()
    counters.clear()


class Outcome:
    """What a compiled training did, and how much compiling it took."""

    def __init__(self, backend: str, *, guarded: bool, steps: int = STEPS) -> None:
        counters.clear()
        counter = CompileCounterWithBackend(backend)
        original = make_net()
        model: Any = torch.compile(original, backend=counter)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        guard = Guard(model, optimizer) if guarded else None
        self.losses: list[Tensor] = []
        for batch in guard(batches(steps)) if guard else batches(steps):
            loss = squared_error(model, batch)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            self.losses.append(loss.detach())
        if guard:
            guard.close()
        self.state = state_of(original, optimizer)
        self.frames = counter.frame_count
        self.breaks = dict(counters["graph_break"])
        self.frame_stats = dict(counters["frames"])
        self.unique_graphs = counters["stats"]["unique_graphs"]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_compiled_run_is_left_as_it_is(backend: str) -> None:
    guarded = Outcome(backend, guarded=True)
    torch._dynamo.reset()
    alone = Outcome(backend, guarded=False)
    assert_same(alone.losses, guarded.losses)
    assert_same(alone.state, guarded.state)
    assert (guarded.frames, guarded.unique_graphs) == (alone.frames, alone.unique_graphs)
    assert guarded.breaks == alone.breaks == {}
    assert guarded.frame_stats == alone.frame_stats


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_bad_step_of_a_compiled_model_leaves_no_trace(backend: str) -> None:
    """Statistics of the BatchNorm inside the compiled graph included, and nothing is recompiled."""
    model, clean = make_net(), make_net()
    counter = CompileCounterWithBackend(backend)
    compiled: Any = torch.compile(model, backend=counter)
    other: Any = torch.compile(clean, backend=backend)
    optimizer = torch.optim.Adam(compiled.parameters(), lr=1e-2)
    clean_optimizer = torch.optim.Adam(clean.parameters(), lr=1e-2)
    with Guard(compiled, optimizer) as guard:
        for number, (x, y) in enumerate(guard(batches(STEPS))):
            before = state_of(model, optimizer)
            take_step(compiled, optimizer, (x * math.nan if number == BAD else x, y))
            if number == BAD:
                assert_same(before, state_of(model, optimizer))
            else:
                take_step(other, clean_optimizer, (x, y))
        assert [action.step for action in guard.actions] == [BAD]
    assert_same(state_of(clean, clean_optimizer), state_of(model, optimizer))
    assert counter.frame_count == 1


def take_step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Any) -> None:
    squared_error(model, batch).backward()
    optimizer.step()
    optimizer.zero_grad()


def test_a_guard_made_between_two_runs_of_a_compiled_model_does_not_recompile_it() -> None:
    """Compiled before the guard came, used under it and after it went: one and the same graph."""
    counter = CompileCounterWithBackend("aot_eager")
    model: Any = torch.compile(make_net(), backend=counter)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    for watched in (False, True, False):
        guard = Guard(model, optimizer) if watched else None
        for batch in batches(3):
            take_step(model, optimizer, batch)
        if guard:
            guard.close()
    assert counter.frame_count == 1


def test_a_compiled_loss_function() -> None:
    """The whole forward with its loss in one graph: the guard still hears the loss."""
    counter = CompileCounterWithBackend("aot_eager")
    model = make_net()
    compiled = torch.compile(squared_error, backend=counter, fullgraph=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    with Guard(model, optimizer) as guard:
        for number, (x, y) in enumerate(guard(batches(6))):
            before = state_of(model, optimizer)
            compiled(model, (x * math.nan if number == 4 else x, y)).backward()
            optimizer.step()
            optimizer.zero_grad()
            if number == 4:
                assert_same(before, state_of(model, optimizer))
        assert [action.step for action in guard.actions] == [4]
        assert "HD101" in {finding.code for finding in guard.findings}
    assert counter.frame_count == 1


def test_tensors_keep_the_names_the_user_gave_them(tmp_path: Path) -> None:
    """The whole model compiled, and one part of it: `_orig_mod` is in neither name."""
    net = make_net()
    whole: Any = torch.compile(net, backend="eager")
    net.head = torch.compile(net.head, backend="eager")  # type: ignore[assignment]
    optimizer = torch.optim.SGD(whole.parameters(), lr=1e-2)
    with Guard(whole, optimizer, run_dir=tmp_path):
        take_step(whole, optimizer, batches(1)[0])
    header = headers_of(tmp_path)[-1]
    assert list(header.names("param")) == [name for name, _ in Net().named_parameters()]
    assert list(header.names("buffer")) == [name for name, _ in Net().named_buffers()]


# The step of the optimizer inside compiled code.


class CompiledStep:
    """A training whose `optimizer.step()` is compiled, alone or with what is around it."""

    def __init__(self, kind: str, backend: str) -> None:
        self.model = make_net()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-2)
        compiled = partial(torch.compile, backend=backend)
        self._step: Any = self.optimizer.step
        self.take: Any = self._take
        if kind == "optimizer.step":
            self._step = compiled(self.optimizer.step)
        elif kind == "a function around it":
            self._step = compiled(lambda: self.optimizer.step())
        else:
            self.take = compiled(self._take)

    def _take(self, x: Tensor, y: Tensor) -> Tensor:
        loss = squared_error(self.model, (x, y))
        loss.backward()
        self._step()
        self.optimizer.zero_grad()
        return loss.detach()


COMPILED = ["optimizer.step", "a function around it", "the whole step"]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", COMPILED)
def test_a_compiled_step_is_left_as_it_is(
    kind: str, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADWAY_STRICT", "1")  # a guard that fails shall raise
    outcomes = []
    for guarded in (True, False):
        torch._dynamo.reset()
        training = CompiledStep(kind, backend)
        guard = Guard(training.model, training.optimizer) if guarded else None
        losses = [training.take(*batch) for batch in batches(6)]
        if guard is not None:
            assert guard.step == 6
            guard.close()
        outcomes.append([losses, state_of(training.model, training.optimizer)])
    assert_same(*outcomes)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", COMPILED)
def test_a_bad_compiled_step_leaves_no_trace(
    kind: str, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADWAY_STRICT", "1")
    training, clean = CompiledStep(kind, backend), CompiledStep(kind, backend)
    with Guard(training.model, training.optimizer) as guard:
        for number, (x, y) in enumerate(guard(batches(8))):
            before = state_of(training.model, training.optimizer)
            training.take(x * math.nan if number == 5 else x, y)
            if number == 5:
                assert_same(before, state_of(training.model, training.optimizer))
        assert [action.step for action in guard.actions] == [5]
    for number, batch in enumerate(batches(8)):
        if number != 5:
            clean.take(*batch)
    expected = state_of(clean.model, clean.optimizer)
    assert_same(expected, state_of(training.model, training.optimizer))


def test_an_optimizer_that_compiles_its_own_step_stays_compiled_in_a_traced_step() -> None:
    """As torchao's do. Uncompiled they round differently: the run would drift after a bad step."""
    runs: list[int] = []

    def count_runs(graph: Any, inputs: Any) -> Any:
        return lambda *args: runs.append(1) or graph(*args)

    @torch.compile(backend=count_runs, fullgraph=True)
    def update(weight: Tensor, gradient: Tensor) -> Tensor:
        return weight - 1e-2 * gradient

    class CompilesItself(torch.optim.Optimizer):
        @torch.no_grad()
        def step(self, closure: Any = None) -> Any:  # type: ignore[override]
            parameter = self.param_groups[0]["params"][0]
            parameter.copy_(update(parameter, parameter.grad))

    model = make_net()
    optimizer = CompilesItself(model.parameters(), {})
    with Guard(model, optimizer) as guard:
        for number, batch in enumerate(batches(8)):
            optimizer.zero_grad()
            loss = squared_error(model, batch)
            (loss * math.nan if number == 5 else loss).backward()
            optimizer.step()
            if number == 5:  # as after a bad step that cannot be run again
                assert guard._rerun.tracer.arm(guard._session)
        assert [action.step for action in guard.actions] == [5]
    assert len(runs) == 7


# CUDA graphs. `test_gpu.py` records real ones.


def test_a_step_that_is_recorded_into_a_graph_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    recording = False
    for module in (step_hooks, patching):
        monkeypatch.setattr(module, "is_capturing", lambda: recording)
    model = make_net()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    with Guard(model, optimizer) as guard:
        for number, (x, y) in enumerate(batches(8)):
            recording = number in (2, 3)
            before = state_of(model, optimizer)
            take_step(model, optimizer, (x * math.nan if number == 6 else x, y))
            if number == 6:
                assert_same(before, state_of(model, optimizer))
        assert (guard.step, [action.step for action in guard.actions]) == (6, [4])
    assert caplog.text.count("recorded into a CUDA graph") == 1


@pytest.mark.slow
def test_a_compiled_optimizer_step_goes_on_after_a_bad_step_without_a_line() -> None:
    """Steps are traced after one that was not explained, but not from within a compiled call."""
    outcomes = []
    for guarded in (True, False):
        torch._dynamo.reset()
        model = make_net()
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        step: Any = torch.compile(optimizer.step, backend="eager")
        guard = Guard(model, optimizer) if guarded else None
        for number, batch in enumerate(batches(13)):  # drawn by hand: no step is run again
            bad = number == 8
            if bad and not guarded:
                continue
            (squared_error(model, batch) * (float("nan") if bad else 1.0)).backward()
            step()
            optimizer.zero_grad()
        if guard is not None:
            guard.close()
            assert [action.step for action in guard.actions] == [8]
            assert "HD001" not in {finding.code for finding in guard.findings}
        assert not torch._C._dispatch_tls_is_dispatch_key_included("Python")
        outcomes.append(state_of(model, optimizer))
    assert_same(*outcomes)
