"""Numbers that are not finite in what a model or a loss is given, where they come out again.

A guard looks through the batches of a loader after a bad step. A loop that makes its own batches
has none, so what goes into the model is looked at here, at the moment it does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn

from headway.live.scan import BadTensor, scan_batch
from headway.preflight.forwards import trains
from headway.preflight.observer import Call, Observer
from headway.preflight.spellings import spellings
from headway.torch_tools.nested import tensors_in

LOSSES = spellings(
    *("cross_entropy", "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "kl_div"),
    *("binary_cross_entropy", "binary_cross_entropy_with_logits", "poisson_nll_loss"),
)
MOST = 8
"""Findings of this kind are alike: the first few will do."""
MADE = 32
"""Outputs that are known again: what a model made is no data."""


class NonfiniteInputs(Observer):
    """Records tensors of the role `input`, at the step they came in."""

    functions = LOSSES

    def start(self) -> None:
        self._left = MOST
        self._waiting: list[tuple[int, BadTensor, dict[str, Any] | None]] = []
        self._made: list[ref[Any]] = []

    def module_ended(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any
    ) -> None:
        outputs = [tensor for _, tensor in tensors_in(output)]
        if self._left > 0 and trains(module, output) and _has_bad(outputs):
            given = [item for _, item in tensors_in((args, dict(kwargs))) if self._is_data(item)]
            self._look(tuple(given))
        if next(module.parameters(), None) is not None:
            self._made = [*self._made, *(ref(item) for item in outputs)][-MADE:]

    def function_ended(self, call: Call) -> None:
        result, target = call.result, call.argument(1, "target")
        if self._left <= 0 or not isinstance(result, Tensor) or not result.requires_grad:
            return
        given = call.argument(0, "input")
        # A target is to blame only for what it made itself.
        if not isinstance(target, Tensor) or not isinstance(given, Tensor) or _has_bad([given]):
            return
        if self._is_data(target) and _has_bad([result]):
            self._look({"target": target})

    def _is_data(self, tensor: Tensor) -> bool:
        if tensor.requires_grad or not tensor.is_floating_point():
            return False
        return not any(made() is tensor for made in self._made)

    def _look(self, given: Any) -> None:
        for bad in scan_batch(given):
            self._left -= 1
            self._waiting.append((self.scene.step, bad, self.scene.place()))

    def step_begins(self, optimizer: Any) -> None:
        self._record()

    def finished(self) -> None:
        self._record()

    def _record(self) -> None:
        """There is a recorder from the first backward on."""
        recorder = self.scene.launch.recorder
        if recorder is None or not self._waiting:
            return
        waiting, self._waiting = self._waiting, []
        for step, bad, place in waiting:
            recorder.tensor(
                step,
                bad.name,
                bad.role,
                dtype=str(bad.tensor.dtype).removeprefix("torch."),
                shape=tuple(bad.tensor.shape),
                stats=bad.stats,
                facts={**bad.facts, "place": place},
            )


def _has_bad(tensors: list[Tensor]) -> bool:
    with torch.no_grad():
        return any(
            item.is_floating_point()
            and item.layout is torch.strided
            and item.numel() > 0
            and not bool(torch.isfinite(item).all())
            for item in tensors
        )
