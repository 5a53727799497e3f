"""Rolling back: learned state returns to the last good snapshot, data and schedule go on."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support.paired_trainings import all_finite, events_of
from support.trainings import assert_same, batches, make_net, squared_error, state_of
from torch import Tensor, nn

from headway import Guard, Policy, Snapshots, TrainingHalted
from headway.guard.recovery import snapshotter
from headway.policy import Rung

Spoil = Callable[[nn.Module, torch.optim.Optimizer], None]
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9),
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-3),
    "adamw-fused": lambda p: torch.optim.AdamW(p, lr=1e-3, fused=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=1e-2),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=1e-3),
}


def spoil_weight(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    next(model.parameters()).data.view(-1)[0] = math.nan


def spoil_moment(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for state in optimizer.state.values():
        for value in state.values():
            if isinstance(value, Tensor) and value.numel() > 1:
                value.view(-1)[0] = math.inf
                return


class Run:
    """A training under a guard, with a hand on everything."""

    def __init__(self, optimizer: str = "adamw", **options: Any) -> None:
        self.model = make_net()
        self.optimizer = OPTIMIZERS[optimizer](self.model.parameters())
        options.setdefault("snapshots", Snapshots(every=5))
        self.guard = Guard(self.model, self.optimizer, **options)
        self.losses: list[float] = []

    def steps(
        self, count: int = 30, factor: Callable[[int], float] = lambda _: 1.0
    ) -> Iterator[int]:
        for number, batch in enumerate(self.guard(batches(count))):
            yield number
            loss = squared_error(self.model, batch) * factor(number)
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.losses.append(float(loss.detach()))

    @property
    def state(self) -> dict[str, Any]:
        return state_of(self.model, self.optimizer)

    @property
    def rungs(self) -> list[Rung]:
        return [action.rung for action in self.guard.actions]


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("spoil", [spoil_weight, spoil_moment])
def test_poisoned_state_returns_to_the_last_good_snapshot(name: str, spoil: Spoil) -> None:
    run = Run(name)
    kept: dict[int, Any] = {}
    with run.guard:
        for number in run.steps():
            kept[number] = run.state
            if number == 13:
                spoil(run.model, run.optimizer)
    assert run.rungs.count(Rung.ROLL_BACK) == 1
    assert all_finite(run.state)
    back = 14 if run.guard.actions[0].step == 13 else 15
    assert_same(kept[10], kept[back], "state right after the roll-back")
    assert all(math.isfinite(loss) for loss in run.losses[back:])


def test_the_next_batches_are_used_not_the_same_again() -> None:
    """Ten good steps, a poisoned one, then on with batch 14: as a run that never saw 10 to 13."""
    run, twin = Run(), Run()
    with run.guard:
        for number in run.steps(20):
            if number == 13:
                spoil_weight(run.model, run.optimizer)
    data = [batch for number, batch in enumerate(batches(20)) if number not in range(10, 14)]
    with twin.guard:
        for batch in data:
            squared_error(twin.model, batch).backward()
            twin.optimizer.step()
            twin.optimizer.zero_grad()
    assert_same(twin.state, run.state)


def test_the_schedule_goes_on_with_the_data() -> None:
    model = make_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 30)
    rates = []
    with Guard(model, optimizer, scheduler, snapshots=Snapshots(every=5)) as guard:
        for number, batch in enumerate(guard(batches(30))):
            if number == 17:
                spoil_weight(model, optimizer)
            squared_error(model, batch).backward()
            optimizer.step()
            optimizer.zero_grad()
            rates.append(optimizer.param_groups[0]["lr"])
            scheduler.step()
    assert [action.rung for action in guard.actions] == [Rung.ROLL_BACK]
    expected = [0.005 * (1 + math.cos(math.pi * number / 30)) for number in range(30)]
    assert rates == pytest.approx(expected)


def test_an_ema_that_was_named_is_put_back_too() -> None:
    model = make_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    average = torch.optim.swa_utils.AveragedModel(model)
    guard = Guard(model, optimizer, keep={"ema": average}, snapshots=Snapshots(every=5))
    with guard:
        for number, batch in enumerate(guard(batches(30))):
            if number == 17:
                spoil_weight(model, optimizer)
            squared_error(model, batch).backward()
            optimizer.step()
            optimizer.zero_grad()
            average.update_parameters(model)
    assert all_finite(dict(average.state_dict()))


def test_it_is_written_down(tmp_path: Path) -> None:
    run = Run(run_dir=tmp_path)
    with run.guard:
        for number in run.steps(20):
            if number == 13:
                spoil_weight(run.model, run.optimizer)
    (event,) = events_of(tmp_path, "roll-back")
    assert (event.step, dict(event.data)) == (13, {"to": 10, "lost": 4})
    (action,) = events_of(tmp_path, "action")
    assert action.data["action"] == "roll-back"
    assert "inner.weight is non-finite" in action.data["reason"]


def test_a_long_streak_climbs_the_whole_ladder_and_an_older_snapshot_is_tried(
    tmp_path: Path,
) -> None:
    policy = Policy(skips_in_a_row=3, grace=2, back_offs=1, roll_backs=2)
    run = Run(policy=policy, run_dir=tmp_path)

    def train() -> None:
        for _ in run.steps(60, lambda number: math.nan if number >= 12 else 1.0):
            pass

    with run.guard, pytest.raises(TrainingHalted, match="3 in a row"):
        train()
    skips = [Rung.SKIP] * 2
    expected = [Rung.SKIP, *skips, Rung.BACK_OFF, *skips, Rung.ROLL_BACK, *skips, Rung.ROLL_BACK]
    assert run.rungs == [*expected, *skips, Rung.HALT]
    assert [event.data["to"] for event in events_of(tmp_path, "roll-back")] == [10, 5]
    assert all_finite(run.state)


def test_the_same_snapshot_serves_twice() -> None:
    """What was trained after the first roll-back has not leaked into it."""
    run = Run(snapshots=Snapshots(every=100))
    kept: dict[int, Any] = {}
    with run.guard:
        for number in run.steps(30):
            kept[number] = run.state
            if number in (8, 20):
                spoil_weight(run.model, run.optimizer)
    assert run.rungs == [Rung.ROLL_BACK, Rung.ROLL_BACK]
    assert_same(kept[9], kept[21])


@pytest.mark.parametrize("kept", [1, 2, 3])
def test_a_snapshot_that_is_no_good_never_costs_the_last_good_one(kept: int) -> None:
    torch.manual_seed(0)
    table = nn.Embedding(10, 4)
    optimizer = torch.optim.SGD(table.parameters(), lr=0.1)
    with Guard(table, optimizer, snapshots=Snapshots(every=5, in_memory=kept)) as guard:
        for number in guard(range(40)):
            if number in (17, 28):
                table.weight.data[9] = math.nan
            table(torch.arange(5)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    assert [action.rung for action in guard.actions] == [Rung.ROLL_BACK] * 2
    assert bool(torch.isfinite(table.weight).all())


def test_roll_backs_have_a_budget() -> None:
    run = Run(policy=Policy(roll_backs=2))

    def train() -> None:
        for number in run.steps(40):
            if number in (8, 14, 20):
                spoil_weight(run.model, run.optimizer)

    with run.guard, pytest.raises(TrainingHalted, match="non-finite: skipping cannot repair it"):
        train()
    assert run.rungs == [Rung.ROLL_BACK, Rung.ROLL_BACK, Rung.HALT]


def test_before_the_first_snapshot_is_due_there_is_the_start() -> None:
    run = Run(snapshots=Snapshots(every=1000))
    start = run.state["model.inner.weight"]
    with run.guard:
        for number in run.steps(10):
            if number == 6:
                assert_same(start, run.state["model.inner.weight"])
            if number == 5:
                assert not torch.equal(start, run.state["model.inner.weight"])
                spoil_weight(run.model, run.optimizer)
    assert run.rungs == [Rung.ROLL_BACK]


def test_weights_loaded_after_the_guard_was_built_are_the_start() -> None:
    """Going back to the random weights from before the checkpoint would lose the run silently."""
    run = Run(snapshots=Snapshots(every=1000))
    run.model.load_state_dict(make_net(seed=5).state_dict())
    start = run.state["model.inner.weight"]
    with run.guard:
        for number in run.steps(10):
            if number == 5:
                spoil_weight(run.model, run.optimizer)
            if number == 6:
                assert_same(start, run.state["model.inner.weight"])


def test_poison_that_no_loss_shows_is_found_by_the_next_snapshot() -> None:
    """An embedding row that is not looked up: its NaN would be saved and shipped."""
    torch.manual_seed(0)
    table = nn.Embedding(10, 4)
    optimizer = torch.optim.SGD(table.parameters(), lr=0.1)
    with Guard(table, optimizer, snapshots=Snapshots(every=5)) as guard:
        for number in guard(range(20)):
            if number == 7:
                table.weight.data[9] = math.nan
            table(torch.arange(5)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    assert [(action.rung, action.step) for action in guard.actions] == [(Rung.ROLL_BACK, 9)]
    assert bool(torch.isfinite(table.weight).all())


def test_or_at_the_latest_when_the_run_ends() -> None:
    table = nn.Embedding(10, 4)
    optimizer = torch.optim.SGD(table.parameters(), lr=0.1)
    with Guard(table, optimizer) as guard:
        for number in guard(range(20)):
            if number == 19:
                table.weight.data[9] = math.nan
            table(torch.arange(5)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    assert [action.rung for action in guard.actions] == [Rung.ROLL_BACK]
    assert bool(torch.isfinite(table.weight).all())


class Masked(nn.Module):
    """A buffer that holds -inf on purpose."""

    mask: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 6)
        self.register_buffer(
            "mask", torch.full((6,), -math.inf).index_fill(0, torch.arange(3), 0.0)
        )
        self.register_buffer("hidden", torch.full((2,), math.inf), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.softmax(self.inner(x) + self.mask, -1).sum(-1, keepdim=True)


def test_masks_of_minus_infinity_are_no_poison() -> None:
    torch.manual_seed(0)
    model = Masked()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    average = torch.optim.swa_utils.AveragedModel(model)
    guard = Guard(model, optimizer, keep={"ema": average}, snapshots=Snapshots(every=5))
    with guard:
        for number, batch in enumerate(guard(batches(30))):
            if number == 17:
                spoil_weight(model, optimizer)
            squared_error(model, batch).backward()
            optimizer.step()
            optimizer.zero_grad()
            average.update_parameters(model)
    assert [(action.rung, action.step) for action in guard.actions] == [(Rung.ROLL_BACK, 17)]
    assert all_finite(dict(model.named_parameters()))
    assert float(model.mask[5]) == -math.inf


def test_a_loop_that_nobody_watches_is_rolled_back_in_the_hook() -> None:
    run = Run()
    with run.guard:
        for number, batch in enumerate(batches(30)):
            if number == 17:
                spoil_weight(run.model, run.optimizer)
            squared_error(run.model, batch).backward()
            run.optimizer.step()
            assert number != 17 or all_finite(run.state)
            run.optimizer.zero_grad()
    assert run.rungs == [Rung.ROLL_BACK]


def test_without_snapshots_there_is_no_such_rung() -> None:
    run = Run(snapshots=Snapshots(every=0))

    def train() -> None:
        for number in run.steps(30):
            if number == 8:
                spoil_weight(run.model, run.optimizer)

    with run.guard, pytest.raises(TrainingHalted):
        train()
    assert run.rungs == [Rung.HALT]


def test_moments_of_another_dtype_than_the_weights_come_back_as_they_were() -> None:
    """torch's own load_state_dict rounds float32 moments of bfloat16 weights to bfloat16."""
    model = make_net().to(torch.bfloat16)

    class Master(torch.optim.Optimizer):
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            for group in self.param_groups:
                for p in (p for p in group["params"] if p.grad is not None):
                    kept = self.state[p].setdefault("master", p.detach().float().clone())
                    kept -= 1e-3 * p.grad.float()
                    p.data.copy_(kept)

    optimizer = Master(model.parameters(), {})
    guard = Guard(model, optimizer, snapshots=Snapshots(every=5))
    kept: dict[int, Any] = {}
    with guard:
        for number, (x, y) in enumerate(guard(batches(20))):
            kept[number] = state_of(model, optimizer)
            if number == 13:
                spoil_weight(model, optimizer)
            squared_error(model, (x.bfloat16(), y.bfloat16())).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert [action.rung for action in guard.actions] == [Rung.ROLL_BACK]
    assert_same(kept[10], kept[14])


def test_a_healthy_run_is_bit_identical_with_and_without_snapshots() -> None:
    with_them, without = Run(snapshots=Snapshots(every=1)), Run(snapshots=Snapshots(every=0))
    for run in (with_them, without):
        with run.guard:
            for _ in run.steps(30):
                pass
    assert with_them.losses == without.losses
    assert_same(without.state, with_them.state)


def test_a_snapshot_that_does_not_fit_on_the_device_is_left_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The guard goes on, with the snapshots that it has."""
    take = snapshotter.take_snapshot

    def tight(step: int, *args: Any) -> Any:
        if step == 10:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.71 GiB")
        return take(step, *args)

    monkeypatch.setattr(snapshotter, "take_snapshot", tight)
    run = Run()
    for number in run.steps(20):
        if number == 13:
            spoil_weight(run.model, run.optimizer)
    assert "no snapshot was taken at step 10" in caplog.text
    assert all_finite(run.model.state_dict())
    assert [action.rung for action in run.guard.actions] == [Rung.ROLL_BACK]
    run.guard.close()
