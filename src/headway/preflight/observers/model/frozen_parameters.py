"""Parameters meant to be frozen: which line asks for it, whether it works, and whether they move
anyway.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from headway.core.facts import LISTED
from headway.preflight.observer import Observer, TorchCall
from headway.preflight.observers.model.freezing_source import (
    freezes_without_effect,
    is_freezing_by_name,
    is_under_time_condition,
)
from headway.preflight.observers.model.weight_values import MOST_ELEMENTS, WritesBetweenSteps
from headway.preflight.source_lines import find_line
from headway.torch_adapters.live_objects import find_instances

FROZEN, ATTEMPT = "frozen", "freeze-attempt"
MOVED, CHANGE = "frozen-moved", "freeze-change"
_SET = torch.Tensor.requires_grad.__set__  # type: ignore[attr-defined]
_MISTYPED = re.compile(
    r"^(requires?_?grads?|requires?_?gradients?|grads?_required|trainable)$", re.I
)
CLOSELY, EVERY = 6, 10


class FrozenParameters(Observer):
    """Observes every change of `requires_grad`, and finds those without effect."""

    functions = (_SET, Tensor.requires_grad_)
    now_and_then = True

    def start(self) -> None:
        self._between = WritesBetweenSteps()
        self._steps = 0
        self._looked: set[int] = set()
        self._told: list[dict[str, Any]] = []
        self._loop: list[int] = []
        """The user's frames around the last step, innermost first."""
        self._frozen: dict[int, tuple[Tensor, Any]] = {}
        """Frozen before the first step, and where."""
        self._frozen_by: dict[str, dict[int, Tensor]] = {}
        """Line → all that it has frozen, also what another line has frozen since."""
        self._frozen_at: dict[int, int] = {}
        """Backward passes that had been made by then."""
        self._thawed: dict[int, Any] = {}
        self._changed: dict[tuple[Any, bool], dict[str, Any]] = {}
        self._kept: list[tuple[Tensor, Tensor]] = []
        self._moved: set[int] = set()
        self.script.launch.on_recorder.append(lambda _: self._report_frozen())

    def _report_frozen(self) -> None:
        """The line that froze the most parameters, before they are examined."""
        places = [place for p, place in self._frozen.values() if place and not p.requires_grad]
        counted = {str(place): (places.count(place), place) for place in places}
        if counted:
            count, place = max(counted.values(), key=lambda item: item[0])
            self.evidence.record(FROZEN, {"count": count, "place": place})

    # Changes of requires_grad.

    def function_ended(self, call: TorchCall) -> None:
        tensor = call.args[0] if call.args else None
        if call.function not in self.functions:
            if self._between.is_written(call):
                self._between.place = self.script.place()
            return
        wanted = call.argument(1, "requires_grad", True)
        if not isinstance(tensor, nn.Parameter) or not isinstance(wanted, bool):
            return
        if self._steps == 0 or self.script.name_of(tensor) is None:
            if wanted and id(tensor) in self._frozen:
                self._thawed[id(tensor)] = self.script.place()
                if self.script.launch.backwards > self._frozen_at.get(id(tensor), 0):
                    del self._frozen[id(tensor)]  # frozen for a pass of its own, as was meant
            elif not wanted:
                place = self.script.place()
                self._frozen[id(tensor)] = (tensor, place)
                self._frozen_by.setdefault(str(place), {})[id(tensor)] = tensor
                self._frozen_at[id(tensor)] = self.script.launch.backwards
                self._thawed.pop(id(tensor), None)
        elif len(self._changed) < 50:
            self._note_change(tensor, wanted)

    def _note_change(self, tensor: Tensor, wanted: bool) -> None:
        name = self.script.name_of(tensor)
        place = self.script.place()
        key = (str(place), wanted)
        if name is None:
            return
        known = self._changed.get(key)
        if known is None:
            frames = list(self.script.frames())
            meant = is_freezing_by_name(frame.f_code.co_name for frame in frames)
            # Between two loops, in their caller: a new stage.
            meant = meant or (bool(frames) and id(frames[0]) in self._loop[1:])
            if place is not None:
                meant = meant or is_under_time_condition(place["file"], place["line"])
            known = {"step": self.script.step, "to": wanted, "names": [], "meant": meant}
            if place is not None:
                known["place"] = place
            self._changed[key] = known
        if name not in known["names"]:
            known["names"].append(name)
            known["reported"] = False

    def _report_changes(self) -> None:
        for change in self._changed.values():
            if not change.get("reported"):
                change["reported"] = True
                facts = {key: value for key, value in change.items() if key != "reported"}
                names = list(change["names"])
                facts |= {"names": names[:200], "count": len(names)}
                self.evidence.record(CHANGE, facts)

    # Around the steps.

    @torch.no_grad()
    def step_begins(self, optimizer: Optimizer) -> None:
        new = {id(model) for model in self.script.models} - self._looked
        if new:
            self._looked |= new
            self._look_for_attempts()
        self._loop = [id(frame) for frame in self.script.frames()]
        self._report_changes()
        self._end_gap()
        self._kept = []
        if self._steps > CLOSELY and self._steps % EVERY:
            return
        elements = 0
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.requires_grad or id(parameter) in self._moved:
                    continue
                if not isinstance(parameter, nn.Parameter) and id(parameter) not in self._frozen:
                    continue  # a master of another tensor: it never asked for a gradient
                elements += parameter.numel()
                if elements <= MOST_ELEMENTS:
                    self._kept.append((parameter, parameter.detach().clone()))

    @torch.no_grad()
    def step_ended(self, optimizer: Optimizer) -> None:
        self._steps += 1
        kept, self._kept = self._kept, []
        moved = [p for p, before in kept if not torch.equal(p.detach(), before)]
        self._moved.update(id(p) for p in moved)
        self._begin_gap()
        if not moved:
            return
        gradients = [p.grad for p in moved if p.grad is not None]
        group = optimizer.param_groups[0]
        facts: dict[str, Any] = {
            "names": [self.script.name_of(p) or "a tensor" for p in moved[:LISTED]],
            "count": len(moved),
            "optimizer": type(optimizer).__name__,
            "gradients": len(gradients),
            "zero_gradients": sum(not bool((g != 0).any()) for g in gradients),
            "weight_decay": _number(group.get("weight_decay")),
            "momentum": _number(group.get("momentum")),
        }
        places = [self._frozen[id(p)][1] for p in moved if id(p) in self._frozen]
        place = next((item for item in places if item), None) or self._place_of_change(moved)
        if place is not None:
            facts["place"] = place
        self.evidence.record(MOVED, facts)

    def _place_of_change(self, moved: list[Tensor]) -> Any:
        names = {self.script.name_of(p) for p in moved}
        for change in self._changed.values():
            if not change["to"] and names & set(change["names"]):
                return change.get("place")
        return None

    # Between two steps.

    def _begin_gap(self) -> None:
        between = self._between
        if between.done or (self._steps > CLOSELY and self._steps % EVERY and not between.moved):
            return
        own = {id(p) for model in self.script.models for p in model.parameters()}
        frozen = [p for p, _ in self._frozen.values() if id(p) in own - self._moved]
        trained = [
            p for item in self.script.optimizers for g in item.param_groups for p in g["params"]
        ]
        between.begin([p for p in frozen if not p.requires_grad], trained)
        self.every_function = bool(between.moved)

    def _end_gap(self) -> None:
        between = self._between
        seen = bool(between.moved)
        between.end()
        # The step after the first such change names its line.
        if not between.moved or not seen:
            return
        self.every_function, between.done = False, True
        facts: dict[str, Any] = {
            "names": [self.script.name_of(p) or "a tensor" for p in between.moved[:LISTED]],
            "count": len(between.moved),
            "between_steps": True,
            "factor": between.factor,
        }
        place = between.place or self._frozen[id(between.moved[0])][1]
        self.evidence.record(MOVED, facts | ({} if place is None else {"place": place}))

    # Attempts without effect.

    def _look_for_attempts(self) -> None:
        found = [*self._set_on_modules(), *self._mistyped(), *self._undone(), *self._elsewhere()]
        found = found or self._unmatched()
        for facts in found:
            if facts not in self._told:
                self._told.append(facts)
                self.evidence.record(ATTEMPT, facts)
        if not self._told:
            self.evidence.record(ATTEMPT, {"kind": "none"})

    def _set_on_modules(self) -> list[dict[str, Any]]:
        found = []
        for model in self.script.models:
            for module in model.modules():
                name = next((n for n in vars(module) if _is_mistyped(n, on_module=True)), None)
                if name is None or vars(module)[name] is not False:
                    continue
                alive = [p for p in module.parameters() if p.requires_grad]
                if alive:
                    found.append(self._attempt("module", name, self.script.path_of(module), alive))
        return found

    def _mistyped(self) -> list[dict[str, Any]]:
        by_name: dict[str, list[Tensor]] = {}
        for model in self.script.models:
            for parameter in model.parameters():
                kept = getattr(parameter, "__dict__", {})
                for name, value in kept.items():
                    if value is False and _is_mistyped(name) and parameter.requires_grad:
                        by_name.setdefault(name, []).append(parameter)
        return [
            self._attempt("parameter", name, self.script.name_of(alive[0]) or "", alive)
            for name, alive in by_name.items()
        ]

    def _attempt(
        self, kind: str, attribute: str, where: str, alive: Sequence[Tensor]
    ) -> dict[str, Any]:
        facts: dict[str, Any] = {
            "kind": kind,
            "attribute": attribute,
            "where": where,
            "names": [self.script.name_of(p) or "a tensor" for p in alive[:LISTED]],
            "count": len(alive),
        }
        place = find_line(self.script, rf"\.{attribute}\s*=|setattr\(.*{attribute}")
        if place is not None:
            facts["place"] = place
        return facts

    def _unmatched(self) -> list[dict[str, Any]]:
        """Loops that were to freeze by name and found nothing of that name."""
        heard = {(place["file"], place["line"]) for _, place in self._frozen.values() if place}
        names = [name for model in self.script.models for name, _ in model.named_parameters()]
        return [
            {"kind": "unmatched", "names": names[:LISTED], "count": len(names), "place": place}
            for place in freezes_without_effect(self.script, heard)
        ]

    def _elsewhere(self) -> list[dict[str, Any]]:
        """A part frozen of a model that is not the one that trains."""
        trained = {id(p): p for model in self.script.models for p in model.parameters()}
        frozen = [p for p, _ in self._frozen.values() if not p.requires_grad]
        if not frozen or any(id(p) in trained for p in frozen):
            return []
        if any(not p.requires_grad for p in trained.values()) or _whole_models(frozen):
            return []
        shapes = [tuple(p.shape) for p in trained.values()]
        wanted = [tuple(p.shape) for p in frozen]
        if len(wanted) >= len(shapes) or any(
            wanted.count(shape) > shapes.count(shape) for shape in wanted
        ):
            return []
        place = self._frozen[id(frozen[0])][1]
        names = [self.script.name_of(p) or "a tensor" for p in trained.values()]
        facts: dict[str, Any] = {"kind": "elsewhere", "names": names[:LISTED], "count": len(frozen)}
        if place is not None:
            facts["place"] = place
        return [facts]

    def _undone(self) -> list[dict[str, Any]]:
        """Freezes of which nothing is left at the first step."""
        trained = {
            id(p) for item in self.script.optimizers for g in item.param_groups for p in g["params"]
        }
        found = []
        for tensors in self._frozen_by.values():
            undone = [p for p in tensors.values() if p.requires_grad and id(p) in trained]
            if len(undone) < len(tensors) or any(id(p) not in self._frozen for p in undone):
                continue
            facts = {
                "kind": "undone",
                "names": [self.script.name_of(p) or "a tensor" for p in undone[:LISTED]],
                "count": len(undone),
                "place": self._frozen[id(undone[0])][1],
                "undone_at": self._thawed.get(id(undone[0])),
            }
            found.append(facts)
        return found


def _is_mistyped(name: str, *, on_module: bool = False) -> bool:
    if on_module:
        return name.lower() != "trainable" and _MISTYPED.match(name) is not None
    return name != "requires_grad" and _MISTYPED.match(name) is not None


def _whole_models(frozen: Sequence[Tensor]) -> bool:
    """Whether they belong to models that are frozen as a whole: a teacher, a target network."""
    known = {id(p) for p in frozen}
    tops = [
        module
        for module in find_instances(nn.Module)
        if any(id(p) in known for p in module.parameters())
    ]
    return any(
        {id(p) for p in top.parameters()} >= known
        and not any(p.requires_grad for p in top.parameters())
        and not _is_part(top, tops)
        for top in tops
    )


def _is_part(module: nn.Module, among: Sequence[nn.Module]) -> bool:
    return any(
        module is inner for other in among if other is not module for inner in other.modules()
    )


def _number(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) else 0.0
