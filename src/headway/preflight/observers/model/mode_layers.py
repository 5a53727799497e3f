"""Layers that behave differently in training and evaluation: their rates, and the lines that switch
them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import ref

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headway.engine import PLACES
from headway.preflight.observer import Observer, TorchCall
from headway.preflight.script_context import CallSite, CallSites, ScriptContext, observe_method
from headway.torch_adapters.compat import BatchNorm, Dropout, find_aliases
from headway.torch_adapters.patching import install_patch

# The layers of a model that do one thing in training and another in evaluation.

_RATES = ("p", "drop_prob", "drop_rate", "rate")
"""What hand-written dropouts call their rate."""


@dataclass(frozen=True, slots=True)
class ModeLayer:
    """A dropout or a batch norm."""

    layer: nn.Module
    path: str
    """Within the module it was looked for in."""
    owner: nn.Module
    """The innermost module around it that has parameters: what it regularises or normalises."""

    @property
    def is_norm(self) -> bool:
        return isinstance(self.layer, BatchNorm)

    @property
    def rate(self) -> float:
        """The share it drops; 0 for a norm."""
        return 0.0 if self.is_norm else dropout_rate(self.layer)


def find_mode_layers(root: nn.Module) -> list[ModeLayer]:
    """All of them within a module."""
    return list(_layers_within(root, "", root))


def _layers_within(module: nn.Module, path: str, owner: nn.Module) -> Iterator[ModeLayer]:
    if next(module.parameters(), None) is not None:
        owner = module
    if isinstance(module, BatchNorm) or _has_rate(module):
        yield ModeLayer(module, path or type(module).__name__, owner)
    for name, child in module.named_children():
        yield from _layers_within(child, f"{path}.{name}" if path else name, owner)


def dropout_rate(module: nn.Module) -> float:
    """The rate of a dropout of any class."""
    names = ("dropout",) if isinstance(module, (nn.MultiheadAttention, nn.RNNBase)) else _RATES
    for name in names:
        rate: Any = getattr(module, name, None)
        if isinstance(rate, (int, float)) and not isinstance(rate, bool):
            return float(rate)
    return 0.0


def _has_rate(module: nn.Module) -> bool:
    if isinstance(module, nn.RNNBase) and module.num_layers < 2:
        return False
    if isinstance(module, (Dropout, nn.MultiheadAttention, nn.RNNBase)):
        return True
    leaf = next(module.children(), None) is None and next(module.parameters(), None) is None
    return leaf and "drop" in type(module).__name__.lower() and dropout_rate(module) > 0


# The lines that switch layers off: `model.eval()`, and dropouts whose rate is set to 0.

MOST_SWITCHES = 16


class ModeSwitches:
    """Observes both, and keeps the last of them."""

    def __init__(self, script: ScriptContext) -> None:
        self.zeroed: dict[str, Any] | None = None
        """The line that set the rate of a dropout to 0 after it was something else."""
        self._script = script
        self._inside = 0
        self._evaluations: deque[tuple[ref[nn.Module], Any]] = deque(maxlen=MOST_SWITCHES)
        self._last: tuple[ref[nn.Module], bool, int, Any] | None = None
        """The last switch: of which module, to training or not, at which step, and its line."""
        observe_method(script, nn.Module, "train", before=self._begins, after=self._switched)
        self._hear_rates()

    def to_evaluation(self, root: nn.Module | None) -> dict[str, Any] | None:
        """The last line that put a model, or part of it, into evaluation mode."""
        for known, place in reversed(self._evaluations):
            module = known()
            if module is None:
                continue
            if root is None or _contains(module, root) or _contains(root, module):
                found: dict[str, Any] | None = place
                return found
        return None

    def to_training(self, root: nn.Module) -> dict[str, Any] | None:
        """The line that put a model into training mode, if that was after the last step."""
        if self._last is None:
            return None
        known, mode, step, place = self._last
        found: dict[str, Any] | None = place
        return found if mode and known() is root and step == self._script.step else None

    def _begins(self, *_: Any, **__: Any) -> None:
        self._inside += 1  # a model switches its parts

    def _switched(self, result: Any, module: nn.Module, mode: bool = True) -> None:
        self._inside -= 1
        if self._inside > 0:
            return
        self._inside, place = 0, self._script.place()
        self._last = (ref(module), mode, self._script.step, place)
        if not mode:
            self._evaluations.append((ref(module), place))

    def _hear_rates(self) -> None:
        def set_attribute(layer: nn.Module, name: str, value: Any) -> None:
            if name == "p" and value == 0 and vars(layer).get("p"):
                self.zeroed = self._script.place()
            nn.Module.__setattr__(layer, name, value)

        for kind in Dropout if isinstance(Dropout, tuple) else (Dropout,):
            if "__setattr__" not in vars(kind):  # else it is another library's
                self._script.undo.callback(install_patch(kind, "__setattr__", set_attribute))


def _contains(outer: nn.Module, inner: nn.Module) -> bool:
    return any(part is inner for part in outer.modules())


# How much every dropout of the training forward throws away.

DROPOUT_LOOKS = 3
"""Steps that are inspected, and the interval of later ones."""
DROPOUT_EVERY = 25


PLAIN = find_aliases(
    *("dropout", "dropout_", "dropout1d", "dropout2d", "dropout3d", "feature_dropout"),
    *("alpha_dropout", "feature_alpha_dropout"),
)
FUSED = find_aliases("scaled_dot_product_attention")
WHOLE = (F.multi_head_attention_forward,)
RECURRENT = find_aliases("lstm", "gru", "rnn_tanh", "rnn_relu")


class Dropouts(Observer):
    """Reports each dropout and the share that is kept after it (topic `dropout`)."""

    functions = (*PLAIN, *FUSED, *WHOLE, *RECURRENT)

    def start(self) -> None:
        self._sites = CallSites(self.script)
        self._pending: list[tuple[CallSite, float, float]] = []
        self._kept: dict[int, tuple[ref[Any], float]] = {}
        """Tensors that came out of a dropout, and the share of their input that is left."""
        self._told: dict[tuple[Any, ...], float] = {}

    def function_ended(self, call: TorchCall) -> None:
        step = self.script.step
        if not torch.is_grad_enabled() or (step >= DROPOUT_LOOKS and step % DROPOUT_EVERY):
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

    def _rate(self, call: TorchCall) -> tuple[Any, Any]:
        """(what it drops, whether it does)."""
        if call.function in FUSED:
            return call.argument(4, "dropout_p", 0.0), True
        if call.function in WHOLE:
            return call.argument(10, "dropout_p", 0.0), call.argument(13, "training", True)
        if call.function in RECURRENT:
            module = self.script.stack[-1] if self.script.stack else None
            if not isinstance(module, nn.RNNBase) or module.num_layers < 2:
                return 0.0, False
            return module.dropout, module.training
        rate = call.argument(1, "p", 0.5)
        return rate, call.argument(2, "training", call.function in _ALWAYS)

    def backward_begins(self, roots: Sequence[Tensor]) -> None:
        for site, p, left in self._pending:
            if self._told.get(site.key, 1.0) > left:
                self._told[site.key] = left
                facts = {
                    "member": site.name(self.script),
                    "p": p,
                    "kept": left,
                    "place": site.place,
                }
                self.evidence.record("dropout", facts)
        self._forget()

    def step_ended(self, optimizer: Any) -> None:
        self._forget()

    def _forget(self) -> None:
        self._pending.clear()
        self._kept.clear()
        self._sites.restart()


_ALWAYS = {F.dropout, F.dropout1d, F.dropout2d, F.dropout3d}
"""Functions that are in training mode by default."""


# Bidirectional recurrent layers.

LAST_STEP = "last_step"
"""The place of a line that reads the last step of a bidirectional layer's output."""


class LastStepReads(Observer):
    """Notes the line that reads `output[:, -1]`, where the reverse direction has made one step."""

    every_module = True
    functions = (Tensor.__getitem__,)

    def start(self) -> None:
        self._output: tuple[int, int, int] | None = None
        """Identity, time axis and length of the newest output."""

    def module_ended(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any
    ) -> None:
        if isinstance(module, nn.RNNBase) and module.bidirectional:
            first = output[0] if isinstance(output, tuple) else None
            if isinstance(first, Tensor) and first.ndim == 3:
                axis = 1 if module.batch_first else 0
                self._output = (id(first), axis, first.shape[axis])

    def function_ended(self, call: TorchCall) -> None:
        if self._output is None or id(call.args[0]) != self._output[0]:
            return
        _, axis, length = self._output
        index = call.args[1] if isinstance(call.args[1], tuple) else (call.args[1],)
        if len(index) > axis and index[axis] in (-1, length - 1) and length > 1:
            self._output = None
            self.evidence.record(PLACES, {LAST_STEP: self.script.place()})
