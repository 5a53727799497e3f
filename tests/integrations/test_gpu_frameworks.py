"""The frameworks on a GPU: fused optimizers that skip inside the kernel, and GradScaler."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.bad_samples import BATCH as ROWS
from support.paired_trainings import all_finite, steps_of
from support.trainings import assert_same, state_of
from support.transformers_runs import BATCH, Witness, make_trainer

from headway.integrations.transformers import HeadwayCallback

pytestmark = pytest.mark.gpu

BAD_STEP = 12
HUGGING_FACE: dict[str, dict[str, Any]] = {
    "fused": {},
    "fused, bf16, accumulation": {"bf16": True, "gradient_accumulation_steps": 2},
    "fused, fp16": {"fp16": True},
    "not fused": {"optim": "adamw_torch"},
}


@pytest.mark.parametrize("name", HUGGING_FACE)
def test_hugging_face_holds_a_poisoned_batch(name: str, tmp_path: Path) -> None:
    recipe = {"use_cpu": False, **HUGGING_FACE[name]}
    per_step = BATCH * recipe.get("gradient_accumulation_steps", 1)
    callback, witness = HeadwayCallback(run_dir=tmp_path / "run"), Witness()
    trainer = make_trainer(
        tmp_path, callback, witness, bad=[per_step * (BAD_STEP + 1) - 2], **recipe
    )
    trainer.train()
    assert_same(witness.before[BAD_STEP], witness.after[BAD_STEP])
    assert all_finite(witness.after[-1])
    assert BAD_STEP in [step.step for step in steps_of(tmp_path / "run") if step.held]
    assert callback.guard is not None
    assert "HD101" in {finding.code for finding in callback.guard.findings}


@pytest.mark.parametrize("name", HUGGING_FACE)
def test_hugging_face_is_the_same_bit_for_bit_when_healthy(name: str, tmp_path: Path) -> None:
    recipe = {"use_cpu": False, **HUGGING_FACE[name]}
    plain = make_trainer(tmp_path, **recipe)
    plain.train()
    guarded = make_trainer(tmp_path, HeadwayCallback(), **recipe)
    guarded.train()
    assert_same(
        state_of(plain.model, plain.optimizer.optimizer),
        state_of(guarded.model, guarded.optimizer.optimizer),
    )


@pytest.mark.filterwarnings("ignore:.*does not have many workers:UserWarning")
@pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec.. is dep:FutureWarning")
# The scaler begins too high and skips the first step, with and without a guard.
@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step:UserWarning")
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "16-mixed"])
def test_lightning_holds_a_poisoned_batch(precision: str, tmp_path: Path) -> None:
    from support.lightning_runs import Witness as Watcher
    from support.lightning_runs import everything, fit

    from headway.integrations.lightning import HeadwayCallback as Callback

    callback, witness = Callback(run_dir=tmp_path), Watcher()
    trainer = fit(
        callback,
        witness,
        bad=[ROWS * (BAD_STEP + 1) - 3],
        accelerator="gpu",
        devices=1,
        precision=precision,
    )
    assert_same(witness.before[BAD_STEP], witness.after[BAD_STEP])
    assert all_finite(everything(trainer))
    assert BAD_STEP in [step.step for step in steps_of(tmp_path) if step.held]
