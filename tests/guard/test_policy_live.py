"""The ladder in a real training: skip, go on, and halt when skipping cannot help."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from support.paired_trainings import all_finite, events_of, steps_of, tensors_of
from support.trainings import (
    Net,
    assert_same,
    batches,
    make_net,
    skip_or_halt,
    squared_error,
    state_of,
)

from headway import Guard, Policy, TrainingHalted
from headway.policy import Rung

Spoil = Callable[[Net, torch.optim.Optimizer], None]


class Training:
    """A net whose loss is multiplied at some steps, and which may be spoiled before others."""

    def __init__(self, **options: Any) -> None:
        self.model = make_net()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)
        options.setdefault("policy", skip_or_halt())
        self.guard = Guard(self.model, self.optimizer, **options)
        self.taken = 0

    def run(
        self,
        steps: int,
        factors: Mapping[int, float] | None = None,
        spoil: Mapping[int, Spoil] | None = None,
        size: int = 8,
    ) -> None:
        with self.guard:
            for number, batch in enumerate(self.guard(batches(steps, size=size))):
                if spoil and number in spoil:
                    spoil[number](self.model, self.optimizer)
                (squared_error(self.model, batch) * (factors or {}).get(number, 1.0)).backward()
                self.optimizer.step()
                self.optimizer.zero_grad()
                self.taken += 1

    @property
    def rungs(self) -> list[Rung]:
        return [action.rung for action in self.guard.actions]


def nans(*steps: int) -> dict[int, float]:
    return dict.fromkeys(steps, math.nan)


@pytest.mark.parametrize("limit", [1, 3, 20])
def test_a_streak_of_bad_steps_halts_at_the_first_beyond_the_limit(
    limit: int, tmp_path: Path
) -> None:
    training = Training(policy=skip_or_halt(skips_in_a_row=limit), run_dir=tmp_path)
    with pytest.raises(TrainingHalted) as caught:
        training.run(60, nans(*range(5, 60)))
    assert training.taken == 5 + limit
    assert str(caught.value) == (
        f"training halted at step {5 + limit}: non-finite loss or gradient, {limit + 1} in a row "
        f"(limit {limit}). The weights are those of the last good step; "
        f"next: headway diagnose {tmp_path}"
    )
    assert training.rungs == [*[Rung.SKIP] * limit, Rung.HALT]
    assert all_finite(state_of(training.model, training.optimizer))
    written = [event.data["action"] for event in events_of(tmp_path, "action")]
    assert written == [*["skip"] * limit, "halt"]
    assert not events_of(tmp_path, "crash"), "a halt is no crash"
    (end,) = events_of(tmp_path, "end")
    assert end.data == {"steps": 6 + limit, "status": "failed", "exit": 1}


def test_the_default_bears_twenty_in_a_row() -> None:
    training = Training()
    with pytest.raises(TrainingHalted, match="21 in a row"):
        training.run(60, nans(*range(10, 60)))
    assert training.taken == 30


def test_the_weights_after_a_halt_are_those_of_the_last_good_step() -> None:
    halted, clean = Training(policy=skip_or_halt(skips_in_a_row=3)), Training()
    with pytest.raises(TrainingHalted):
        halted.run(30, nans(*range(12, 30)))
    clean.run(12)
    assert_same(
        state_of(clean.model, clean.optimizer), state_of(halted.model, halted.optimizer), "weights"
    )


def test_a_good_step_in_between_starts_the_count_anew() -> None:
    training = Training(policy=skip_or_halt(skips_in_a_row=3))
    training.run(30, nans(4, 5, 6, 8, 9, 10, 12, 13, 14))
    assert training.rungs == [Rung.SKIP] * 9


def test_too_many_within_the_window_halt_although_never_in_a_row() -> None:
    training = Training(policy=skip_or_halt(skips_per_window=5, window=40))
    with pytest.raises(TrainingHalted, match="more than 5 skipped updates within 40 steps"):
        training.run(60, nans(*range(2, 60, 3)))
    assert training.taken == 2 + 5 * 3


def test_as_many_spread_wider_do_not() -> None:
    training = Training(policy=skip_or_halt(skips_per_window=5, window=10))
    training.run(60, nans(*range(2, 60, 3)))
    assert training.rungs == [Rung.SKIP] * 20


def test_spikes_count_as_well() -> None:
    training = Training(policy=skip_or_halt(skips_in_a_row=4))
    with pytest.raises(TrainingHalted, match="gradient spike, 5 in a row"):
        training.run(60, dict.fromkeys(range(40, 60), 1e6), size=64)
    assert training.taken == 44


def test_without_halting_it_goes_on_for_ever() -> None:
    training = Training(policy=skip_or_halt(halt=False, skips_in_a_row=2, skips_per_window=3))
    training.run(80, nans(*range(10, 70)))
    assert training.rungs == [Rung.SKIP] * 60
    assert training.taken == 80
    assert all_finite(state_of(training.model, training.optimizer))


def test_a_user_who_catches_the_halt_may_go_on() -> None:
    """The halt is an exception like any other; the guard still stands."""
    training = Training(policy=skip_or_halt(skips_in_a_row=1))
    guard, model, optimizer = training.guard, training.model, training.optimizer
    halts = 0
    for number, batch in enumerate(guard(batches(20))):
        (squared_error(model, batch) * (math.nan if number in (5, 6, 7) else 1.0)).backward()
        try:
            optimizer.step()
        except TrainingHalted:
            halts += 1
        optimizer.zero_grad()
    guard.close()
    assert halts == 2
    assert [action.step for action in guard.actions] == [5, 6, 7]
    assert all_finite(state_of(model, optimizer))


def spoil_weight(model: Net, optimizer: torch.optim.Optimizer) -> None:
    with torch.no_grad():
        model.head.weight[0, 3] = math.nan


def spoil_moment(model: Net, optimizer: torch.optim.Optimizer) -> None:
    """And a bad batch, or nobody would ever look: moments say nothing before they are used."""
    optimizer.state[model.head.weight]["exp_avg"][0, 3] = math.inf


@pytest.mark.parametrize(
    ("spoil", "name", "role"),
    [
        (spoil_weight, "head.weight", "weight"),
        (spoil_moment, "head.weight.exp_avg", "moment"),
    ],
)
def test_poisoned_state_halts_at_once_and_is_named(
    spoil: Spoil, name: str, role: str, tmp_path: Path
) -> None:
    """Skipping would loop for ever: the next forward is as bad."""
    training = Training(run_dir=tmp_path)
    with pytest.raises(TrainingHalted) as caught:
        training.run(20, nans(7), {7: spoil})
    assert f"step 7: {name} is non-finite: skipping cannot repair it" in str(caught.value)
    assert "They were non-finite before this step: do not continue from these weights" in str(
        caught.value
    )
    assert training.taken == 7
    assert training.rungs == [Rung.HALT]
    assert (name, role) in {(record.name, record.role) for record in tensors_of(tmp_path)}


def test_a_poisoned_checkpoint_is_seen_before_the_first_step(tmp_path: Path) -> None:
    model = make_net()
    spoil_weight(model, torch.optim.SGD(model.parameters(), lr=0.1))
    with Guard(model, torch.optim.SGD(model.parameters(), lr=0.1), run_dir=tmp_path) as guard:
        assert "HD301" in {finding.code for finding in guard.findings}
    (record,) = tensors_of(tmp_path)
    assert (record.name, record.step, record.nonfinite) == ("head.weight", 0, 1)


def test_spikes_may_be_recorded_only(tmp_path: Path) -> None:
    """With hold_spikes=False the update is applied, and the finding says so."""
    watched = Training(policy=Policy(hold_spikes=False), run_dir=tmp_path)
    watched.run(40, {30: 1e4}, size=64)
    alone = make_net()
    optimizer = torch.optim.Adam(alone.parameters(), lr=1e-3)
    for number, batch in enumerate(batches(40, size=64)):
        (squared_error(alone, batch) * (1e4 if number == 30 else 1.0)).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert_same(state_of(alone, optimizer), state_of(watched.model, watched.optimizer))
    assert watched.rungs == []
    (finding,) = (found for found in watched.guard.findings if found.code == "HD207")
    assert finding.step == 30
    assert "applied" in finding.message
    assert not any(step.held for step in steps_of(tmp_path))


def test_nans_are_held_even_so() -> None:
    training = Training(policy=Policy(hold_spikes=False))
    training.run(40, nans(30), size=64)
    assert training.rungs == [Rung.SKIP]
    assert all_finite(state_of(training.model, training.optimizer))


def test_the_policy_can_come_from_a_settings_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pyproject.toml").write_text(
        "[tool.headway.policy]\nskips_in_a_row = 2\nback_offs = 0\nroll_backs = 0\n"
    )
    monkeypatch.chdir(tmp_path)
    training = Training(policy=None)
    with pytest.raises(TrainingHalted, match="limit 2"):
        training.run(20, nans(*range(5, 20)))
