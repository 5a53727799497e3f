"""The real Lightning Trainer under the callback: precisions, accumulation, clipping, by hand."""

from __future__ import annotations

import csv
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from support.bad_samples import BATCH
from support.guarded_trainings import loud
from support.lightning_runs import (
    STEPS,
    ByHand,
    Regression,
    Witness,
    everything,
    fit,
    loss_on_clean_data,
)
from support.paired_trainings import all_finite, events_of, steps_of
from support.trainings import assert_same, skip_or_halt

import headway
from headway import Guard, Snapshots, TrainingHalted
from headway.integrations.lightning import HeadwayCallback
from headway.policy import Rung

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers:UserWarning"),
    # Lightning calls what torch has deprecated.
    pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec.. is dep:FutureWarning"),
]

RECIPES: dict[str, dict[str, Any]] = {
    "float32": {},
    "bf16-mixed": {"precision": "bf16-mixed"},
    "bf16-true": {"precision": "bf16-true"},
    "accumulation": {"accumulate_grad_batches": 2},
    "clipping by norm": {"gradient_clip_val": 0.5},
    "clipping by value": {"gradient_clip_val": 0.5, "gradient_clip_algorithm": "value"},
    "all at once": {
        "precision": "bf16-mixed",
        "accumulate_grad_batches": 2,
        "gradient_clip_val": 0.5,
    },
}
BAD_STEP = 25


def bad_sample(recipe: dict[str, Any]) -> int:
    """A sample in the last micro-batch of the bad step."""
    return BATCH * recipe.get("accumulate_grad_batches", 1) * (BAD_STEP + 1) - 3


@pytest.mark.parametrize("name", RECIPES)
def test_a_poisoned_batch_leaves_no_trace_and_the_run_ends_well(name: str, tmp_path: Path) -> None:
    recipe = RECIPES[name]
    callback, witness = HeadwayCallback(run_dir=tmp_path), Witness()
    trainer = fit(callback, witness, bad=[bad_sample(recipe)], **recipe)

    micro = recipe.get("accumulate_grad_batches", 1)
    first, last = BAD_STEP * micro, (BAD_STEP + 1) * micro - 1
    assert_same(witness.before[first], witness.after[last])
    assert all_finite(everything(trainer))
    clean = fit(**recipe)
    assert loss_on_clean_data(clean) < 0.2 * loss_on_clean_data(fit(max_steps=0))
    assert loss_on_clean_data(trainer) == pytest.approx(loss_on_clean_data(clean), rel=0.3, abs=0.3)

    guard = callback.guard
    assert guard is not None
    assert {finding.code for finding in loud(guard)} == {"HD101", "HD201", "HD501"}
    assert {finding.step for finding in loud(guard)} == {BAD_STEP}
    assert [action.to_dict()["action"] for action in guard.actions] == ["skip"]
    report = headway.diagnose(tmp_path)
    assert report.causes[0].code == "HD501"
    assert "in sample 5, at feature 3" in report.causes[0].message


def test_without_the_callback_that_batch_kills_the_run() -> None:
    assert not all_finite(everything(fit(bad=[bad_sample({})])))


@pytest.mark.parametrize("name", ["float32", "all at once"])
def test_a_healthy_run_is_the_same_bit_for_bit(name: str, tmp_path: Path) -> None:
    plain = fit(**RECIPES[name])
    callback = HeadwayCallback(run_dir=tmp_path)
    guarded = fit(callback, **RECIPES[name])
    assert_same(everything(plain), everything(guarded))
    assert plain.logged_metrics == guarded.logged_metrics
    assert callback.guard is not None
    assert loud(callback.guard) == []
    assert callback.guard.actions == []
    assert len(steps_of(tmp_path)) == STEPS


def test_the_norm_is_the_one_before_clipping(tmp_path: Path) -> None:
    fit(HeadwayCallback(run_dir=tmp_path / "free"), max_steps=1)
    fit(HeadwayCallback(run_dir=tmp_path / "clipped"), max_steps=1, gradient_clip_val=0.01)
    [free], [clipped] = steps_of(tmp_path / "free"), steps_of(tmp_path / "clipped")
    assert clipped.values["grad_norm"] == free.values["grad_norm"]
    assert clipped.values["clip_coef"] == pytest.approx(0.01 / free.values["grad_norm"], rel=1e-3)


def test_the_hooks_of_a_module_come_where_they_always_do() -> None:
    class Noting(Regression):
        def __init__(self) -> None:
            super().__init__()
            self.seen: list[str] = []

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            self.seen.append("training_step")
            return super().training_step(batch, batch_idx)

        def on_after_backward(self) -> None:
            self.seen.append("after_backward")

        def on_before_optimizer_step(self, optimizer: Any) -> None:
            self.seen.append("before_optimizer_step")

        def on_before_zero_grad(self, optimizer: Any) -> None:
            self.seen.append("before_zero_grad")

    plain, guarded = Noting(), Noting()
    options = {"max_steps": 3, "accumulate_grad_batches": 2}
    fit(module=plain, **options)
    fit(HeadwayCallback(), module=guarded, bad=[BATCH * 3], **options)
    assert guarded.seen == plain.seen


def test_optimizing_by_hand_with_two_optimizers(tmp_path: Path) -> None:
    callback, witness = HeadwayCallback(run_dir=tmp_path), Witness()
    trainer = fit(callback, witness, module=ByHand(), bad=[bad_sample({})])
    assert_same(witness.before[BAD_STEP], witness.after[BAD_STEP])
    assert all_finite(everything(trainer))
    steps = steps_of(tmp_path)
    assert [step.step for step in steps] == list(range(STEPS)), "a step has both optimizers in it"
    assert "loss#1" in steps[0].values
    assert callback.guard is not None
    assert {finding.step for finding in loud(callback.guard)} == {BAD_STEP}
    assert_same(
        everything(fit(module=ByHand())), everything(fit(HeadwayCallback(), module=ByHand()))
    )


def test_a_step_that_returns_none_is_no_alarm(tmp_path: Path) -> None:
    class Choosy(Regression):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return None if batch_idx == 4 else super().training_step(batch, batch_idx)

    with pytest.warns(UserWarning, match="training_step. returned .None"):
        plain = fit(module=Choosy())
    callback = HeadwayCallback(run_dir=tmp_path)
    guarded = fit(callback, module=Choosy())
    assert_same(everything(plain), everything(guarded))
    assert callback.guard is not None
    assert loud(callback.guard) == []


def test_a_fit_without_an_optimizer_runs_unwatched(caplog: pytest.LogCaptureFixture) -> None:
    class Idle(Regression):
        def configure_optimizers(self) -> None:
            return None

    callback = HeadwayCallback()
    with pytest.warns(UserWarning, match="returned .None., this fit will run with no optimizer"):
        fit(callback, module=Idle(), max_steps=2)
    assert callback.guard is None
    assert "has no torch optimizer" in caplog.text


def test_a_rate_that_is_backed_off_is_logged_as_it_was_applied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Guard, "rate_factor", property(lambda self: 0.5), raising=False)
    monitor, module = pl.callbacks.LearningRateMonitor(), Regression()
    callbacks = (HeadwayCallback(), monitor)
    options = {"module": module, "max_steps": 3, "logger": pl.loggers.CSVLogger(tmp_path)}
    fit(*callbacks, **options)
    assert monitor.lrs["lr-AdamW"][0] == pytest.approx(0.5 * 3e-2)
    fit(*callbacks, **options)
    assert monitor.lrs["lr-AdamW"][0] == pytest.approx(0.5 * 3e-2), "once, not twice, at a refit"


def test_held_updates_reach_the_loggers(tmp_path: Path) -> None:
    logger = pl.loggers.CSVLogger(tmp_path)
    fit(HeadwayCallback(), bad=[bad_sample({}), bad_sample({}) + 2 * BATCH], logger=logger)
    with open(Path(logger.log_dir) / "metrics.csv") as file:
        rows = [row for row in csv.DictReader(file) if row["headway_skipped"]]
    assert [(int(row["step"]), float(row["headway_skipped"])) for row in rows] == [
        (BAD_STEP + 1, 1.0),
        (BAD_STEP + 3, 2.0),
    ]


def test_the_end_of_every_step_is_told_once_its_schedule_has_moved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    moved = []
    monkeypatch.setattr(Guard, "step_done", lambda self: moved.append(self.scheduler.last_epoch))
    fit(HeadwayCallback(), max_steps=4)
    assert moved == [1, 2, 3, 4]


class Poison(pl.Callback):
    """Corrupts a weight after a step, as a bad memory cell would."""

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *args: Any) -> None:
        if trainer.global_step == 12:
            next(pl_module.parameters()).data.view(-1)[0] = math.nan


def test_poisoned_weights_are_rolled_back_and_the_run_comes_home(tmp_path: Path) -> None:
    callback = HeadwayCallback(run_dir=tmp_path, snapshots=Snapshots(every=5))
    module = Regression()
    fit(callback, Poison(), module=module)
    assert [action.rung for action in callback.guard.actions] == [Rung.ROLL_BACK]
    (event,) = events_of(tmp_path, "roll-back")
    assert event.data["to"] == 10
    assert all_finite(module.state_dict())


def test_a_halted_run_stops_the_trainer_with_its_message(tmp_path: Path) -> None:
    callback = HeadwayCallback(run_dir=tmp_path, policy=skip_or_halt(skips_in_a_row=2))
    module = Regression()
    with pytest.raises(TrainingHalted, match="training halted at step 7: non-finite loss"):
        fit(callback, module=module, bad=range(5 * BATCH, STEPS * BATCH))
    assert all_finite(module.state_dict())
    assert events_of(tmp_path, "action")[-1].data == {
        "action": "halt", "step": 7,
        "reason": "non-finite loss or gradient, 3 in a row (limit 2)",
    }  # fmt: skip
    assert not events_of(tmp_path, "crash"), "a halt is no crash"
    [end] = events_of(tmp_path, "end")
    assert end.data == {"steps": 8, "status": "failed", "exit": 1}
    assert torch.autograd.backward.__module__ == "torch.autograd", "the guard was closed"


def test_an_exception_that_ends_the_run_is_written_down(tmp_path: Path) -> None:
    class Breaking(Regression):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            if batch_idx == 6:
                raise ValueError("not this one")
            return super().training_step(batch, batch_idx)

    with pytest.raises(ValueError, match="not this one"):
        fit(HeadwayCallback(run_dir=tmp_path), module=Breaking())
    [event] = events_of(tmp_path, "crash")
    assert event.data["error"] == "ValueError: not this one"
    assert event.data["place"]["function"] == "training_step"
    [end] = events_of(tmp_path, "end")
    assert end.data == {"steps": 6, "status": "failed", "exit": 1}
    assert len(steps_of(tmp_path)) == 6


def test_resuming_from_a_checkpoint_goes_on_as_if_nothing_had_been(tmp_path: Path) -> None:
    whole = fit(max_epochs=2)
    first = fit(HeadwayCallback(tmp_path / "run"))
    first.save_checkpoint(tmp_path / "half.ckpt")
    callback = HeadwayCallback(tmp_path / "run")
    second = fit(callback, max_epochs=2, ckpt_path=tmp_path / "half.ckpt")
    assert_same(everything(whole), everything(second))
    assert [step.step for step in steps_of(tmp_path / "run")] == list(range(2 * STEPS))


@pytest.mark.slow
def test_the_other_name_of_lightning_works_too() -> None:
    program = """
import warnings
import torch
import pytorch_lightning as pl
from headway.integrations.lightning import HeadwayCallback
from headway.policy import Rung
warnings.simplefilter("ignore")
assert issubclass(HeadwayCallback, pl.Callback)

class Line(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)
    def training_step(self, batch, batch_idx):
        return self.layer(batch).square().mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

data = torch.randn(10, 2)
data[6] = float("nan")
callback, line = HeadwayCallback(), Line()
pl.Trainer(max_epochs=1, accelerator="cpu", logger=False, enable_progress_bar=False,
           enable_checkpointing=False, callbacks=[callback]).fit(
    line, torch.utils.data.DataLoader(data, batch_size=2))
assert torch.isfinite(line.layer.weight).all()
print([finding.code for finding in callback.guard.findings])
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    assert "HD501" in done.stdout
