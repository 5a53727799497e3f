"""Opens and closes guards for frameworks, runs their forward and backward again without side
effects, and imports them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.optim import Optimizer

from headway.errors import import_optional
from headway.guard.guard import Guard
from headway.guard.script.launcher import active_launcher
from headway.guard.script.script_guard import ScriptGuard
from headway.output.notices import Notices
from headway.rerun import in_script
from headway.torch_adapters.saved_state import ObjectSnapshot

if TYPE_CHECKING:
    from headway.integrations import deepspeed

MAX_DEPTH = 3
"""Nesting up to which objects are restored: `trainer.history["loss"]`."""


def open_guard(
    model: nn.Module, optimizers: Sequence[Optimizer], options: Mapping[str, Any]
) -> Guard | None:
    """A guard for the loop of a framework; under `headway run` and `check`, one that writes their
    record. None: none could be created there, which is reported at the end."""
    launch = None if in_script.is_requested() else active_launcher()
    if launch is None:
        return Guard(model, list(optimizers), **options)
    if options.get("run_dir") is not None:
        Notices().once(
            "callback-run-dir",
            f"run_dir={str(options['run_dir'])!r} is not used: `headway run` writes the record to "
            "its own run directory (--out DIR)",
        )
    given = {name: value for name, value in options.items() if name != "run_dir"}
    return launch.guard_framework([model], optimizers, **given)


def close_guard(guard: Guard | deepspeed.Watch, error: BaseException | None = None) -> None:
    """The loop of the framework is over, or `error` has ended it."""
    launch = active_launcher()
    if launch is not None and isinstance(guard, ScriptGuard):
        launch.framework_ended(guard)  # it sees the error where that leaves the script
    elif error is not None:
        guard.__exit__(type(error), error, error.__traceback__)
    else:
        guard.close()


class BatchRerun:
    """Runs one batch of a step again."""

    def __init__(
        self,
        run: Callable[[Any], Any],
        *owners: Any,
        sources: Sequence[Any] = (),
        finish: Callable[[Any], Any] | None = None,
    ) -> None:
        """`owners`: objects whose counters and lists are restored afterwards.

        `sources`: what may know the tokenizer of the batch: a loader, a trainer. `finish`: what the
        framework does to a batch of the loader before the step gets it.
        """
        self.sources = sources
        self.finish = finish
        self._run = run
        self._owners = owners

    def __call__(self, batch: Any) -> None:
        self._run(batch)

    def keep(self, trained: Sequence[nn.Module], *, tensors: bool) -> ObjectSnapshot:
        return ObjectSnapshot(self._owners, trained, tensors=tensors, deepest=MAX_DEPTH)


@contextmanager
def replace_attributes(owner: Any, **instead: Any) -> Iterator[None]:
    """Replaces attributes of an object temporarily."""
    before = {name: vars(owner)[name] for name in instead if name in vars(owner)}
    for name, value in instead.items():
        setattr(owner, name, value)
    try:
        yield
    finally:
        for name in instead:
            if name in before:
                setattr(owner, name, before[name])
            else:
                delattr(owner, name)


def do_nothing(*args: Any, **kwargs: Any) -> None:
    """Replaces a method that must have no effect."""


def import_framework(*names: str, extra: str) -> Any:
    """The first of these modules that is installed; `extra` installs the first."""
    return import_optional(*names, user=f"headway.integrations.{extra}", extra=extra)
