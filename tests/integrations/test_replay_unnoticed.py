"""A bad step of a real framework is run again: the user's own line is named, and the framework's
logs, callbacks, counters and schedules are those of a run that merely skipped it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import accelerate
import lightning.pytorch as pl
import pytest
import torch
from accelerate.state import AcceleratorState, GradientState, PartialState
from support.grids import all_but
from support.replay_frameworks import BATCH, STEPS, Samples, Shares, assert_explained
from support.trainings import assert_same, state_of
from support.transformers_runs import logged
from torch import Tensor, nn
from torch.nn.functional import nll_loss
from transformers import Trainer, TrainerCallback, TrainingArguments

from headway import Guard, Policy
from headway.integrations import lightning as of_lightning
from headway.integrations import transformers as of_transformers
from headway.integrations.accelerate import guard as guard_over

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers:UserWarning"),
    pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec.. is dep:FutureWarning"),
]
HERE = Path(__file__)
recipes = pytest.mark.parametrize(
    ("how", "accumulation"),
    all_but(
        [(how, count) for how in ("model", "step", "bf16") for count in (1, 2)],
        *[("model", 1), ("step", 2), ("bf16", 2)],
    ),
)


def per_word(answer: Tensor, label: Tensor, words: Tensor) -> Tensor:
    losses = nll_loss(answer, label, reduction="none")
    return (losses / words).mean()  # in the step


# The Hugging Face Trainer.


class Own(Trainer):
    """Samples in order; a loss of the user's own, which logs and counts."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.counted = 0
        self.history: dict[str, list[float]] = {"loss": []}

    def _get_train_sampler(self, *args: Any) -> Any:
        return None

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        target, words = inputs.pop("target"), inputs.pop("words")
        loss = per_word(model(**inputs), target, words)
        self.counted += 1
        self.history["loss"].append(float(loss.detach()))
        if self.counted % 5 == 3:
            self.log({"aside": float(loss.detach())})
        return loss


class Noting(TrainerCallback):
    """Every event, with what a callback can see of it."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def on_event(self, name: str, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        schedule = kwargs.get("lr_scheduler")
        rate = None if schedule is None else schedule.get_last_lr()
        self.seen.append((name, state.global_step, state.epoch, rate))


for _name in ("step_begin", "step_end", "substep_end", "log", "epoch_end", "pre_optimizer_step"):
    setattr(
        Noting,
        f"on_{_name}",
        lambda self, args, state, control, _name=_name, **kwargs: self.on_event(
            _name, args, state, control, **kwargs
        ),
    )


def trained_by_hf(folder: Path, how: str, accumulation: int, **policy: Any) -> Any:
    torch.manual_seed(0)
    callback, noting = of_transformers.HeadwayCallback(policy=Policy(**policy)), Noting()
    trainer = Own(
        model=Shares(),
        args=TrainingArguments(
            output_dir=str(folder),
            use_cpu=True,
            bf16=how == "bf16",
            per_device_train_batch_size=BATCH,
            gradient_accumulation_steps=accumulation,
            max_steps=STEPS,
            learning_rate=1e-2,
            logging_steps=1,
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
            remove_unused_columns=False,
        ),
        train_dataset=Samples(how, accumulation),
        callbacks=[callback, noting],
    )
    trainer.train()
    told = (noting.seen, logged(trainer), trainer.history, trainer.counted)
    return callback.guard, told, state_of(trainer.model, trainer.optimizer.optimizer)


@recipes
@pytest.mark.slow
def test_the_hugging_face_trainer(how: str, accumulation: int, tmp_path: Path) -> None:
    guard, told, state = trained_by_hf(tmp_path / "looked", how, accumulation)
    assert_explained(guard, how, HERE)
    _, merely, untouched = trained_by_hf(tmp_path / "skipped", how, accumulation, replay=False)
    assert repr(told) == repr(merely)
    assert_same(untouched, state)


# Lightning.


class Module(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.shares = Shares()
        self.history: list[float] = []

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        answer = self.shares(batch["x"], batch["present"], batch["exponent"])
        loss = per_word(answer, batch["target"], batch["words"])
        self.history.append(float(loss.detach()))
        self.log("train_loss", loss, on_step=True, on_epoch=True)
        return loss

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 2 * STEPS)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": schedule, "interval": "step"},
        }


class ByHand(Module):
    """Manual optimization."""

    automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        optimizer = self.optimizers()
        loss = super().training_step(batch, batch_idx)
        optimizer.zero_grad()
        self.manual_backward(loss)
        optimizer.step()
        self.lr_schedulers().step()
        return loss


class Watching(pl.Callback):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *args: Any) -> None:
        rates = [config.scheduler.get_last_lr() for config in trainer.lr_scheduler_configs]
        metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
        self.seen.append((trainer.global_step, rates, metrics))

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        self.seen.append("before_optimizer_step")

    def on_after_backward(self, trainer: Any, pl_module: Any) -> None:
        self.seen.append("after_backward")


def fitted(module: Module, how: str, accumulation: int, **policy: Any) -> Any:
    torch.manual_seed(0)
    callback = of_lightning.HeadwayCallback(policy=Policy(**policy))
    watching = Watching()
    trainer = pl.Trainer(
        max_epochs=1,
        accelerator="cpu",
        logger=False,
        precision="bf16-mixed" if how == "bf16" else "32-true",
        accumulate_grad_batches=accumulation,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        log_every_n_steps=1,
        callbacks=[callback, watching],
    )
    data = torch.utils.data.DataLoader(Samples(how, accumulation), batch_size=BATCH)
    trainer.fit(module, data)
    told = (watching.seen, trainer.global_step, module.history)
    return callback.guard, told, state_of(module, trainer.optimizers[0])


@recipes
def test_lightning(how: str, accumulation: int) -> None:
    guard, told, state = fitted(Module(), how, accumulation)
    assert_explained(guard, how, HERE)
    _, merely, untouched = fitted(Module(), how, accumulation, replay=False)
    assert repr(told) == repr(merely)
    assert_same(untouched, state)


def test_lightning_by_hand() -> None:
    guard, told, state = fitted(ByHand(), "model", 1)
    assert_explained(guard, "model", HERE)
    _, merely, untouched = fitted(ByHand(), "model", 1, replay=False)
    assert repr(told) == repr(merely)
    assert_same(untouched, state)


class TwoByHand(pl.LightningModule):
    """`level` rises by a quarter at every step; `gain` is trained with the logarithm of what is
    left to it below a batch's bar, which at one step is nothing."""

    automatic_optimization = False

    def __init__(self, order: str) -> None:
        super().__init__()
        self.order = order
        self.level = nn.Parameter(torch.zeros(1))
        self.gain = nn.Parameter(torch.ones(1))

    def training_step(self, batch: Tensor, batch_idx: int) -> None:
        for name in self.order.split():
            optimizer = self.optimizers()[name == "level"]
            optimizer.zero_grad()
            self.manual_backward(self.loss_of(name, batch))
            optimizer.step()

    def loss_of(self, name: str, bar: Tensor) -> Tensor:
        if name == "level":
            return -self.level.sum()
        return (self.gain * torch.log(self.level.detach() - bar)).mean()

    def configure_optimizers(self) -> Any:
        return [torch.optim.SGD([self.gain], lr=1e-3), torch.optim.SGD([self.level], lr=0.25)]


@pytest.mark.parametrize(
    ("order", "nature"), [("gain level", "unknown"), ("level gain", "deterministic")]
)
def test_another_optimizer_has_moved_on(order: str, nature: str) -> None:
    """Where its weights decide whether the step fails, that it goes well now tells nothing."""
    callback = of_lightning.HeadwayCallback()
    trainer = pl.Trainer(
        max_epochs=1,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        callbacks=[callback],
    )
    bars = torch.full((12, 1), -10.0)
    bars[7] = 0.25 * (7 + (order == "level gain"))
    trainer.fit(TwoByHand(order), torch.utils.data.DataLoader(bars))
    assert trainer.global_step == 2 * len(bars)
    guard = callback.guard
    assert isinstance(guard, Guard)
    [found] = guard.explanations
    assert (found.step, found.nature) == (7, nature)
    if nature == "unknown":
        assert found.origins == found.trials == ()
        assert "other weights of the model were updated within the same step" in found.headline
    else:
        assert found.origin is not None
        assert found.origin.kind == "log-of-zero"


# Accelerate.


def accelerated(how: str, accumulation: int, **policy: Any) -> Any:
    for kind in (AcceleratorState, GradientState, PartialState):
        kind._reset_state()
    torch.manual_seed(0)
    accelerator = accelerate.Accelerator(
        cpu=True,
        gradient_accumulation_steps=accumulation,
        mixed_precision="bf16" if how == "bf16" else "no",
    )
    net = Shares()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 2 * STEPS)
    data = torch.utils.data.DataLoader(Samples(how, accumulation), batch_size=BATCH)
    net, optimizer, schedule, data = accelerator.prepare(net, optimizer, schedule, data)
    guard = guard_over(accelerator, net, optimizer, schedule, policy=Policy(**policy))
    told: list[Any] = []
    for batch in guard(data):
        with accelerator.accumulate(net):
            answer = net(batch["x"], batch["present"], batch["exponent"])
            loss = per_word(answer, batch["target"], batch["words"])
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        told.append((float(loss.detach()), schedule.get_last_lr(), accelerator.step))
    guard.close()
    return guard, told, state_of(net, optimizer.optimizer)


@recipes
def test_accelerate(how: str, accumulation: int) -> None:
    guard, told, state = accelerated(how, accumulation)
    assert_explained(guard, how, HERE)
    _, merely, untouched = accelerated(how, accumulation, replay=False)
    assert repr(told) == repr(merely)
    assert_same(untouched, state)
