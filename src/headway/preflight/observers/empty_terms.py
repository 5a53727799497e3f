"""Terms of the loss that are nothing but a 0 somebody made: `return torch.zeros(())`.

A loss function that finds nothing to compare gives back a fresh 0. Now and then that is as it
should be; at every step it means that the term is never computed at all. A fresh 0 is followed from
the line that makes it to the sum it joins.
"""

from __future__ import annotations

import ast
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from headway.preflight.addends import sums_in
from headway.preflight.conditions import on_data, on_time
from headway.preflight.loss_zone import note, take
from headway.preflight.naming import Level, levels, tree_of
from headway.preflight.observer import Call, Observer
from headway.preflight.scalars import Scalar, names_for
from headway.preflight.spellings import spellings
from headway.torch_tools.places import is_installed

TOPIC = "loss-component"
SEEN = "empty-terms"
STEPS = 50
"""So many steps it must have been a fresh 0, and never anything else."""
MOST_SITES, MOST_ZEROS = 256, 512

_MADE = (
    "zeros",
    "zeros_like",
    "new_zeros",
    "tensor",
    "new_tensor",
    "full",
    "new_full",
    "as_tensor",
)
_PASSED_ON = ("mul", "__mul__", "__rmul__", "div", "true_divide", "to", "float", "squeeze", "mean")
_SUMS = ("add", "add_", "__add__", "__radd__", "__iadd__", "stack", "cat")


@dataclass(slots=True)
class Site:
    """One place where a 0 joins a loss."""

    levels: tuple[Level, ...]
    """Where the 0 was made."""
    first: int
    steps: int = 0
    alive: bool = False
    """Something else came there as well."""
    told: bool = False


class EmptyTerms(Observer):
    """Marks fresh zeros, and hears what is added to losses."""

    functions = spellings(*_MADE, *_PASSED_ON, *_SUMS)

    def start(self) -> None:
        self._zeros: dict[int, tuple[weakref.ref[Tensor], tuple[Level, ...]]] = {}
        self._sites: dict[Any, Site] = {}
        self._visits: dict[Any, int] = {}
        self._pending = False

    def function_ended(self, call: Call) -> None:
        name, result = call.name, call.result
        if not isinstance(result, Tensor):
            return
        if name in _SUMS:
            if result.grad_fn is not None:
                self._joins(call, name)
                return
            if name in ("stack", "cat"):
                return
        if result.numel() != 1 or result.requires_grad or not result.is_floating_point():
            return
        if result.is_meta:
            return
        if name in _MADE:
            if float(result) == 0:
                self._remember(result, levels(self.scene.frames()))
        else:
            given = [self._made(item) for item in call.args if isinstance(item, Tensor)]
            if given and all(item is not None for item in given):
                self._remember(result, given[0] or ())

    def _remember(self, zero: Tensor, made: tuple[Level, ...]) -> None:
        if len(self._zeros) >= MOST_ZEROS:
            self._zeros.clear()
        self._zeros[id(zero)] = (weakref.ref(zero), made)

    def _made(self, item: Tensor) -> tuple[Level, ...] | None:
        """Where a 0 was made; None for anything else."""
        found = self._zeros.get(id(item))
        return found[1] if found is not None and found[0]() is item else None

    def _joins(self, call: Call, name: str) -> None:
        given: Sequence[Any] = call.args[:2]
        if name in ("stack", "cat"):
            given = call.argument(0, "tensors") or ()
            if not isinstance(given, (list, tuple)) or not 0 < len(given) <= 64:
                return
            if not all(isinstance(item, Tensor) and item.numel() == 1 for item in given):
                return  # parts of an activation, not of a loss
        elif call.result.numel() != 1:
            return
        here = levels(self.scene.frames())
        line = tuple(level.key for level in here)
        # Several sums may stand on one line, and one line may be passed several times.
        visit = self._visits[line] = self._visits.get(line, -1) + 1
        for at, item in enumerate(given):
            key = (line, visit, at)
            made = self._made(item) if isinstance(item, Tensor) else None
            if made is None:
                if key in self._sites and _may_live(item):
                    self._sites[key].alive = True
            elif not _adds_up(here, at, name):
                made = _up_to(here, made)
                if not on_time(made):
                    self._join(call.result, key, made)

    def _join(self, result: Tensor, key: Any, made: tuple[Level, ...]) -> None:
        if len(self._sites) >= MOST_SITES and key not in self._sites:
            return
        site = self._sites.setdefault(key, Site(made, self.scene.step))
        if not site.alive and not site.told:
            waiting = take(result.grad_fn, SEEN) or []
            self._pending |= note(result, SEEN, [*waiting, key])

    def backward_begins(self, roots: Sequence[Tensor]) -> None:
        if self._pending:
            self._pending = False
            for root in roots:
                for node in sums_in(root.grad_fn):
                    for key in take(node, SEEN) or ():
                        self._sites[key].steps += 1
        self._visits.clear()

    def step_ended(self, optimizer: Optimizer) -> None:
        self._zeros.clear()
        for site in self._sites.values():
            self._tell(site)

    def _tell(self, site: Site) -> None:
        if site.told or site.alive or site.steps < STEPS:
            return
        # It has come at some steps only, and nothing else at the others: they have other losses.
        if site.steps < 0.9 * (self.scene.step + 1 - site.first):
            return
        site.told = True
        scalar = Scalar(None, torch.empty(0), "zeros", site.levels, True)
        name = names_for([[scalar]])[0]
        self.evidence.value(f"loss/{name}", 0.0)
        facts = {
            "kind": "empty",
            "name": name,
            "steps": site.steps,
            "first_step": site.first,
            "on_data": on_data(site.levels),
            "place": _place(site.levels),
        }
        self.evidence.tell(TOPIC, facts)


def _may_live(item: Any) -> bool:
    """Whether this is something else than a 0."""
    if isinstance(item, Tensor):
        return item.requires_grad or bool((item != 0).any())
    return isinstance(item, (int, float)) and item != 0


def _adds_up(here: tuple[Level, ...], position: int, name: str) -> bool:
    """Whether the 0 is where a sum begins: `total = zeros(()); total = total + part`."""
    if name in ("stack", "cat"):
        return False
    if name in ("add_", "__iadd__") and position == 0:
        return True
    node = here[0].node if here else None
    tree = tree_of(here[0]) if here else None
    if not isinstance(node, ast.BinOp) or tree is None:
        return position == 0
    side = ast.unparse(node.right if position else node.left)
    for above in tree.up(node):
        if isinstance(above, (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.NamedExpr)):
            targets = above.targets if isinstance(above, ast.Assign) else [above.target]
            return any(ast.unparse(target) == side for target in targets)
    return False


def _up_to(here: tuple[Level, ...], made: tuple[Level, ...]) -> tuple[Level, ...]:
    """Where the 0 was made, up to the function in which it joins the loss: what called that, and
    under which condition, has nothing to do with it."""
    for at, level in enumerate(made):
        if here and level.key[:2] == here[0].key[:2]:
            return made[: at + 1]
    return made[:2]


def _place(made: tuple[Level, ...]) -> dict[str, Any] | None:
    for level in made:
        if not is_installed(level.file):
            return {"file": level.file, "line": level.line, "function": level.function}
    return None
