"""`headway run` and `check` add the callback of a framework to a script that has none."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.bad_samples import BATCH, loader
from support.lightning_runs import Regression, everything, fit
from support.lightning_runs import Witness as LightningWitness
from support.paired_trainings import all_finite, steps_of
from support.trainings import assert_same, state_of
from support.transformers_runs import BATCH as ROWS
from support.transformers_runs import Counting, logged, make_trainer
from torch import Tensor

from headway import Policy
from headway.config import Settings
from headway.guard.script.guarded_run import GuardedRunResult, run_guarded
from headway.guard.script.script_guard import ScriptGuard
from headway.integrations import lightning, transformers
from headway.integrations.automatic import run_with_callbacks
from headway.preflight.runner import run_check

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers:UserWarning"),
    pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec.. is dep:FutureWarning"),
]
BAD_STEP = 5
HEALTHY_STEPS = 10


def run(work: Callable[[], Any], run_dir: Path | None = None) -> GuardedRunResult:
    done = run_guarded(lambda: run_with_callbacks(work), settings=Settings(), run_dir=run_dir)
    assert done.error is None, done.error
    return done


def callbacks_of(trainer: Any) -> list[Any]:
    handler = getattr(trainer, "callback_handler", trainer)
    kinds = (transformers.HeadwayCallback, lightning.HeadwayCallback)
    return [item for item in handler.callbacks if isinstance(item, kinds)]


def test_a_healthy_trainer_of_transformers_is_the_same_bit_for_bit(tmp_path: Path) -> None:
    plain = make_trainer(tmp_path, max_steps=HEALTHY_STEPS)
    plain.train()
    guarded = make_trainer(tmp_path, max_steps=HEALTHY_STEPS)
    done = run(lambda: guarded.train(), tmp_path / "run")
    assert_same(
        state_of(plain.model, plain.optimizer.optimizer),
        state_of(guarded.model, guarded.optimizer.optimizer),
    )
    assert logged(plain) == logged(guarded)
    assert done.steps == len(steps_of(tmp_path / "run")) == HEALTHY_STEPS
    assert done.actions == ()
    assert len(callbacks_of(guarded)) == 1


def test_a_healthy_fit_of_lightning_is_the_same_bit_for_bit(tmp_path: Path) -> None:
    plain, guarded = fit(), []
    done = run(lambda: guarded.append(fit()), tmp_path / "run")
    assert_same(everything(plain), everything(guarded[0]))
    assert plain.logged_metrics == guarded[0].logged_metrics
    assert len(steps_of(tmp_path / "run")) == done.steps
    assert len(callbacks_of(guarded[0])) == 1


def test_a_bad_step_of_transformers_is_skipped_and_explained_at_once(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, bad=[ROWS * (BAD_STEP + 1) - 2], max_steps=HEALTHY_STEPS)
    done = run(lambda: trainer.train(), tmp_path / "run")
    assert all_finite(trainer.model.state_dict())
    assert [action.rung.value for action in done.actions] == ["skip"]
    [cause] = [item for item in done.report.findings if item.code == "HD501"]
    assert cause.step == BAD_STEP
    assert any(remedy.cured for item in done.report.findings for remedy in item.remedies)
    assert (tmp_path / "run" / "incidents" / f"1-step{BAD_STEP}").is_dir()


def test_a_bad_step_of_lightning_is_skipped_and_explained_at_once(tmp_path: Path) -> None:
    witness, fitted = LightningWitness(), []
    work = lambda: fitted.append(fit(witness, bad=[BATCH * (BAD_STEP + 1) - 3]))  # noqa: E731
    done = run(work, tmp_path / "run")
    assert_same(witness.before[BAD_STEP], witness.after[BAD_STEP])
    assert [action.rung.value for action in done.actions] == ["skip"]
    assert "HD501" in {item.code for item in done.report.findings}
    assert any(remedy.cured for item in done.report.findings for remedy in item.remedies)


class Ratios(Counting):
    """A ratio in each sample; that of one of them is 0 / 0."""

    def __getitem__(self, at: int) -> dict[str, Tensor]:
        empty = at == ROWS * BAD_STEP + 1
        count = torch.tensor(0.0 if empty else 2.0)
        return {**super().__getitem__(at), "weight": count / count}  # in a sample


class UnitRows(Regression):
    """Rows are divided by their largest element in a hook, before the step."""

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        x, y = batch
        return x / x.abs().amax(dim=1, keepdim=True), y  # in a hook


def line_of(text: str) -> int:
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.endswith(f"# {text}"))


def cured_at(done: GuardedRunResult) -> set[int | None]:
    """The lines of bad inputs that have a fix which was tried."""
    found = [item for item in done.report.findings if item.code == "HD501"]
    assert all(any(one.cured and one.edits for one in item.remedies) for item in found)
    return {item.where.line for item in found}


@pytest.mark.skipif(sys.platform != "linux", reason="needs fork and /proc")
def test_the_line_of_the_data_set_under_a_trainer_of_transformers(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, data=Ratios(ROWS * HEALTHY_STEPS), max_steps=HEALTHY_STEPS)
    assert cured_at(run(lambda: trainer.train())) == {line_of("in a sample")}


@pytest.mark.skipif(sys.platform != "linux", reason="needs fork and /proc")
def test_the_line_of_a_hook_of_lightning_that_changes_batches() -> None:
    data = loader(BATCH * HEALTHY_STEPS)
    data.dataset.tensors[0][BATCH * BAD_STEP + 2] = 0.0  # type: ignore[attr-defined]
    assert cured_at(run(lambda: fit(module=UnitRows(), data=data))) == {line_of("in a hook")}


def test_a_callback_of_the_script_is_the_only_one_and_keeps_its_options(tmp_path: Path) -> None:
    own = transformers.HeadwayCallback(
        run_dir=tmp_path / "own", policy=Policy(replay=False), max_norm=0.5
    )
    trainer = make_trainer(tmp_path, own, max_steps=HEALTHY_STEPS)
    done = run(lambda: trainer.train(), tmp_path / "run")
    assert callbacks_of(trainer) == [own]
    assert isinstance(own.guard, ScriptGuard), "one guard, which writes the record of the run"
    assert not (tmp_path / "own").exists()
    assert done.steps == len(steps_of(tmp_path / "run")) == HEALTHY_STEPS
    assert all("clip_coef" in step.values for step in steps_of(tmp_path / "run"))


def test_the_second_training_of_a_script_continues_the_count(tmp_path: Path) -> None:
    def work() -> None:
        make_trainer(tmp_path, max_steps=3).train()
        make_trainer(tmp_path, max_steps=4).train()

    run(work, tmp_path / "run")
    assert [step.step for step in steps_of(tmp_path / "run")] == list(range(7))


def test_a_check_tests_fixes_in_the_loop_of_a_framework(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, bad=[ROWS * 2 - 2])
    done = run_check(lambda: run_with_callbacks(lambda: trainer.train()), max_steps=3)
    assert any(remedy.cured for item in done.report.findings for remedy in item.remedies)


def test_without_headway_a_trainer_gets_no_callback(tmp_path: Path) -> None:
    run(lambda: None)
    trainer = make_trainer(tmp_path, max_steps=1)
    trainer.train()
    assert callbacks_of(trainer) == []


SCRIPT = """
import sys
assert "transformers" not in sys.modules and "lightning" not in sys.modules
import lightning.pytorch as pl
import torch

class Module(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(3, 1)

    def training_step(self, batch, batch_idx):
        x, weight = batch
        return (self.net(x) ** 2 * weight.log()).mean()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.01)

x, weight = torch.randn(24, 3), torch.full((24,), 2.0)
weight[13] = 0.0
trainer = pl.Trainer(
    max_epochs=1, accelerator="cpu", logger=False, enable_progress_bar=False,
    enable_model_summary=False, enable_checkpointing=False,
)
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, weight), batch_size=4)
trainer.fit(Module(), loader)
"""


@pytest.mark.slow
def test_the_command_names_the_line_and_its_incident_is_replayed(tmp_path: Path) -> None:
    """The script imports its framework only after headway has started it."""
    (tmp_path / "train.py").write_text(SCRIPT)

    def command(*args: str) -> tuple[int, Any]:
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-m", "headway", *args, "--format", "json"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode in (0, 1), done.stderr
        return done.returncode, json.loads(done.stdout)

    line = 1 + SCRIPT.splitlines().index("        return (self.net(x) ** 2 * weight.log()).mean()")
    status, found = command("run", "--out", "run", "train.py")
    assert status == 0
    assert found["causes"][0]["code"] == "HD101"
    [cause] = [item for item in found["findings"] if item["code"] == "HD101"]
    assert (cause["step"], cause["where"]["line"]) == (3, line)
    assert any(remedy["cured"] for remedy in cause["remedies"])
    status, again = command("replay", "run/incidents/1-step3")
    assert status == 1
    assert again["explanation"]["origins"][0]["place"]["line"] == line
