"""Terms of the loss that are a constant 0, and the condition under which their line runs."""

from __future__ import annotations

import ast
import re
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from headway.preflight.observer import Observer, TorchCall
from headway.preflight.observers.loss.value_names import (
    Scalar,
    SourceLevel,
    SourceTree,
    choose_names,
    parse_source,
    read_levels,
)
from headway.torch_adapters.compat import find_aliases
from headway.torch_adapters.frames import is_installed_file
from headway.torch_adapters.loss_graph import add_note, find_sums, take_note

# The condition under which a line runs, read from the source: the data, or a setting.

# A loss function that finds nothing to compare gives back a 0 (`if not pairs.any(): return
# zeros`): that depends on the data. A disabled part also returns 0: that
# depends on a setting.

_TIME = re.compile(r"epoch|step|iter|warm|start|begin|phase|stage|\bit\b|\bi\b|burn|anneal|ramp")
_OF_SETTINGS = {"get", "getattr", "hasattr", "isinstance", "callable", "is_available", "type"}
_OF_DATA = {"shape", "size", "ndim", "nelement", "numel"}
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
MOST_DEPTH = 4


def depends_on_time(levels: Sequence[SourceLevel]) -> bool:
    """Whether it stands under a condition about steps or epochs: a warm-up."""
    return any(_TIME.search(ast.unparse(test).lower()) for _, test in _tests(levels))


def depends_on_data(levels: Sequence[SourceLevel]) -> bool:
    """Whether the nearest condition depends on the data: `if not mask.any()`."""
    for tree, test in _tests(levels):
        return _asks_data(test, tree)
    return False


def _tests(levels: Sequence[SourceLevel]) -> Iterator[tuple[SourceTree, ast.expr]]:
    """The conditions around a value, the nearest first, function by function."""
    for level in levels:
        tree = parse_source(level)
        if tree is None or level.node is None:
            continue
        found = list(_around(level.node, tree)) or list(_instead(level.node, tree))
        yield from ((tree, test) for test in found)


def _around(node: ast.AST, tree: SourceTree) -> Iterator[ast.expr]:
    for above in tree.up(node):
        if isinstance(above, _FUNCTIONS):
            return
        if isinstance(above, (ast.If, ast.IfExp)):
            yield above.test


def _instead(node: ast.AST, tree: SourceTree) -> Iterator[ast.expr]:
    """The conditions under which a variable that begins with this value gets another one."""
    statement = next((item for item in tree.up(node) if isinstance(item, ast.Assign)), None)
    function = next((item for item in tree.up(node) if isinstance(item, _FUNCTIONS)), None)
    if statement is None or function is None:
        return
    name = ast.unparse(statement.targets[0])
    for other in ast.walk(function):
        if not isinstance(other, ast.Assign) or other is statement:
            continue
        if ast.unparse(other.targets[0]) == name:
            yield from _around(other, tree)


def _asks_data(test: ast.AST, tree: SourceTree, depth: int = 0) -> bool:
    for item in ast.walk(test):
        if isinstance(item, ast.Call) and _called(item) not in _OF_SETTINGS:
            return True
        if isinstance(item, ast.Attribute) and item.attr in _OF_DATA:
            return True
        if isinstance(item, ast.Compare) and any(
            isinstance(op, (ast.In, ast.NotIn)) for op in item.ops
        ):
            return all(isinstance(side, ast.Name) for side in item.comparators)
        if isinstance(item, ast.Name) and depth < MOST_DEPTH:
            values = _set_to(item, tree)
            if any(_asks_data(value, tree, depth + 1) for value in values):
                return True
    return False


def _called(call: ast.Call) -> str | None:
    function = call.func
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else None


def _set_to(name: ast.Name, tree: SourceTree) -> Iterator[ast.AST]:
    """The values that the same function assigns to a variable before it reads it."""
    function = next((item for item in tree.up(name) if isinstance(item, _FUNCTIONS)), None)
    for other in ast.walk(function) if function is not None else ():
        if not isinstance(other, ast.Assign) or other.lineno >= name.lineno:
            continue
        if any(isinstance(item, ast.Name) and item.id == name.id for item in other.targets):
            yield other.value


# Loss terms that are a newly created 0: `return torch.zeros(())`.

# A loss function that finds nothing to compare gives back a fresh 0. Now and then that is as it
# should be; at every step it means that the term is never computed at all. A fresh 0 is followed
# from the line that makes it to the sum it joins.

TOPIC = "loss-component"
SEEN = "empty-terms"
EMPTY_TERM_STEPS = 50
"""Number of steps for which a term must be a new 0, and nothing else."""
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
class EmptyTermSite:
    """One place where a 0 joins a loss."""

    levels: tuple[SourceLevel, ...]
    """Where the 0 was made."""
    first: int
    steps: int = 0
    alive: bool = False
    """Another value was added there as well."""
    reported: bool = False


class EmptyTerms(Observer):
    """Marks new zeros, and observes what is added to losses."""

    functions = find_aliases(*_MADE, *_PASSED_ON, *_SUMS)

    def start(self) -> None:
        self._zeros: dict[int, tuple[weakref.ref[Tensor], tuple[SourceLevel, ...]]] = {}
        self._sites: dict[Any, EmptyTermSite] = {}
        self._visits: dict[Any, int] = {}
        self._pending = False

    def function_ended(self, call: TorchCall) -> None:
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
                self._remember(result, read_levels(self.script.frames()))
        else:
            given = [self._made(item) for item in call.args if isinstance(item, Tensor)]
            if given and all(item is not None for item in given):
                self._remember(result, given[0] or ())

    def _remember(self, zero: Tensor, made: tuple[SourceLevel, ...]) -> None:
        if len(self._zeros) >= MOST_ZEROS:
            self._zeros.clear()
        self._zeros[id(zero)] = (weakref.ref(zero), made)

    def _made(self, item: Tensor) -> tuple[SourceLevel, ...] | None:
        """Where a 0 was made; None for anything else."""
        found = self._zeros.get(id(item))
        return found[1] if found is not None and found[0]() is item else None

    def _joins(self, call: TorchCall, name: str) -> None:
        given: Sequence[Any] = call.args[:2]
        if name in ("stack", "cat"):
            given = call.argument(0, "tensors") or ()
            if not isinstance(given, (list, tuple)) or not 0 < len(given) <= 64:
                return
            if not all(isinstance(item, Tensor) and item.numel() == 1 for item in given):
                return  # parts of an activation, not of a loss
        elif call.result.numel() != 1:
            return
        here = read_levels(self.script.frames())
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
                if not depends_on_time(made):
                    self._join(call.result, key, made)

    def _join(self, result: Tensor, key: Any, made: tuple[SourceLevel, ...]) -> None:
        if len(self._sites) >= MOST_SITES and key not in self._sites:
            return
        site = self._sites.setdefault(key, EmptyTermSite(made, self.script.step))
        if not site.alive and not site.reported:
            waiting = take_note(result.grad_fn, SEEN) or []
            self._pending |= add_note(result, SEEN, [*waiting, key])

    def backward_begins(self, roots: Sequence[Tensor]) -> None:
        if self._pending:
            self._pending = False
            for root in roots:
                for node in find_sums(root.grad_fn):
                    for key in take_note(node, SEEN) or ():
                        self._sites[key].steps += 1
        self._visits.clear()

    def step_ended(self, optimizer: Optimizer) -> None:
        self._zeros.clear()
        for site in self._sites.values():
            self._report(site)

    def _report(self, site: EmptyTermSite) -> None:
        if site.reported or site.alive or site.steps < EMPTY_TERM_STEPS:
            return
        # It has come at some steps only, and nothing else at the others: they have other losses.
        if site.steps < 0.9 * (self.script.step + 1 - site.first):
            return
        site.reported = True
        scalar = Scalar(None, torch.empty(0), "zeros", site.levels, True)
        name = choose_names([[scalar]])[0]
        self.evidence.value(f"loss/{name}", 0.0)
        facts = {
            "kind": "empty",
            "name": name,
            "steps": site.steps,
            "first_step": site.first,
            "on_data": depends_on_data(site.levels),
            "place": _place(site.levels),
        }
        self.evidence.record(TOPIC, facts)


def _may_live(item: Any) -> bool:
    """Whether this is something else than a 0."""
    if isinstance(item, Tensor):
        return item.requires_grad or bool((item != 0).any())
    return isinstance(item, (int, float)) and item != 0


def _adds_up(here: tuple[SourceLevel, ...], position: int, name: str) -> bool:
    """Whether the 0 is where a sum begins: `total = zeros(()); total = total + part`."""
    if name in ("stack", "cat"):
        return False
    if name in ("add_", "__iadd__") and position == 0:
        return True
    node = here[0].node if here else None
    tree = parse_source(here[0]) if here else None
    if not isinstance(node, ast.BinOp) or tree is None:
        return position == 0
    side = ast.unparse(node.right if position else node.left)
    for above in tree.up(node):
        if isinstance(above, (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.NamedExpr)):
            targets = above.targets if isinstance(above, ast.Assign) else [above.target]
            return any(ast.unparse(target) == side for target in targets)
    return False


def _up_to(here: tuple[SourceLevel, ...], made: tuple[SourceLevel, ...]) -> tuple[SourceLevel, ...]:
    """Where the 0 was made, up to the function in which it joins the loss: what called that, and
    under which condition, has nothing to do with it."""
    for at, level in enumerate(made):
        if here and level.key[:2] == here[0].key[:2]:
            return made[: at + 1]
    return made[:2]


def _place(made: tuple[SourceLevel, ...]) -> dict[str, Any] | None:
    for level in made:
        if not is_installed_file(level.file):
            return {"file": level.file, "line": level.line, "function": level.function}
    return None
