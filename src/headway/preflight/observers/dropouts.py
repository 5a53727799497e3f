"""How much every dropout of the training forward throws away."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import ref

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headway.preflight.call_sites import Site, Sites
from headway.preflight.observer import Call, Observer
from headway.preflight.spellings import spellings

LOOKS = 3
"""Steps that are looked at, and one in so many later ones."""
EVERY = 25


PLAIN = spellings(
    *("dropout", "dropout_", "dropout1d", "dropout2d", "dropout3d", "feature_dropout"),
    *("alpha_dropout", "feature_alpha_dropout"),
)
FUSED = spellings("scaled_dot_product_attention")
WHOLE = (F.multi_head_attention_forward,)
RECURRENT = spellings("lstm", "gru", "rnn_tanh", "rnn_relu")


class Dropouts(Observer):
    """Tells of each dropout and of the share that is kept after it (topic `dropout`)."""

    functions = (*PLAIN, *FUSED, *WHOLE, *RECURRENT)

    def start(self) -> None:
        self._sites = Sites(self.scene)
        self._pending: list[tuple[Site, float, float]] = []
        self._kept: dict[int, tuple[ref[Any], float]] = {}
        """Tensors that came out of a dropout, and the share of their input that is left."""
        self._told: dict[tuple[Any, ...], float] = {}

    def function_ended(self, call: Call) -> None:
        step = self.scene.step
        if not torch.is_grad_enabled() or (step >= LOOKS and step % EVERY):
            return
        result = call.result[0] if isinstance(call.result, tuple) else call.result
        if not isinstance(result, Tensor) or not result.requires_grad:
            return
        p, training = self._rate(call)
        if not isinstance(p, (int, float)) or not training or p <= 0:
            return
        left = 1.0 - float(p)
        if call.function in PLAIN:
            given = call.argument(0, "input")
            known = self._kept.get(id(given))
            left *= known[1] if known is not None and known[0]() is given else 1.0
            self._kept[id(result)] = (ref(result), left)
        site = self._sites.here()
        if site is not None:
            self._pending.append((site, float(p), left))

    def _rate(self, call: Call) -> tuple[Any, Any]:
        """(what it drops, whether it does)."""
        if call.function in FUSED:
            return call.argument(4, "dropout_p", 0.0), True
        if call.function in WHOLE:
            return call.argument(10, "dropout_p", 0.0), call.argument(13, "training", True)
        if call.function in RECURRENT:
            module = self.scene.stack[-1] if self.scene.stack else None
            if not isinstance(module, nn.RNNBase) or module.num_layers < 2:
                return 0.0, False
            return module.dropout, module.training
        rate = call.argument(1, "p", 0.5)
        return rate, call.argument(2, "training", call.function in _ALWAYS)

    def backward_begins(self, roots: Sequence[Tensor]) -> None:
        for site, p, left in self._pending:
            if self._told.get(site.key, 1.0) > left:
                self._told[site.key] = left
                facts = {"member": site.name(self.scene), "p": p, "kept": left, "place": site.place}
                self.evidence.tell("dropout", facts)
        self._forget()

    def step_ended(self, optimizer: Any) -> None:
        self._forget()

    def _forget(self) -> None:
        self._pending.clear()
        self._kept.clear()
        self._sites.restart()


_ALWAYS = {F.dropout, F.dropout1d, F.dropout2d, F.dropout3d}
"""Those that are in training mode unless told otherwise."""
