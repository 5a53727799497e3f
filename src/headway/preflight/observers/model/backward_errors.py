"""Lines that break a backward pass by an in-place write, and anomaly mode."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.optim import Optimizer

from headway.preflight.observer import Observer, TorchCall
from headway.preflight.source_lines import find_line, locate_crash
from headway.torch_adapters.autograd_graph import node_number, saved_value_errors, walk_graph
from headway.torch_adapters.compat import base_tensor, tensor_version

# Whether backward passes run in anomaly mode, and who switched it on.

ANOMALY_TOPIC = "anomaly-mode"
ANOMALY_STEPS = 3
"""Consecutive backward passes: a user may inspect one step on purpose."""


class AnomalyMode(Observer):
    """Reads the mode at the first backward passes."""

    def start(self) -> None:
        self._ours = torch.is_anomaly_enabled()  # switched on before the script began
        self._passes = 0
        self._on = 0
        self._place: dict[str, Any] | None = None

    def backward_begins(self, roots: Sequence[Tensor]) -> None:
        if self._passes > ANOMALY_STEPS:
            return
        self._passes += 1
        if torch.is_anomaly_enabled() and not self._ours:
            self._on += 1
            self._place = self._place or find_line(self.script, r"detect_anomaly")
        if self._passes == ANOMALY_STEPS:
            self._report()

    def finished(self) -> None:
        if 0 < self._passes < ANOMALY_STEPS:
            self._report()

    def _report(self) -> None:
        facts: dict[str, Any] = {"backwards": self._passes, "on": self._on}
        if self._place is not None:
            facts["place"] = self._place
        self.evidence.record(ANOMALY_TOPIC, facts)


# Which lines broke a backward pass: the one that wrote into a tensor, and the one that needed it.

# Torch notices by the tensor's version and raises in `backward`, far from both. Writes are heard
# as they happen, with the version they leave; in the first steps every other operation is too,
# with the number of its node in the graph.

EARLY = 3
"""Steps in which every operation is listened to."""
MOST_CALLS = 5000
MOST_WRITES = 5000
MOST_NODES = 20_000

_BROKEN = re.compile(
    r"modified by an inplace operation: \[(?P<kind>\S+) \[(?P<shape>[\d, ]*)\]\]"
    r"(?:, which is output \d+ of (?P<maker>\w+))?, is at version (?P<version>\d+); "
    r"expected version (?P<expected>\d+)"
)
_REFUSED = re.compile(
    r"(?P<what>a (?:view of a )?leaf Variable that requires grad|is a view) "
    r"(?:is being used in an in-place operation|and is being modified inplace)"
)


def _writers() -> tuple[Any, ...]:
    found = []
    for home in (Tensor, torch, F):
        for name in dir(home):
            changes = name.endswith("_") and not name.startswith("_") and not name.endswith("__")
            by_sign = home is Tensor and name.startswith("__i") and name not in _NO_WRITES
            if changes or by_sign or name == "__setitem__":
                function = getattr(home, name, None)
                if callable(function) and function not in found:
                    found.append(function)
    found += [getattr(F, name) for name in _WITH_OPTION if hasattr(F, name)]
    return tuple(found)


_NO_WRITES = ("__init__", "__init_subclass__", "__iter__", "__index__", "__int__", "__invert__")
_WITH_OPTION = (
    *("relu", "relu6", "leaky_relu", "elu", "selu", "celu", "silu", "mish", "hardtanh"),
    *("hardswish", "hardsigmoid", "threshold", "rrelu"),
    *("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout"),
)
"""Functions that write only with `inplace=True`."""


_WRITERS = frozenset(_writers())


@dataclass(slots=True)
class InPlaceWrite:
    """A write into a tensor."""

    shapes: tuple[tuple[int, ...], ...]
    """Its own, and that of the tensor it is a view of."""
    version: int
    makers: tuple[str, ...]
    """The nodes that had made them."""
    op: str
    module: str | None
    place: dict[str, Any] | None


@dataclass(slots=True)
class _Made:
    """An operation that is part of the graph."""

    number: int
    op: str
    module: str | None
    place: dict[str, Any] | None


class InPlaceWrites(Observer):
    """Observes writes, operations and the crash."""

    functions = _WRITERS
    every_function = True

    def start(self) -> None:
        self._writes: deque[InPlaceWrite] = deque(maxlen=MOST_WRITES)
        self._made: deque[_Made] = deque(maxlen=MOST_CALLS)
        self._roots: Sequence[Tensor] = ()
        self._running: str | None = None
        self._before: tuple[int, tuple[str, ...]] | None = None
        self._updates: list[tuple[Optimizer, dict[str, Any] | None]] = []
        self._heard: TorchCall | None = None
        self._told = False
        self._stepping = False

    def function_begins(self, call: TorchCall) -> None:
        if call is self._heard:  # heard as one of `functions` already
            return
        if self._stepping and not self.script.stack:
            return  # the optimizer's own writes are known as its step
        self._heard, self._running = call, call.name
        target = _target(call)
        self._before = None if target is None else (tensor_version(target), _makers(target))

    def function_ended(self, call: TorchCall) -> None:
        if call is not self._heard:
            return
        self._heard, self._running = None, None
        before, self._before = self._before, None
        target = _target(call)
        if target is not None and before is not None:
            if tensor_version(target) != before[0]:
                self._note_write(call, target, before[1])
        elif self.every_function:
            self._note_made(call)

    def backward_begins(self, roots: Sequence[Tensor]) -> None:
        self._roots = roots
        self._stepping = False  # a closure's, or a step that never ended

    def backward_ended(self, roots: Sequence[Tensor]) -> None:
        self._roots = ()

    def step_begins(self, optimizer: Optimizer) -> None:
        self._stepping = True

    def step_ended(self, optimizer: Optimizer) -> None:
        self._stepping = False
        self.every_function = self.script.step < EARLY
        self._updates = [item for item in self._updates if item[0] is not optimizer]
        self._updates.append((optimizer, self.script.place()))

    def crashed(self, error: BaseException) -> None:
        said = str(error)
        self._told = True
        broken, refused = _BROKEN.search(said), _REFUSED.search(said)
        if broken is not None:
            self._report_broken(error, broken)
        elif refused is not None:
            self.evidence.record(
                "inplace",
                {
                    "kind": "leaf" if "leaf" in refused["what"] else "view",
                    "op": self._running,
                    "place": locate_crash(error),
                    "error": said.splitlines()[0][:300],
                },
            )
        self._roots = ()

    def finished(self) -> None:
        if not self._told and self.script.models:
            self.evidence.record("inplace", {"kind": "none"})
        self._roots, self._updates, self._heard = (), [], None

    def _note_write(self, call: TorchCall, target: Tensor, makers: tuple[str, ...]) -> None:
        base = base_tensor(target)
        shapes = [tuple(target.shape)] + ([] if base is None else [tuple(base.shape)])
        self._writes.append(
            InPlaceWrite(
                tuple(shapes),
                tensor_version(target),
                makers,
                call.name,
                self._module(),
                self.script.place(),
            )
        )

    def _note_made(self, call: TorchCall) -> None:
        result = call.result[0] if isinstance(call.result, tuple) and call.result else call.result
        node = getattr(result, "grad_fn", None) if isinstance(result, Tensor) else None
        if node is not None:
            number = node_number(node)
            self._made.append(_Made(number, call.name, self._module(), self.script.place()))

    def _module(self) -> str | None:
        return self.script.path_of(self.script.stack[-1]) if self.script.stack else None

    def _report_broken(self, error: BaseException, broken: re.Match[str]) -> None:
        shape = [int(part) for part in broken["shape"].split(",") if part.strip()]
        version, expected = int(broken["version"]), int(broken["expected"])
        facts: dict[str, Any] = {
            "kind": "saved",
            "shape": shape,
            "maker": broken["maker"],
            "version": version,
            "expected": expected,
            "error": str(error).splitlines()[0][:300],
            "crash": locate_crash(error),
        }
        write = self._guilty_write(tuple(shape), broken["maker"], version, expected)
        update = self._guilty_update(tuple(shape), version)
        if write is not None:
            facts |= {"op": write.op, "module": write.module, "place": write.place}
        elif update is not None:
            facts |= {"op": "step", "by_optimizer": True, "place": update or None}
        needed = self._needing(broken.group())
        if needed is not None:
            facts["needed"] = {"op": needed.op, "module": needed.module, "place": needed.place}
        self.evidence.record("inplace", facts)

    def _guilty_write(
        self, shape: tuple[int, ...], maker: str | None, version: int, expected: int
    ) -> InPlaceWrite | None:
        fitting = [
            write
            for write in self._writes
            if shape in write.shapes and expected < write.version <= version
        ]
        named = [write for write in fitting if maker and _same_node(maker, write.makers)]
        by_optimizer = maker is not None and self._guilty_update(shape, version) is not None
        chosen = named or ([] if by_optimizer else fitting)
        firsts = [write for write in chosen if write.version == expected + 1]
        return (firsts or chosen)[-1] if chosen else None

    def _guilty_update(self, shape: tuple[int, ...], version: int) -> dict[str, Any] | None:
        """The line that stepped an optimizer whose weight it may be; layers see it transposed."""
        place: dict[str, Any] | None
        for optimizer, place in reversed(self._updates):
            for group in optimizer.param_groups:
                for weight in group["params"]:
                    own = tuple(weight.shape)
                    if tensor_version(weight) == version and shape in (own, own[::-1]):
                        return place or {}
        return None

    def _needing(self, complaint: str) -> _Made | None:
        """The operation whose backward found its tensor changed."""
        for node in walk_graph((root.grad_fn for root in self._roots), most=MOST_NODES):
            if complaint in "\n".join(saved_value_errors(node)):
                number = node_number(node)
                later = [made for made in self._made if made.number >= number]
                return min(later, key=lambda made: made.number, default=None)
        return None


def _target(call: TorchCall) -> Tensor | None:
    """The tensor that a call writes into, if it does."""
    if call.function not in _WRITERS:
        return None
    name = call.name
    if name in _WITH_OPTION:
        inplace = call.kwargs.get("inplace") is True or _is_true(call, 1)
        if not inplace and not (name.endswith("dropout") and _is_true(call, 3)):
            return None
    target = call.args[0] if call.args else call.kwargs.get("input")
    return target if isinstance(target, Tensor) and not target.is_inference() else None


def _is_true(call: TorchCall, position: int) -> bool:
    return len(call.args) > position and call.args[position] is True


def _makers(tensor: Tensor) -> tuple[str, ...]:
    base = base_tensor(tensor)
    made = [tensor.grad_fn] + ([] if base is None else [base.grad_fn])
    return tuple(node.name() for node in made if node is not None)


def _same_node(said: str, names: Sequence[str]) -> bool:
    plain = re.sub(r"(Backward)?\d*$", "", said)
    return any(re.sub(r"(Backward)?\d*$", "", name) == plain for name in names)
