"""A defect of the guard's own does not touch the training: it goes on as if unguarded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.trainings import assert_same, batches, make_net, squared_error, state_of
from torch.amp.grad_scaler import GradScaler
from torch.nn.utils import clip_grad, clip_grad_norm_

from headway import Guard
from headway.engine import Engine
from headway.guard.measure.gradient_measure import GradientFreshness
from headway.guard.measure.sampling import UpdateSampler
from headway.guard.measure.step_record import HostTransfer
from headway.guard.optimizer_step import OptimizerStep
from headway.guard.recorder import Recorder
from headway.guard.step_machine import StepMachine
from headway.guard.step_outcomes import StepOutcomes
from headway.torch_adapters.optimizer_adapter import LineSearchState, LossScaling
from headway.torch_adapters.saved_state import BufferBackup
from headway.torch_adapters.step_skipping import HostBrake

METHODS: list[tuple[type, str]] = [
    (StepMachine, "batch_wanted"),
    (StepMachine, "batch_handed"),
    (StepMachine, "backward_begins"),
    (StepMachine, "backward_ended"),
    (StepMachine, "clipping"),
    (StepMachine, "clipped"),
    (StepMachine, "components"),
    (StepMachine, "begin_step"),
    (StepOutcomes, "deliver"),
    (StepMachine, "flush"),
    (OptimizerStep, "before"),
    (OptimizerStep, "after"),
    (GradientFreshness, "stepped"),
    (UpdateSampler, "before"),
    (UpdateSampler, "after"),
    (BufferBackup, "renew"),
    (HostTransfer, "send"),
    (Recorder, "step"),
    (Engine, "feed"),
]
WITH_SCALER: list[tuple[type, str]] = [
    (StepMachine, "scaled"),
    (StepMachine, "scaler_steps"),
    (StepMachine, "scaler_stepped"),
    (LossScaling, "scale"),
]


class Defect(Exception):
    """What breaks inside the guard."""


@pytest.fixture(autouse=True)
def _as_in_real_life(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HEADWAY_STRICT", raising=False)


def name_of(method: tuple[type, str]) -> str:
    return f"{method[0].__name__}.{method[1]}"


def break_method(monkeypatch: pytest.MonkeyPatch, owner: type, name: str, after: int) -> list[int]:
    """Let a method raise from a number of calls on; the list counts the calls."""
    original = getattr(owner, name)
    calls: list[int] = []

    def broken(*args: Any, **kwargs: Any) -> Any:
        calls.append(len(calls))
        if len(calls) > after:
            raise Defect("line one\nline two")
        return original(*args, **kwargs)

    monkeypatch.setattr(owner, name, broken)
    return calls


def originals() -> list[Any]:
    return [
        torch.autograd.backward,
        clip_grad._get_total_norm,
        clip_grad._clip_grads_with_norm_,
        GradScaler.scale,
        GradScaler.step,
    ]


def plain_run(*, guarded: bool, run_dir: Path | None = None) -> dict[str, Any]:
    model = make_net()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    guard = Guard(model, optimizer, run_dir=run_dir) if guarded else None
    for batch in guard(batches(24)) if guard else batches(24):
        loss = squared_error(model, batch)
        if guard:
            guard.backward(loss, part=loss)
        else:
            loss.backward()
        clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
    if guard:
        guard.close()
    return state_of(model, optimizer)


def scaled_run(*, guarded: bool, run_dir: Path | None = None) -> dict[str, Any]:
    model = make_net()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    scaler = GradScaler("cpu", init_scale=2.0**10)
    guard = Guard(model, optimizer, scaler=scaler, run_dir=run_dir) if guarded else None
    for batch in guard(batches(24)) if guard else batches(24):
        scaled = scaler.scale(squared_error(model, batch))
        if guard:
            guard.backward(scaled)
        else:
            scaled.backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    if guard:
        guard.close()
    return state_of(model, optimizer)


def closure_run(*, guarded: bool, run_dir: Path | None = None) -> dict[str, Any]:
    model = make_net()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)
    guard = Guard(model, optimizer, run_dir=run_dir) if guarded else None
    for batch in batches(8):

        def closure(batch: Any = batch) -> torch.Tensor:
            optimizer.zero_grad()
            loss = squared_error(model, batch)
            loss.backward()
            return loss

        optimizer.step(closure)
    if guard:
        guard.close()
    return state_of(model, optimizer)


def assert_training_goes_on(
    run: Callable[..., dict[str, Any]], caplog: pytest.LogCaptureFixture, run_dir: Path
) -> None:
    before = originals()
    state = run(guarded=True, run_dir=run_dir)
    assert all(one is other for one, other in zip(before, originals(), strict=True))
    assert_same(run(guarded=False), state)
    (message,) = [text for text in caplog.messages if "switched itself off" in text]
    assert "Defect: line one," in message
    assert "line two" not in message


@pytest.mark.parametrize("after", [0, 7], ids=["at once", "later"])
@pytest.mark.parametrize("method", METHODS, ids=name_of)
def test_training_goes_on(
    method: tuple[type, str],
    after: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
) -> None:
    if method in ((BufferBackup, "renew"), (Engine, "feed")):
        after += 4  # calls that belong to the making of the guard
    if method[1] in ("close", "flush") or method[0] is UpdateSampler:
        after = min(after, 0)
    calls = break_method(monkeypatch, *method, after)
    assert_training_goes_on(plain_run, caplog, tmp_path)
    last = method == (Engine, "feed")  # a guard that has failed still records the end of the run
    assert len(calls) == after + 1 + last, "it broke once and was left alone from then on"


def test_a_record_that_cannot_be_ended_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    break_method(monkeypatch, Recorder, "close", 0)
    state = plain_run(guarded=True, run_dir=tmp_path)
    assert_same(plain_run(guarded=False), state)
    (message,) = [text for text in caplog.messages if "end of the record" in text]
    assert "Defect: line one" in message
    assert "line two" not in message


@pytest.mark.parametrize("after", [0, 7], ids=["at once", "later"])
@pytest.mark.parametrize("method", WITH_SCALER, ids=name_of)
def test_training_with_a_scaler_goes_on(
    method: tuple[type, str],
    after: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
) -> None:
    """A loss the user has scaled is not scaled again because we no longer see it."""
    break_method(monkeypatch, *method, after)
    assert_training_goes_on(scaled_run, caplog, tmp_path)


@pytest.mark.parametrize("after", [0, 3], ids=["at once", "later"])
@pytest.mark.parametrize(
    "method",
    [(LineSearchState, "keep"), (LineSearchState, "went_bad"), (OptimizerStep, "before")],
    ids=name_of,
)
def test_training_with_a_closure_goes_on(
    method: tuple[type, str],
    after: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
) -> None:
    break_method(monkeypatch, *method, after)
    assert_training_goes_on(closure_run, caplog, tmp_path)


def test_a_step_that_was_replaced_is_given_back(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The brake fails half-way: the step is taken as it would have been, with the bad gradient."""
    original = HostBrake.skip
    broken: list[bool] = []

    def skip(self: HostBrake) -> None:
        original(self)
        if not broken:
            broken.append(True)
            raise Defect("line one")

    monkeypatch.setattr(HostBrake, "skip", skip)
    model = make_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    with Guard(model, optimizer):
        (squared_error(model, batches(1)[0]) * float("nan")).backward()
        optimizer.step()
        assert all(p.grad is not None for p in model.parameters())
    assert not torch.isfinite(model.head.weight).all()
    assert len([text for text in caplog.messages if "switched itself off" in text]) == 1


def test_in_tests_a_defect_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_STRICT", "1")
    break_method(monkeypatch, OptimizerStep, "before", 0)
    model = make_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    with Guard(model, optimizer):
        squared_error(model, batches(1)[0]).backward()
        with pytest.raises(Defect):
            optimizer.step()
