"""Adds the callback of a framework to the Trainers of a script that headway runs.

The Trainer of transformers or Lightning has the training loop, so only its callback knows which
batch belongs to a step, when the step is over, and how to run it again. A Trainer that already has
a `HeadwayCallback` keeps it.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from contextlib import ExitStack
from types import ModuleType
from typing import Any

from headway.output.notices import logger
from headway.torch_adapters.import_watch import after_import
from headway.torch_adapters.patching import wrap_function

TRAINERS = {
    "transformers.trainer": ("train", "transformers"),
    "lightning.pytorch.trainer.trainer": ("fit", "lightning"),
    "pytorch_lightning.trainer.trainer": ("fit", "lightning"),
}
"""Modules that define a `Trainer`: the method that trains, and the adapter with the callback."""


def run_with_callbacks(work: Callable[[], Any]) -> Any:
    """Run a script; its Trainers get a `HeadwayCallback` when they begin to train."""
    with ExitStack() as stack:
        for name, (method, adapter) in TRAINERS.items():
            patch = functools.partial(_patch_trainer, stack, method, adapter)
            stack.enter_context(after_import(name, patch))
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


def _add_callback(trainer: Any, adapter: str) -> None:
    kind = importlib.import_module(f"headway.integrations.{adapter}").HeadwayCallback
    handler = getattr(trainer, "callback_handler", trainer)  # transformers keeps them apart
    if not any(isinstance(callback, kind) for callback in handler.callbacks):
        handler.callbacks.insert(0, kind())
