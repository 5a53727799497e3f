"""What every observer may ask: which step it is, what things are called, which line is running."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from types import CodeType, FrameType
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from headway.live.launch import Launch
from headway.preflight.origins import Origins
from headway.torch_tools.places import is_installed, is_machinery
from headway.torch_tools.users_names import users_path


class Scene:
    """The script that runs, seen from outside."""

    def __init__(self, launch: Launch, *, overfit: bool = False) -> None:
        self.launch = launch
        self.overfit = overfit
        """Whether somebody wants to know if one batch can be learned by heart."""
        self.stack: list[nn.Module] = []
        """The modules whose forward runs now, the outermost first."""
        self.undo = ExitStack()
        """What an observer has changed in torch is put back through this at the end."""
        self.origins = Origins(self.place, self.undo)
        """Where modules and weights were made."""
        self._machinery: dict[CodeType, bool] = {}
        """Whether a code object is torch's, Python's or ours: stacks are walked all the time."""
        self._paths: dict[int, str] = {}
        self._parameters: dict[int, str] = {}
        launch.on_guard.append(lambda _: self._forget_names())

    @property
    def step(self) -> int:
        """The step being made, counted from 0."""
        return self.launch.step

    @property
    def models(self) -> Sequence[nn.Module]:
        """The outermost modules that train; empty before the first backward pass."""
        return () if self.launch.guard is None else self.launch.guard.models

    @property
    def optimizers(self) -> Sequence[Optimizer]:
        """Every optimizer there is; empty before the first backward pass."""
        return () if self.launch.guard is None else self.launch.guard.optimizers

    def path_of(self, module: nn.Module) -> str:
        """A module's path in its model: `encoder.layers.0`; its class where it has none."""
        if not self._paths:
            self._learn_names()
        return self._paths.get(id(module)) or type(module).__name__

    def name_of(self, parameter: Tensor) -> str | None:
        """A parameter's name in its model."""
        if not self._parameters:
            self._learn_names()
        return self._parameters.get(id(parameter))

    def place(self) -> dict[str, Any] | None:
        """The user's line that runs now, as facts carry it; a framework's where there is none."""
        foreign: FrameType | None = None
        for frame in self.frames():
            if not is_installed(frame.f_code.co_filename):
                return _facts(frame)
            foreign = foreign or frame
        return None if foreign is None else _facts(foreign)

    def users_own_call(self) -> bool:
        """Whether the user's own line made the call that runs now, not a framework's."""
        frame = next(self.frames(), None)
        return frame is not None and not is_installed(frame.f_code.co_filename)

    def frames(self) -> Iterator[FrameType]:
        """The frames that run now, innermost first, without torch's, Python's and ours."""
        frame: FrameType | None = sys._getframe(1)
        machinery = self._machinery
        while frame is not None:
            code = frame.f_code
            ours = machinery.get(code)
            if ours is None:
                ours = machinery[code] = is_machinery(code.co_filename)
            if not ours:
                yield frame
            frame = frame.f_back

    def _forget_names(self) -> None:
        self._paths.clear()
        self._parameters.clear()

    def _learn_names(self) -> None:
        many = len(self.models) > 1
        for number, model in enumerate(self.models):
            prefix = f"model{number}." if many else ""
            for path, module in model.named_modules():
                self._paths.setdefault(id(module), prefix + users_path(path))
            for path, parameter in model.named_parameters():
                self._parameters.setdefault(id(parameter), prefix + users_path(path))


def _facts(frame: FrameType) -> dict[str, Any]:
    code = frame.f_code
    return {"file": code.co_filename, "line": frame.f_lineno, "function": code.co_name}
