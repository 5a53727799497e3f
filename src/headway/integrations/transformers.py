"""The guard in a Hugging Face `Trainer`, and the loss that the Trainer should have logged.

    trainer = Trainer(..., callbacks=[HeadwayCallback(run_dir="runs/first")])

The Trainer passes neither the loss nor the batches of a step to a callback, nor itself. So the
callback finds the Trainer that calls it and wraps three methods of that one object: `training_step`
(batches and losses), `get_batch_samples` (the time they took) and `train` (an exception that ends
the run).
"""

from __future__ import annotations

from headway.integrations import _needs_torch  # noqa: F401

# isort: split

import functools
import itertools
import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

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
from headway.integrations.accelerate import torch_optimizer
from headway.policy import Action
from headway.rerun import in_script
from headway.torch_adapters.frames import current_frame, walk_callers

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


# The Trainer logs a mean over several steps, and a NaN makes it wrong in one of two ways. With
# `logging_nan_inf_filter` (the default) it is dropped: a window of nothing but NaN is logged as 0.
# Without, it stays in the running sum: every later loss is logged as NaN, although the guard
# skipped that one update and the run is healthy.


class LossLogCorrection:
    """The losses since the last log; non-finite ones are counted separately."""

    def __init__(self) -> None:
        self._total: Tensor | None = None
        self._good: Tensor | None = None
        self._seen = 0
        self._steps = 0

    def add(self, loss: Tensor) -> None:
        """Add the loss of a micro-batch, without a device synchronization."""
        finite = torch.isfinite(loss)
        value = torch.where(finite, loss, 0.0)
        self._total = value if self._total is None else self._total + value
        self._good = finite.long() if self._good is None else self._good + finite
        self._seen += 1

    def stepped(self) -> None:
        """The micro-batches of a step are complete."""
        self._steps += 1

    def correct(self, logged: float, *, filtered: bool) -> float:
        """The correct mean of these losses: `logged` itself if it is right.

        `filtered`: the Trainer leaves non-finite losses out (`logging_nan_inf_filter`).
        """
        total, good, seen, steps = self._total, self._good, self._seen, self._steps
        if total is None or good is None or not steps:
            return logged
        left = int(good)
        if left == seen:
            return logged if math.isfinite(logged) else float(total) / steps
        if not filtered or left == 0:
            return math.nan
        return float(total) / left * seen / steps


_transformers = import_framework("transformers", extra="transformers")
TrainerCallback: Any = _transformers.TrainerCallback


class HeadwayCallback(TrainerCallback):
    """Guards the runs of a Trainer; `options` are those of `headway.Guard`.

    `callback.guard` is the guard of the current or last run; its findings and actions stay.
    """

    guard: Guard | deepspeed.Watch | None = None

    def __init__(self, run_dir: str | Path | None = None, **options: Any) -> None:
        self._options = {"run_dir": run_dir, **options}
        self._trainer: Any = None
        self._losses = LossLogCorrection()
        self._factor = 1.0
        self._waited: float | None = None
        self._recount: Callable[[Sequence[Any]], Any] | None = None
        self._last_logged: Action | None = None

    def close(self) -> None:
        """Stop watching."""
        if self.guard is not None:
            close_guard(self.guard)

    # Called by the Trainer.

    def on_init_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._attach()

    def on_train_begin(
        self,
        args: Any,
        state: Any,
        control: Any,
        model: Any = None,
        optimizer: Any = None,
        lr_scheduler: Any = None,
        **kwargs: Any,
    ) -> None:
        self.close()
        self._attach()
        self._losses, self._waited, self._last_logged = LossLogCorrection(), None, None
        engine = deepspeed.engine_in(getattr(self._trainer, "model_wrapped", None))
        if engine is not None:
            self.guard = deepspeed.watch(engine, **self._options)
        else:
            options = {
                "scheduler": lr_scheduler,
                "scaler": getattr(optimizer, "scaler", None),
                **self._options,
            }
            self.guard = open_guard(model, [torch_optimizer(optimizer)], options)
        if self.guard is not None:
            # Under `headway run` the steps of an earlier training are counted already.
            before = self.guard.step if isinstance(self.guard, Guard) else 0
            self.guard.count_from(max(before, state.global_step))

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._factor = getattr(self.guard, "rate_factor", 1.0)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._losses.stepped()
        if self.guard is not None:
            self.guard.step_done()

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if self.guard is None or not logs or "loss" not in logs:
            return
        losses, self._losses = self._losses, LossLogCorrection()
        true: dict[str, float] = {
            "loss": losses.correct(logs["loss"], filtered=args.logging_nan_inf_filter)
        }
        if "learning_rate" in logs:
            true["learning_rate"] = logs["learning_rate"] * self._factor
        held = self._held_since_last_log()
        if held:
            true["headway_skipped"] = held
        logs.update(true)
        if state.log_history:
            state.log_history[-1].update(true)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.close()

    def _held_since_last_log(self) -> int:
        actions = self.guard.actions if self.guard is not None else []
        new = list(
            itertools.takewhile(lambda action: action is not self._last_logged, reversed(actions))
        )
        if new:
            self._last_logged = new[0]
        return len(new)

    # Methods of the Trainer that the callback wraps.

    def _attach(self) -> None:
        """Find the Trainer, become its first callback, and wrap its methods."""
        trainer = _trainer_calling(self)
        if trainer is None or trainer is self._trainer:
            return
        self._trainer = trainer
        # First, so that logs are corrected before TensorBoard and others receive them.
        callbacks = trainer.callback_handler.callbacks
        callbacks.remove(self)
        callbacks.insert(0, self)
        for name, wrap in (
            ("train", self._around_train),
            ("training_step", self._around_training_step),
            ("get_batch_samples", self._around_get_batch_samples),
        ):
            original = getattr(trainer, name, None)
            if original is not None:
                setattr(trainer, name, functools.wraps(original)(wrap(original)))

    def _around_train(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def train(*args: Any, **kwargs: Any) -> Any:
            try:
                return original(*args, **kwargs)
            except BaseException as error:
                if self.guard is not None:
                    close_guard(self.guard, error)
                raise

        return train

    def _around_training_step(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def training_step(model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            waited, self._waited = self._waited, None
            if isinstance(self.guard, Guard):
                if in_script.is_requested():
                    prepare = functools.partial(
                        self._prepare_captured, original, model, args, kwargs
                    )
                    in_script.rerun_step(self.guard, inputs, prepare)
                state = self._trainer.state
                progress = {"global_step": state.global_step, "epoch": state.epoch}
                run = functools.partial(self._run_again, original, model, args, kwargs, progress)
                self.guard.saw_batch(inputs, waited, run=self._again(run))
            elif self.guard is not None:
                self.guard.saw_batch(inputs, waited)
            loss = original(model, inputs, *args, **kwargs)
            self._losses.add(loss.detach())
            return loss

        return training_step

    def _run_again(
        self,
        step: Callable[..., Any],
        model: Any,
        args: Any,
        kwargs: Any,
        progress: dict[str, Any],
        inputs: Any,
    ) -> None:
        """Run forward and backward again over these inputs, without logging.

        `progress`: the step's number as the step itself saw it, because a loss may depend on it.
        """
        trainer = self._trainer
        with (
            replace_attributes(trainer, log=do_nothing),
            replace_attributes(trainer.state, **progress),
        ):
            step(model, inputs, *args, **kwargs)

    def _again(self, run: Callable[[Any], Any]) -> BatchRerun:
        return BatchRerun(run, self._trainer, sources=(self._trainer,))

    def _prepare_captured(
        self, step: Callable[..., Any], model: Any, args: Any, kwargs: Any, batches: Sequence[Any]
    ) -> Callable[[Any], Any]:
        """How a captured step is run: its loss is divided by the number of its own items."""
        if args and args[0] is not None and self._recount is not None:
            args = (self._recount(batches), *args[1:])
        progress = {"global_step": in_script.captured_step()}
        return functools.partial(self._run_again, step, model, args, kwargs, progress)

    def _around_get_batch_samples(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def get_batch_samples(*args: Any, **kwargs: Any) -> Any:
            self._recount = lambda batches: original(
                iter(batches), len(batches), *args[2:], **kwargs
            )[1]
            begun = time.perf_counter()
            samples = original(*args, **kwargs)
            self._waited = time.perf_counter() - begun
            return samples

        return get_batch_samples


def _trainer_calling(callback: HeadwayCallback) -> Any:
    """The Trainer on the stack that has this callback; None: something else calls it."""
    for frame in walk_callers(current_frame(2)):
        owner = frame.f_locals.get("self")
        if isinstance(owner, _transformers.Trainer):
            return owner if callback in owner.callback_handler.callbacks else None
    return None
