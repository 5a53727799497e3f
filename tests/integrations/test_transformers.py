"""The real Hugging Face Trainer under the callback: default arguments, and the usual others."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from support.grids import all_but
from support.guarded_trainings import loud
from support.paired_trainings import all_finite, events_of, steps_of
from support.trainings import assert_same, skip_or_halt, state_of
from support.transformers_runs import (
    BATCH,
    STEPS,
    Counting,
    Witness,
    logged,
    loss_on_clean_data,
    make_trainer,
)
from transformers import TrainerCallback, TrainerControl, TrainerState
from transformers.trainer_callback import CallbackHandler, DefaultFlowCallback

import headway
from headway import Guard, Policy, Snapshots, TrainingHalted
from headway.integrations.transformers import HeadwayCallback
from headway.policy import Rung

RECIPES: dict[str, dict[str, Any]] = {
    "defaults": {},
    "accumulation": {"gradient_accumulation_steps": 2},
    "bf16": {"bf16": True},
    "accumulation in bf16": {"gradient_accumulation_steps": 2, "bf16": True},
    "no clipping": {"max_grad_norm": 0.0},
    "not fused": {"optim": "adamw_torch"},
}
BAD_STEP = 12


def bad_sample(recipe: dict[str, Any]) -> int:
    """A sample in the last micro-batch of the bad step."""
    return BATCH * recipe.get("gradient_accumulation_steps", 1) * (BAD_STEP + 1) - 2


@pytest.mark.parametrize("name", all_but(RECIPES, "defaults", "accumulation in bf16"))
@pytest.mark.slow
def test_a_poisoned_batch_leaves_no_trace_and_the_run_ends_well(name: str, tmp_path: Path) -> None:
    recipe = RECIPES[name]
    callback, witness = HeadwayCallback(run_dir=tmp_path / "run"), Witness()
    trainer = make_trainer(tmp_path, callback, witness, bad=[bad_sample(recipe)], **recipe)
    trainer.train()

    assert_same(witness.before[BAD_STEP], witness.after[BAD_STEP])
    assert all_finite(witness.after[-1])
    clean = make_trainer(tmp_path, **recipe)
    begun = loss_on_clean_data(clean)
    clean.train()
    assert loss_on_clean_data(clean) < 0.5 * begun
    assert loss_on_clean_data(trainer) == pytest.approx(loss_on_clean_data(clean), rel=0.1, abs=0.1)

    guard = callback.guard
    assert guard is not None
    assert {finding.code for finding in loud(guard)} == {"HD101", "HD201", "HD501"}
    assert {finding.step for finding in loud(guard)} == {BAD_STEP}
    assert [action.to_dict()["action"] for action in guard.actions] == ["skip"]
    report = headway.diagnose(tmp_path / "run")
    assert report.causes[0].code == "HD501"
    assert "sample 2" in report.causes[0].message, "the sample within its micro-batch"
    assert [step.step for step in steps_of(tmp_path / "run") if step.held] == [BAD_STEP]


def test_without_the_callback_that_batch_kills_the_run(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, bad=[bad_sample({})])
    trainer.train()
    assert not all_finite(trainer.model.state_dict())
    assert trainer.state.log_history[-2]["loss"] == 0.0, "and the log calls it a loss of 0"


@pytest.mark.parametrize("name", ["defaults", "accumulation in bf16"])
def test_a_healthy_run_is_the_same_bit_for_bit(name: str, tmp_path: Path) -> None:
    plain = make_trainer(tmp_path, **RECIPES[name])
    plain.train()
    callback = HeadwayCallback(run_dir=tmp_path / "run")
    guarded = make_trainer(tmp_path, callback, **RECIPES[name])
    guarded.train()

    for trainer in (plain, guarded):
        assert trainer.optimizer.optimizer.defaults["fused"]
    assert_same(
        state_of(plain.model, plain.optimizer.optimizer),
        state_of(guarded.model, guarded.optimizer.optimizer),
    )
    assert logged(plain) == logged(guarded)
    assert callback.guard is not None
    assert loud(callback.guard) == []
    assert callback.guard.actions == []
    assert len(steps_of(tmp_path / "run")) == STEPS


def test_the_record_agrees_with_the_log(tmp_path: Path) -> None:
    callback = HeadwayCallback(run_dir=tmp_path / "run")
    trainer = make_trainer(tmp_path, callback, gradient_accumulation_steps=2)
    trainer.train()
    for step, entry in zip(steps_of(tmp_path / "run"), trainer.state.log_history, strict=False):
        assert step.values["loss"] == pytest.approx(entry["loss"], rel=1e-5)
        assert step.values["grad_norm"] == pytest.approx(entry["grad_norm"], rel=1e-5)
        assert step.values["lr"] == pytest.approx(entry["learning_rate"])
        assert step.values["micro_batches"] == 2
        assert step.values["loader_wait_s"] > 0


def test_a_swallowed_nan_is_logged_as_what_it_is(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, HeadwayCallback(), bad=[bad_sample({})])
    assert trainer.args.logging_nan_inf_filter
    trainer.train()
    entry = trainer.state.log_history[BAD_STEP]
    assert math.isnan(entry["loss"]), "nothing finite was left in this window: not 0"
    assert math.isnan(entry["grad_norm"])
    assert entry["headway_skipped"] == 1
    later = trainer.state.log_history[BAD_STEP + 1]
    assert math.isfinite(later["loss"])
    assert "headway_skipped" not in later


def test_a_window_is_averaged_over_the_losses_that_are_numbers(tmp_path: Path) -> None:
    callback = HeadwayCallback(run_dir=tmp_path / "run")
    trainer = make_trainer(tmp_path, callback, bad=[bad_sample({})], logging_steps=5)
    trainer.train()
    losses = [step.values["loss"] for step in steps_of(tmp_path / "run")][10:15]
    finite = [loss for loss in losses if math.isfinite(loss)]
    assert len(finite) == 4
    assert trainer.state.log_history[2]["loss"] == pytest.approx(sum(finite) / 4, rel=1e-5)


def test_a_nan_that_is_not_filtered_is_logged_once_and_not_for_ever(tmp_path: Path) -> None:
    witness = Witness()
    trainer = make_trainer(
        tmp_path, witness, HeadwayCallback(), bad=[bad_sample({})], logging_nan_inf_filter=False
    )
    trainer.train()
    for log in (trainer.state.log_history, witness.logs):
        bad = [at for at, entry in enumerate(log) if math.isnan(entry.get("loss", 0.0))]
        assert bad == [BAD_STEP]


def test_a_rate_that_is_backed_off_is_logged_as_it_was_applied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Guard, "rate_factor", property(lambda self: 0.5), raising=False)
    listed_first = Witness()
    trainer = make_trainer(tmp_path, listed_first, HeadwayCallback(), max_steps=4)
    trainer.train()
    rates = [0.5 * 1e-2 * (1 - step / 4) for step in range(4)]
    for log in (trainer.state.log_history, listed_first.logs):
        assert [entry["learning_rate"] for entry in log[:4]] == pytest.approx(rates)


def test_a_real_back_off_shows_in_the_log(tmp_path: Path) -> None:
    """Three bad steps, then the rate at a tenth: logged as applied, the schedule untouched."""
    policy = Policy(skips_in_a_row=2, back_off_factor=0.1, back_off_steps=4, rewarm_steps=0)
    callback = HeadwayCallback(policy=policy)
    trainer = make_trainer(tmp_path, callback, bad=range(BATCH * 5, BATCH * 8))
    trainer.train()
    rates = [entry["learning_rate"] for entry in trainer.state.log_history[:STEPS]]
    plain = [1e-2 * (1 - step / STEPS) for step in range(STEPS)]
    factors = [rate / base for rate, base in zip(rates, plain, strict=True)]
    assert factors == pytest.approx([1.0] * 8 + [0.1] * 4 + [1.0] * (STEPS - 12))


class Poison(TrainerCallback):
    """Corrupts a weight after a step, as a bad memory cell would."""

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        if state.global_step == 12:
            next(model.parameters()).data.view(-1)[0] = math.nan


@pytest.mark.slow
def test_poisoned_weights_are_rolled_back_and_the_run_comes_home(tmp_path: Path) -> None:
    callback = HeadwayCallback(run_dir=tmp_path / "run", snapshots=Snapshots(every=5))
    trainer = make_trainer(tmp_path, callback, Poison())
    trainer.train()
    assert trainer.state.global_step == STEPS
    assert [action.rung for action in callback.guard.actions] == [Rung.ROLL_BACK]
    (event,) = events_of(tmp_path / "run", "roll-back")
    assert event.data["to"] == 10
    assert all_finite(trainer.model.state_dict())
    clean = make_trainer(tmp_path / "clean")
    clean.train()
    ends = [run.state.log_history[STEPS - 1]["loss"] for run in (trainer, clean)]
    assert ends[0] == pytest.approx(ends[1], rel=0.3)


@pytest.mark.slow
def test_a_halted_run_stops_the_trainer_with_its_message(tmp_path: Path) -> None:
    callback = HeadwayCallback(run_dir=tmp_path / "run", policy=skip_or_halt(skips_in_a_row=2))
    trainer = make_trainer(tmp_path, callback, bad=range(BATCH * 5, BATCH * STEPS))
    with pytest.raises(TrainingHalted, match="training halted at step 7: non-finite loss"):
        trainer.train()
    assert trainer.state.global_step == 7
    assert all_finite(trainer.model.state_dict())
    assert events_of(tmp_path / "run", "action")[-1].data == {
        "action": "halt", "step": 7,
        "reason": "non-finite loss or gradient, 3 in a row (limit 2)",
    }  # fmt: skip
    assert not events_of(tmp_path / "run", "crash"), "a halt is no crash"
    [end] = events_of(tmp_path / "run", "end")
    assert end.data == {"steps": 8, "status": "failed", "exit": 1}
    assert torch.autograd.backward.__module__ == "torch.autograd", "the guard was closed"


def test_an_exception_that_ends_the_run_is_written_down(tmp_path: Path) -> None:
    class Breaking(Counting):
        def __getitem__(self, at: int) -> Any:
            if at == BATCH * 6:
                raise OSError("the disk with the data is gone")
            return super().__getitem__(at)

    callback = HeadwayCallback(run_dir=tmp_path / "run")
    trainer = make_trainer(tmp_path, callback, data=Breaking(200))
    with pytest.raises(OSError, match="is gone"):
        trainer.train()
    [event] = events_of(tmp_path / "run", "loader-failed")
    assert event.data["error"] == "OSError: the disk with the data is gone"
    assert event.data["sample"] == BATCH * 6
    [end] = events_of(tmp_path / "run", "end")
    assert end.data == {"steps": 5, "status": "failed", "exit": 1}
    assert len(steps_of(tmp_path / "run")) == 5, "Accelerate fetches a batch ahead"


@pytest.mark.slow
def test_resuming_from_a_checkpoint_goes_on_as_if_nothing_had_been(tmp_path: Path) -> None:
    whole = make_trainer(tmp_path / "whole")
    whole.train()

    class StopAt(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            control.should_training_stop = state.global_step == 10

    saving = {"save_strategy": "steps", "save_steps": 10}
    first = make_trainer(tmp_path, HeadwayCallback(tmp_path / "run"), StopAt(), **saving)
    first.train()
    assert first.state.global_step == 10
    callback = HeadwayCallback(tmp_path / "run")
    second = make_trainer(tmp_path, callback, **saving)
    second.train(resume_from_checkpoint=True)

    assert_same(
        state_of(whole.model, whole.optimizer.optimizer),
        state_of(second.model, second.optimizer.optimizer),
    )
    steps = steps_of(tmp_path / "run")
    assert [step.step for step in steps] == list(range(STEPS)), "numbered as the Trainer does"
    assert {step.segment for step in steps[:10]} != {step.segment for step in steps[10:]}
    assert loud(callback.guard) == []  # type: ignore[arg-type]


@pytest.mark.slow
def test_training_twice_opens_a_new_guard(tmp_path: Path) -> None:
    callback = HeadwayCallback()
    trainer = make_trainer(tmp_path, callback, max_steps=3)
    trainer.train()
    first = callback.guard
    trainer.train()
    assert callback.guard is not first
    assert torch.autograd.backward.__module__ == "torch.autograd"


def test_a_callback_added_later_guards_as_well(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, bad=[bad_sample({})])
    callback = HeadwayCallback()
    trainer.add_callback(callback)
    trainer.train()
    assert all_finite(trainer.model.state_dict())
    assert callback.guard is not None
    assert "HD501" in {finding.code for finding in callback.guard.findings}


def test_the_end_of_every_step_is_told_once_its_schedule_has_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rates = []
    monkeypatch.setattr(
        Guard, "step_done", lambda self: rates.append(self.scheduler.get_last_lr()[0])
    )
    make_trainer(tmp_path, HeadwayCallback(), max_steps=4, gradient_accumulation_steps=2).train()
    assert rates == pytest.approx([1e-2 * (1 - step / 4) for step in (1, 2, 3, 4)])


def test_outside_a_trainer_steps_are_held_all_the_same(tmp_path: Path) -> None:
    """Loops of other libraries that only borrow the callbacks: no batches, but the brake."""
    made = make_trainer(tmp_path)
    optimizer = torch.optim.AdamW(made.model.parameters(), lr=1e-2)
    callback = HeadwayCallback()
    handler = CallbackHandler([callback, DefaultFlowCallback()], made.model, None, optimizer, None)
    state, control, data = TrainerState(), TrainerControl(), Counting(20, bad=[9])
    handler.on_train_begin(made.args, state, control)
    for at in range(0, 20, BATCH):
        batch = torch.utils.data.default_collate([data[at + more] for more in range(BATCH)])
        handler.on_step_begin(made.args, state, control)
        made.model(**batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        handler.on_step_end(made.args, state, control)
    handler.on_train_end(made.args, state, control)
    assert all_finite(made.model.state_dict())
    assert callback.guard is not None
    assert [action.step for action in callback.guard.actions] == [2]
