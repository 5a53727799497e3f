"""Adds the callback of a framework to the Trainers of a script that headway runs, and a check to
optimizers that are no torch optimizers.

The Trainer of transformers or Lightning has the training loop, so only its callback knows which
batch belongs to a step, when the step is over, and how to run it again. A Trainer that already has
a `HeadwayCallback` keeps it. The optimizers of fastai and Keras have no hooks: the method that
updates the weights is wrapped, and does nothing where the gradients are not finite.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from contextlib import ExitStack
from types import ModuleType
from typing import Any

from torch import Tensor

from headway.guard.script.launcher import active_launcher
from headway.output.notices import logger
from headway.torch_adapters.import_watch import after_import
from headway.torch_adapters.patching import wrap_function

TRAINERS = {
    "transformers.trainer": ("train", "transformers"),
    "lightning.pytorch.trainer.trainer": ("fit", "lightning"),
    "pytorch_lightning.trainer.trainer": ("fit", "lightning"),
}
"""Modules that define a `Trainer`: the method that trains, and the adapter with the callback."""


def _fastai_gradients(optimizer: Any, *args: Any) -> list[Tensor]:
    return [item[0].grad for item in optimizer.all_params(with_grad=True)]


def _keras_gradients(optimizer: Any, gradients: Any = (), *args: Any) -> list[Tensor]:
    return [item for item in gradients if isinstance(item, Tensor)]


OPTIMIZERS: dict[str, tuple[str, str, Callable[..., list[Tensor]]]] = {
    "fastai.optimizer": ("Optimizer", "step", _fastai_gradients),
    "keras.src.optimizers.base_optimizer": ("BaseOptimizer", "apply", _keras_gradients),
}
"""Modules that define an optimizer that is no torch optimizer: the class, the method that updates
the weights, and the gradients that a call of it applies."""


def run_with_callbacks(work: Callable[[], Any]) -> Any:
    """Run a script; its Trainers get a `HeadwayCallback` when they begin to train, and optimizers
    of other packages ask the launcher before they update the weights."""
    with ExitStack() as stack:
        for name, (method, adapter) in TRAINERS.items():
            patch = functools.partial(_patch_trainer, stack, method, adapter)
            stack.enter_context(after_import(name, patch))
        for name, about in OPTIMIZERS.items():
            stack.enter_context(
                after_import(name, functools.partial(_patch_optimizer, stack, *about))
            )
        return work()


def _patch_trainer(stack: ExitStack, method: str, adapter: str, module: ModuleType) -> None:
    def wrap(original: Any) -> Any:
        @functools.wraps(original)
        def train(trainer: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                _add_callback(trainer, adapter)
            except Exception:  # a version that differs: the script runs without the callback
                logger.debug("no callback was added", exc_info=True)
            return original(trainer, *args, **kwargs)

        return train

    stack.callback(wrap_function(module.Trainer, method, wrap))


def _patch_optimizer(
    stack: ExitStack,
    kind: str,
    method: str,
    gradients: Callable[..., list[Tensor]],
    module: ModuleType,
) -> None:
    def wrap(original: Any) -> Any:
        @functools.wraps(original)
        def update(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            launch = active_launcher()
            if launch is not None:
                try:
                    given = gradients(optimizer, *args)
                except Exception:  # a version that differs: its updates are not checked
                    logger.debug("the gradients are not known", exc_info=True)
                    given = []
                if launch.skips_update(given):
                    return None
            return original(optimizer, *args, **kwargs)

        return update

    stack.callback(wrap_function(getattr(module, kind, None), method, wrap))


def _add_callback(trainer: Any, adapter: str) -> None:
    kind = importlib.import_module(f"headway.integrations.{adapter}").HeadwayCallback
    handler = getattr(trainer, "callback_handler", trainer)  # transformers keeps them apart
    if not any(isinstance(callback, kind) for callback in handler.callbacks):
        handler.callbacks.insert(0, kind())
