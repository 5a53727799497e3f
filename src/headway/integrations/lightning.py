"""The guard in Lightning, imported as `lightning` or as `pytorch_lightning`.

    trainer = Trainer(..., callbacks=[HeadwayCallback(run_dir="runs/first")])

Without a GradScaler Lightning runs forward, backward and clipping inside `optimizer.step(closure)`.
The guard calls the closure first and judges the gradients that it leaves, so every hook of the
module and its callbacks runs at its usual place. Automatic and manual optimization, accumulation
and several optimizers need nothing more.
"""

from __future__ import annotations

from headway.integrations import _needs_torch  # noqa: F401

# isort: split

import functools
import inspect
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch.optim import Optimizer

from headway.guard.guard import Guard
from headway.integrations import deepspeed
from headway.integrations._shared import (
    BatchRerun,
    close_guard,
    do_nothing,
    import_framework,
    open_guard,
    replace_attributes,
)
from headway.output.notices import Notices
from headway.torch_adapters.loaders.batch_fetching import before_lightning_transfer

NAMES = ("lightning.pytorch", "pytorch_lightning")
"""Two packages with separate classes; the one that is already imported is in use."""

_lightning = import_framework(
    *sorted(NAMES, key=lambda name: name not in sys.modules), extra="lightning"
)
Callback: Any = _lightning.Callback


class HeadwayCallback(Callback):
    """Guards the fits of a Trainer; `options` are those of `headway.Guard`.

    `callback.guard` is the guard of the current or last fit; its findings and actions stay.
    """

    guard: Guard | deepspeed.Watch | None = None

    def __init__(self, run_dir: str | Path | None = None, **options: Any) -> None:
        super().__init__()
        self._options = {"run_dir": run_dir, **options}
        self._held = 0

    def close(self) -> None:
        """Stop watching."""
        if self.guard is not None:
            close_guard(self.guard)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self.close()
        self._held = 0
        self.guard = self._open(trainer, pl_module)
        if self.guard is not None:
            # `global_step` counts the steps of every optimizer.
            steps = trainer.global_step // max(len(trainer.optimizers), 1)
            # Under `headway run` the steps of an earlier fit are counted already.
            before = self.guard.step if isinstance(self.guard, Guard) else 0
            self.guard.count_from(max(before, steps))
            _correct_rate_monitors(self.guard, trainer)

    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int, *args: Any
    ) -> None:
        if isinstance(self.guard, Guard):
            run = functools.partial(_run_again, trainer, pl_module, batch_idx)
            progress = trainer.fit_loop.epoch_loop.manual_optimization  # counts what it steps
            sources = (trainer.train_dataloader, pl_module)
            finish = functools.partial(_finish_batch, trainer)
            again = BatchRerun(run, progress, sources=sources, finish=finish)
            self.guard.saw_batch(batch, run=again)
        elif self.guard is not None:
            self.guard.saw_batch(batch)

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, *args: Any
    ) -> None:
        if self.guard is not None:
            self.guard.step_done()
            every = trainer.log_every_n_steps
            if every and trainer.global_step % every == 0:
                self._log_held(trainer)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        if self.guard is not None:
            self._log_held(trainer)
            self.close()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        if self.guard is not None:
            close_guard(self.guard, exception)

    def _open(self, trainer: Any, pl_module: Any) -> Guard | deepspeed.Watch | None:
        engine = deepspeed.engine_in(trainer.model)
        if engine is not None:
            return deepspeed.watch(engine, **self._options)
        optimizers = trainer.optimizers
        if not optimizers or not all(_has_hooks(item) for item in optimizers):
            Notices().once(
                "no-optimizer",
                "this fit has no torch optimizer: it runs without a guard",
            )
            return None
        schedulers = [config.scheduler for config in trainer.lr_scheduler_configs]
        options = {
            "scheduler": schedulers[0] if len(schedulers) == 1 else None,
            "scaler": getattr(trainer.precision_plugin, "scaler", None),
            **self._options,
        }
        return open_guard(pl_module, optimizers, options)

    def _log_held(self, trainer: Any) -> None:
        """Log the number of skipped updates, beside what the module logs."""
        held = len(self.guard.actions) if self.guard is not None else 0
        if held != self._held:
            self._held = held
            for logger in trainer.loggers:
                logger.log_metrics({"headway_skipped": held}, step=trainer.global_step)


def _finish_batch(trainer: Any, batch: Any) -> Any:
    """What the fit does to a batch of its loader, hooks of the module and the data included."""
    batch = trainer.precision_plugin.convert_input(batch)
    batch = before_lightning_transfer(trainer.lightning_module, batch)
    return trainer.strategy.batch_to_device(batch, dataloader_idx=0)


def _run_again(trainer: Any, pl_module: Any, batch_idx: int, batch: Any) -> None:
    """Run forward and backward again, without logging and callbacks."""
    takes = len(inspect.signature(pl_module.training_step).parameters)
    quiet = replace_attributes(pl_module, log=do_nothing, log_dict=do_nothing)
    with quiet, replace_attributes(trainer, callbacks=[]):
        output = trainer.strategy.training_step(*(batch, batch_idx)[: max(takes, 1)])
        if pl_module.automatic_optimization and output is not None:
            loss = output["loss"] if isinstance(output, Mapping) else output
            loss = loss / trainer.accumulate_grad_batches
            scaler = getattr(trainer.precision_plugin, "scaler", None)
            pl_module.backward(loss if scaler is None else scaler.scale(loss))


def _has_hooks(optimizer: Any) -> bool:
    """Whether it is a torch optimizer, and not Lightning's placeholder for none."""
    return isinstance(optimizer, Optimizer) and type(optimizer).__name__ != "_MockOptimizer"


def _correct_rate_monitors(guard: Guard | deepspeed.Watch, trainer: Any) -> None:
    """Make each `LearningRateMonitor` log the learning rate that is applied.

    A guard that backs off lowers the rate only while the optimizer steps; the monitor reads it
    before.
    """
    for callback in trainer.callbacks:
        if isinstance(callback, _lightning.callbacks.LearningRateMonitor):
            callback._extract_lr = functools.partial(_applied_rate, guard, callback)


def _applied_rate(
    guard: Guard | deepspeed.Watch, monitor: Any, group: dict[str, Any], name: str
) -> Any:
    rate = group["lr"] * getattr(guard, "rate_factor", 1.0)
    return type(monitor)._extract_lr(monitor, {**group, "lr": rate}, name)
