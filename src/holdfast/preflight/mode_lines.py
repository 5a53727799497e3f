"""The lines that put modules into evaluation mode, set a dropout's rate, and make batch norms.

Heard for as long as a script is watched; nothing about the modules changes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any
from weakref import WeakKeyDictionary

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.modules.dropout import _DropoutNd

from holdfast.live.told_after import told_after
from holdfast.preflight.scene import Scene
from holdfast.torch_tools.places import is_machinery

Line = dict[str, Any] | None


class ModeLines:
    """Remembers them by the module they were about."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._silenced: WeakKeyDictionary[nn.Module, Line] = WeakKeyDictionary()
        self._rates: WeakKeyDictionary[nn.Module, Line] = WeakKeyDictionary()
        self._norms: WeakKeyDictionary[nn.Module, Line] = WeakKeyDictionary()
        enter = scene.undo.enter_context
        enter(told_after(nn.Module, "train", self._mode_set))
        enter(told_after(_NormBase, "__init__", self._norm_made))
        scene.undo.callback(_hear_rates(self._rate_set))

    def turned_off(self, root: nn.Module, dropouts: Iterable[nn.Module]) -> Line:
        """Who set the rate of one of these dropouts, or put the module into evaluation mode."""
        for layer in dropouts:
            if layer in self._rates:
                return self._rates[layer]
        return None if root.training else self._silenced.get(root)

    def made_at(self, norms: Iterable[nn.Module]) -> Line:
        """Where the first of these batch norms was made."""
        return next((self._norms[layer] for layer in norms if layer in self._norms), None)

    def _mode_set(self, module: nn.Module, args: Any, result: Any) -> None:
        # `train` goes down to every submodule, and `eval` calls it: one of them is the user's.
        caller = sys._getframe(2).f_code
        if (
            args
            and not args[0]
            and (caller.co_name == "eval" or not is_machinery(caller.co_filename))
        ):
            self._silenced[module] = self._scene.place()

    def _norm_made(self, module: nn.Module, args: Any, result: Any) -> None:
        if isinstance(module, _BatchNorm) and (
            not module.track_running_stats or module.momentum == 0
        ):
            self._norms[module] = self._scene.place()

    def _rate_set(self, layer: nn.Module) -> None:
        self._rates[layer] = self._scene.place()


def _hear_rates(told: Callable[[nn.Module], None]) -> Callable[[], None]:
    """Be told of every later change of a dropout's rate; gives what ends it."""
    original = _DropoutNd.__dict__.get("__setattr__")
    plain = _DropoutNd.__setattr__

    def telling(self: Any, name: str, value: Any) -> None:
        known = name == "p" and name in self.__dict__
        plain(self, name, value)
        if known:
            told(self)

    def undo() -> None:
        if _DropoutNd.__dict__.get("__setattr__") is telling:
            if original is None:
                del _DropoutNd.__setattr__
            else:
                _DropoutNd.__setattr__ = original  # type: ignore[method-assign]

    _DropoutNd.__setattr__ = telling  # type: ignore[method-assign]
    return undo
