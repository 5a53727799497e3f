"""Graphs that a model's forward makes and no backward pass ever sees.

A guard watches the graphs of the losses that are sent backward. A model that is run on the side, to
look at its outputs, makes graphs too, and they are kept with whatever is kept of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from headway.preflight.observer import Observer
from headway.torch_tools.nested import tensors_in


class KeptGraphs(Observer):
    """Shows the outputs of the outermost modules to the guard's watch over kept graphs."""

    def module_ended(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any
    ) -> None:
        guard = self.scene.launch.guard
        if guard is not None and torch.is_grad_enabled():
            session = guard.session
            session.retention.forward_ended(session.steps, [t for _, t in tensors_in(output)])
