"""Runs an unmodified script with a tool inserted where a user would insert it.

The tool gets the model and the optimizer when the loop begins: at the first forward pass after an
optimizer was created. The model is the outermost module that contains the called one.
"""

from __future__ import annotations

import gc
import runpy
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from peer_tools.base import Alarm, CannotRun, Tool


class Enough(BaseException):
    """The steps are made."""


class Watched:
    """Inserts a tool into the script that runs in this process."""

    def __init__(self, tool: Tool, steps: int) -> None:
        self.tool, self.steps = tool, steps
        self.waiting: list[Optimizer] = []
        self.attached: list[tuple[Optimizer, nn.Module]] = []
        self.made: dict[int, int] = {}
        self._watch_optimizers()
        self._watch_calls()
        self._watch_backward()

    def _watch_optimizers(self) -> None:
        make = Optimizer.__init__

        def made(optimizer: Optimizer, *args: Any, **kwargs: Any) -> None:
            make(optimizer, *args, **kwargs)
            self.waiting.append(optimizer)

        def before(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
            if self.made.get(id(optimizer), 0) >= self.steps:
                raise Enough

        def after(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
            self.made[id(optimizer)] = self.made.get(id(optimizer), 0) + 1
            self.tool.stepped(optimizer)

        Optimizer.__init__ = made  # type: ignore[method-assign]
        register_optimizer_step_pre_hook(before)
        register_optimizer_step_post_hook(after)

    def _watch_calls(self) -> None:
        call: Callable[..., Any] = nn.Module.__call__

        def called(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if (
                self.waiting
                and torch.is_grad_enabled()
                and next(module.parameters(), None) is not None
            ):
                self._attach(module)
            return call(module, *args, **kwargs)

        nn.Module.__call__ = called  # type: ignore[method-assign]

    def _watch_backward(self) -> None:
        back: Callable[..., Any] = torch.Tensor.backward

        def backward(loss: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            if loss.numel() == 1:
                self.tool.lost(float(loss.detach()))
            return back(loss, *args, **kwargs)

        torch.Tensor.backward = backward  # type: ignore[method-assign]

    def _attach(self, called: nn.Module) -> None:
        model = outermost(called)
        held = {id(parameter) for parameter in model.parameters()}
        waiting, self.waiting = self.waiting, []
        for optimizer in waiting:
            own = {id(p) for group in optimizer.param_groups for p in group["params"]}
            if own & held or not _owned(own):
                self.attached.append((optimizer, model))
                self.tool.attach(model, optimizer)
            else:
                self.waiting.append(optimizer)  # another model's: its turn comes


def outermost(module: nn.Module) -> nn.Module:
    """The module that holds this one and is held by none."""
    above: dict[int, nn.Module] = {}
    for thing in gc.get_objects():
        if issubclass(type(thing), nn.Module):
            for child in thing.children():
                above.setdefault(id(child), thing)
    seen: set[int] = set()
    while id(module) in above and id(module) not in seen:
        seen.add(id(module))
        module = above[id(module)]
    return module


def _owned(parameters: set[int]) -> bool:
    """Whether any living module holds one of these."""
    return any(
        id(parameter) in parameters
        for thing in gc.get_objects()
        if issubclass(type(thing), nn.Module)
        for parameter in thing.parameters(recurse=False)
    )


def run(tool: Tool, script: str, steps: int, arguments: list[str]) -> list[Alarm]:
    """Run the script for a number of steps; returns the alarms of the tool."""
    with open(script, encoding="utf-8") as file:
        text = file.read()
    sys.argv = [script, *arguments]
    sys.path.insert(0, script.rpartition("/")[0])
    tool.begin(text)
    watched = Watched(tool, max(steps, tool.at_least))
    said: list[Alarm] = []
    try:
        runpy.run_path(script, run_name="__main__")
    except (Enough, SystemExit):
        pass
    except BaseException as error:
        verdict = tool.raised(error, script)
        if verdict is None:
            raise
        said = verdict
    if type(tool).attach is not Tool.attach and not watched.attached:
        raise CannotRun("no module and optimizer to hand over")
    return said + tool.alarms()
