"""With a GradScaler: numbers on record are unscaled, its skips are its own, bad steps are held."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from support.paired_trainings import column_by_name, headers_of, steps_of
from support.trainings import (
    Batch,
    Net,
    assert_same,
    batches,
    make_net,
    skip_or_halt,
    squared_error,
    state_of,
)
from torch import Tensor
from torch.amp.grad_scaler import GradScaler
from torch.nn.utils import clip_grad_norm_

from headway import Guard, TrainingHalted

STEPS = 34
BAD = 30
"""After the grace period of the spike rule."""
SCALE = 2.0**12
FUSED = pytest.mark.parametrize("fused", [False, True], ids=["plain", "fused"])


class Training:
    """A model, an optimizer and a scaler; a step may clip, overflow, or multiply the loss."""

    def __init__(self, fused: bool, *, clip: float | None = None, scale: float = SCALE) -> None:
        self.model: Net = make_net()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3, fused=fused)
        self.scaler = GradScaler("cpu", init_scale=scale)
        self.clip = clip
        self.norms: list[float] = []
        self.losses: list[float] = []

    def step(
        self,
        batch: Batch,
        factor: float = 1.0,
        guard: Guard | None = None,
        overflow: bool = False,
    ) -> None:
        loss = squared_error(self.model, batch) * factor
        self.losses.append(loss.item())
        if guard is None:
            self.scaler.scale(loss).backward()
        else:
            guard.backward(loss)
        scale = self.scaler.get_scale()
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        if overflow:
            gradients[0].view(-1)[0] = math.inf
        self.norms.append(
            torch.cat([g.flatten() for g in gradients]).double().norm().item() / scale
        )
        if self.clip is not None:
            self.scaler.unscale_(self.optimizer)
            clip_grad_norm_(self.model.parameters(), self.clip)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()

    def overflow(self, batch: Batch) -> None:
        """A step at which a scaled gradient overflows although loss and forward are fine."""
        self.step(batch, overflow=True)

    def state(self) -> dict[str, Any]:
        return state_of(self.model, self.optimizer)


@FUSED
@pytest.mark.parametrize("clip", [None, 0.1], ids=["not clipped", "clipped"])
def test_numbers_on_record_are_unscaled_and_unclipped(
    fused: bool, clip: float | None, tmp_path: Path
) -> None:
    training = Training(fused, clip=clip)
    with Guard(training.model, training.optimizer, run_dir=tmp_path) as guard:
        for batch in guard(batches(12)):
            training.step(batch)
    steps = steps_of(tmp_path)
    assert [step.values["grad_norm"] for step in steps] == pytest.approx(training.norms, rel=1e-5)
    assert [step.values["loss"] for step in steps] == pytest.approx(training.losses)
    assert [step.values["loss_scale"] for step in steps] == [SCALE] * 12
    if clip is None:
        assert all("clip_coef" not in step.values for step in steps)
    else:
        expected = [min(1.0, clip / norm) for norm in training.norms]
        assert [step.values["clip_coef"] for step in steps] == pytest.approx(expected, rel=1e-4)


@FUSED
@pytest.mark.parametrize("clip", [None, 0.1], ids=["not clipped", "clipped"])
@pytest.mark.parametrize("factor", [1e6, -1e6], ids=["spike", "negative spike"])
def test_a_spike_is_held(fused: bool, clip: float | None, factor: float) -> None:
    training, clean = Training(fused, clip=clip), Training(fused, clip=clip)
    with Guard(training.model, training.optimizer) as guard:
        for number, batch in enumerate(guard(batches(STEPS))):
            before = training.state()
            training.step(batch, factor if number == BAD else 1.0)
            if number == BAD:
                assert_same(before, training.state())
            else:
                clean.step(batch)
            assert_same(clean.state(), training.state())
        assert [action.step for action in guard.actions] == [BAD]
    assert training.scaler.get_scale() == SCALE, "no overflow: the scaler has nothing to do with it"


@FUSED
def test_an_overflow_is_the_scalers_business(fused: bool, tmp_path: Path) -> None:
    """On record, but no action, and the BatchNorm statistics are those of a run without a guard."""
    watched, alone = Training(fused), Training(fused)
    with Guard(watched.model, watched.optimizer, run_dir=tmp_path) as guard:
        for number, batch in enumerate(guard(batches(12))):
            for training in (watched, alone):
                if number in (3, 4, 10):
                    training.overflow(batch)
                else:
                    training.step(batch)
            assert_same(alone.state(), watched.state(), f"@{number}")
        assert guard.actions == []
    skipped = [step.step for step in steps_of(tmp_path) if step.values.get("scaler_skipped")]
    assert skipped == [3, 4, 10]
    assert [step.step for step in steps_of(tmp_path) if step.held] == skipped
    assert all(
        "scaler_skipped" not in s.values for s in steps_of(tmp_path) if s.step not in skipped
    )


@FUSED
def test_overflows_do_not_climb_the_ladder(fused: bool) -> None:
    training = Training(fused)
    policy = skip_or_halt(skips_in_a_row=2, skips_per_window=3)
    with Guard(training.model, training.optimizer, policy=policy) as guard:
        for batch in guard(batches(12)):
            training.overflow(batch)
        assert guard.actions == []


@FUSED
def test_overflows_do_not_blind_the_spike_rule(fused: bool) -> None:
    """Their norms are infinite, and are not learned."""
    training = Training(fused)
    with Guard(training.model, training.optimizer) as guard:
        for number, batch in enumerate(guard(batches(60))):
            if 20 <= number < 40:
                training.overflow(batch)
            else:
                training.step(batch, 1e6 if number == 50 else 1.0)
        assert [action.step for action in guard.actions] == [50]


@FUSED
def test_a_nan_the_scaler_skips_leaves_no_trace_in_buffers(fused: bool, tmp_path: Path) -> None:
    """The scaler holds the update, but nobody else would mend the BatchNorm statistics."""
    training = Training(fused)
    with Guard(training.model, training.optimizer, run_dir=tmp_path) as guard:
        for number, (x, y) in enumerate(guard(batches(12))):
            before = training.state()
            training.step((x * math.nan if number == 7 else x, y))
            if number == 7:
                assert_same(before, training.state())
    assert [step.step for step in steps_of(tmp_path) if step.values.get("scaler_skipped")] == [7]
    assert [action.step for action in guard.actions] == [7], "a bad loss is no overflow"


@FUSED
def test_a_loss_that_is_nan_for_ever_halts_although_the_scaler_skips(fused: bool) -> None:
    """The scaler would skip on and on, and shrink its scale to nothing."""
    training = Training(fused)

    def train(guard: Guard) -> None:
        for batch in guard(batches(12)):
            training.step(batch, math.nan)

    with (
        Guard(training.model, training.optimizer, policy=skip_or_halt(skips_in_a_row=4)) as guard,
        pytest.raises(TrainingHalted, match="5 in a row"),
    ):
        train(guard)


def test_a_nan_is_put_down_to_its_parameter_although_unscaled_and_clipped(tmp_path: Path) -> None:
    training = Training(fused=True)
    model, optimizer, scaler = training.model, training.optimizer, training.scaler
    with Guard(model, optimizer, run_dir=tmp_path) as guard:
        for number, batch in enumerate(guard(batches(6))):
            scaler.scale(squared_error(model, batch)).backward()
            if number == 4:
                assert model.norm.bias.grad is not None
                model.norm.bias.grad[3] = math.nan
            scaler.unscale_(optimizer)
            clip_grad_norm_(model.parameters(), 0.1)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    column = column_by_name(steps_of(tmp_path)[4], "param/grad_norm", headers_of(tmp_path)[-1])
    assert [name for name, norm in column.items() if not math.isfinite(norm)] == ["norm.bias"]


@FUSED
def test_the_guard_scales_the_loss_itself(fused: bool, tmp_path: Path) -> None:
    watched, alone = Training(fused), Training(fused)
    guard = Guard(watched.model, watched.optimizer, scaler=watched.scaler, run_dir=tmp_path)
    for batch in guard(batches(12)):
        watched.step(batch, guard=guard)
        alone.step(batch)
    guard.close()
    assert_same(alone.state(), watched.state())
    assert [step.values["loss"] for step in steps_of(tmp_path)] == pytest.approx(watched.losses)
    assert [s.values["grad_norm"] for s in steps_of(tmp_path)] == pytest.approx(
        watched.norms, rel=1e-5
    )


@FUSED
@pytest.mark.parametrize("given", [False, True], ids=["found out", "given"])
def test_a_loss_the_user_has_scaled_is_not_scaled_again(fused: bool, given: bool) -> None:
    watched, alone = Training(fused), Training(fused)
    options = {"scaler": watched.scaler} if given else {}
    with Guard(watched.model, watched.optimizer, **options) as guard:
        for batch in guard(batches(12)):
            loss = squared_error(watched.model, batch)
            guard.backward(watched.scaler.scale(loss))
            watched.scaler.step(watched.optimizer)
            watched.scaler.update()
            watched.optimizer.zero_grad()
            alone.step(batch)
    assert_same(alone.state(), watched.state())


@FUSED
def test_max_norm_with_scaled_gradients(fused: bool, tmp_path: Path) -> None:
    """As unscale_ and clip_grad_norm_ would."""
    watched, alone = Training(fused), Training(fused, clip=0.1)
    with Guard(watched.model, watched.optimizer, max_norm=0.1, run_dir=tmp_path) as guard:
        for batch in guard(batches(12)):
            watched.step(batch)
            alone.step(batch)
    assert_same(alone.state(), watched.state())
    assert max(step.values["clip_coef"] for step in steps_of(tmp_path)) < 1


def test_a_disabled_scaler_is_as_none(tmp_path: Path) -> None:
    training = Training(fused=False)
    training.scaler = GradScaler("cpu", enabled=False)
    model, optimizer = training.model, training.optimizer
    with Guard(model, optimizer, scaler=training.scaler, run_dir=tmp_path) as guard:
        for number, batch in enumerate(guard(batches(12))):
            before = training.state()
            loss: Tensor = squared_error(model, batch) * (math.nan if number == 7 else 1)
            guard.backward(loss)
            training.scaler.step(optimizer)
            training.scaler.update()
            optimizer.zero_grad()
            if number == 7:
                assert_same(before, training.state())
        assert [action.step for action in guard.actions] == [7]
    assert all("loss_scale" not in step.values for step in steps_of(tmp_path))


def test_accumulation_under_a_scaler(tmp_path: Path) -> None:
    training = Training(fused=False)
    model, optimizer, scaler = training.model, training.optimizer, training.scaler
    losses: list[float] = []
    with Guard(model, optimizer, run_dir=tmp_path) as guard:
        for number, batch in enumerate(guard(batches(12))):
            loss = squared_error(model, batch) / 4
            losses.append(loss.item())
            scaler.scale(loss).backward()
            if number % 4 == 3:
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
    steps = steps_of(tmp_path)
    assert [step.values["micro_batches"] for step in steps] == [4, 4, 4]
    expected = [sum(losses[at : at + 4]) for at in (0, 4, 8)]
    assert [step.values["loss"] for step in steps] == pytest.approx(expected)
