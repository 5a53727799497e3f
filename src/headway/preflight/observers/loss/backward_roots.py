"""What backward is called on: whether it has a graph, and if not, where it was cut."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from headway.preflight.observer import Observer, TorchCall
from headway.preflight.observers.loss.loss_inputs import LOSSES
from headway.torch_adapters.compat import find_aliases
from headway.torch_adapters.live_objects import find_leaves
from headway.torch_adapters.nested_state import find_tensors

ROOT_TOPIC = "backward-root"
MOST = 3
"""Maximum number of reports of a loss without a graph."""
CLOSE = 3
"""Steps whose whole graph is followed down to the parameters."""
_NEW = ("tensor", "as_tensor", "asarray")
_CUTS = ("detach", "detach_", *_NEW, "numpy", "argmax")
_ROOT_NUMBERS = ("item", "tolist", "__float__")
NO_GRAD = "no_grad"
"""A loss that was computed while gradients were switched off."""
_MARKS = ("requires_grad_",)

CutLine: TypeAlias = tuple[str, dict[str, Any] | None, "weakref.ref[Tensor] | None", bool]
"""What was called, where, what it gave, and whether it surely left the graph."""


class BackwardRoots(Observer):
    """Follows the graph of every loss to the parameters, or finds who cut it."""

    functions = (
        *find_aliases(*_CUTS, *_ROOT_NUMBERS, *_MARKS),
        *LOSSES,
        Tensor.data.__get__,  # type: ignore[attr-defined]
    )

    def start(self) -> None:
        self._told = 0
        self._first = True
        self._cuts: deque[CutLine] = deque(maxlen=32)
        self._forget()

    def _forget(self) -> None:
        self._forwards = {"with_graph": 0, "without_graph": 0, "disabled": 0, "inference": 0}
        self._forward_place: dict[str, Any] | None = None
        self._frozen: tuple[int, int] | None = None
        """(trainable, all) parameters of the first model that ran without making a graph."""
        self._backwards = 0
        self._reached = False
        self._last: dict[str, Any] | None = None

    # What leads away from the graph.

    def function_ended(self, call: TorchCall) -> None:
        if call.function in LOSSES:
            if not torch.is_grad_enabled():
                self._cut(call, name=NO_GRAD)
            return
        source = call.argument(0, "data")
        if call.name == "requires_grad_" and isinstance(source, Tensor):
            if source.grad_fn is None and not isinstance(source, nn.Parameter):
                self._cut(call)
            return
        if isinstance(source, Tensor) and source.grad_fn is not None:
            self._cut(call)
        elif call.name in _NEW:
            # Its content may be a number that was taken out of the graph before; one that is
            # marked to need a gradient is meant to be the loss.
            self._cut(call, sure=call.kwargs.get("requires_grad") is True)

    def _cut(self, call: TorchCall, *, name: str = "", sure: bool = True) -> None:
        result = call.result
        if self._told >= MOST:
            return
        made = weakref.ref(result) if isinstance(result, Tensor) else None
        name = name or ("data" if call.name == "__get__" else call.name)
        self._cuts.append((name, self.script.place(), made, sure))

    # Forwards.

    def module_ended(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any
    ) -> None:
        if len(self.script.stack) != 1 or not any(True for _ in module.parameters()):
            return
        if torch.is_inference_mode_enabled():
            kind = "inference"
        elif not torch.is_grad_enabled():
            kind = "disabled"
        else:
            graph = any(item.requires_grad for _, item in find_tensors(output))
            kind = "with_graph" if graph else "without_graph"
        self._forwards[kind] += 1
        if kind == "without_graph" and self._frozen is None:
            needed = [p.requires_grad for p in module.parameters()]
            self._frozen = (sum(needed), len(needed))
        if kind != "with_graph" and self._forward_place is None:
            self._forward_place = self.script.place()

    # Backwards.

    def backward_begins(self, roots: Sequence[Tensor]) -> None:
        self._backwards += 1
        if not roots:  # vectors with a gradient of their own: nothing is said about them
            self._reached = True
            return
        bare = all(root.grad_fn is None for root in roots)
        if not bare and self.script.step >= CLOSE:
            self._reached = True
            return
        reached = 0 if bare else self._count_reached(roots)
        self._reached = self._reached or reached > 0
        facts = self._facts(roots) | {"graph": not bare, "reached": reached}
        if bare:
            self._report(facts)
        elif not reached:
            self._last = facts
        elif self._first:
            self._first = False
            self.evidence.record(ROOT_TOPIC, facts)

    def backward_ended(self, roots: Sequence[Tensor]) -> None:
        if self._reached:
            self._cuts.clear()

    def step_ended(self, optimizer: Optimizer) -> None:
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        if not self._reached and all(p.grad is None for p in parameters):
            if self._last is not None:
                self._report(self._last)
            elif not self._backwards and any(self._forwards.values()):
                self._report(self._facts(()) | {"graph": False, "backward": False, "reached": 0})
        self._forget()
        self._cuts.clear()

    def crashed(self, error: BaseException) -> None:
        if "Inference tensors cannot be saved" in str(error):
            place = self.script.place() or self._forward_place
            self._forwards["inference"] += 1
            self._report(self._facts(()) | {"graph": False, "reached": 0, "place": place})

    def _report(self, facts: dict[str, Any]) -> None:
        self._told += 1
        if self._told <= MOST:
            self.evidence.record(ROOT_TOPIC, facts)

    def _facts(self, roots: Sequence[Tensor]) -> dict[str, Any]:
        cut = self._who_cut(roots)
        trainable, parameters = self._frozen or (None, None)
        return {
            "place": self.script.place(),
            "grad_enabled": torch.is_grad_enabled(),
            "leaf": bool(roots) and all(root.is_leaf and root.requires_grad for root in roots),
            "backward": True,
            "forwards": dict(self._forwards),
            "forward_place": self._forward_place,
            "trainable": trainable,
            "parameters": parameters,
            "cut": {} if cut is None else {"function": cut[0], "place": cut[1]},
        }

    def _who_cut(self, roots: Sequence[Tensor]) -> tuple[str, dict[str, Any] | None] | None:
        """The call that made the root itself, or else the last one that left the graph."""
        # A graph without parameters ends at another leaf.
        ends = [*roots, *find_leaves(roots)] if len(self._cuts) else roots
        made = [
            (name, place)
            for name, place, result, _ in self._cuts
            if result is not None and any(result() is end for end in ends)
        ]
        taken_out = [item for item in made if item[0] not in _MARKS]
        if taken_out:
            return taken_out[-1]
        for names, certain in (
            ((*_CUTS, "data"), True),
            (_ROOT_NUMBERS, True),
            ((NO_GRAD,), True),
            (_NEW, False),
        ):
            found = [
                (name, place)
                for name, place, _, sure in self._cuts
                if name in names and sure is certain
            ]
            if found:
                return found[-1]
        return made[-1] if made else None

    def _count_reached(self, roots: Sequence[Tensor]) -> int:
        wanted = {
            id(p) for item in self.script.optimizers for g in item.param_groups for p in g["params"]
        }
        return sum(
            id(leaf) in wanted or isinstance(leaf, nn.Parameter) for leaf in find_leaves(roots)
        )
