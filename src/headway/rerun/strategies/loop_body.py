"""Runs a step again by calling the body of the user's `for` loop over batches.

    for i, (x, y) in enumerate(guard(loader)):         # (a count, the batch)
    for batch, weight in zip(guard(loader), weights):  # (the batch, something beside it)

Which variable is the batch is decided by identity: variables that the body does not rebind still
have the values that the loop bound.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any

from torch import nn

from headway.rerun.protocol import (
    CAN,
    LATER,
    NOT_APPLICABLE,
    Readiness,
    Rerun,
    RerunCase,
    RerunMoment,
)
from headway.rerun.strategies.lifted_body import (
    LiftedBody,
    bound_names,
    is_liftable,
    loops_around,
    own_nodes,
    parse_source,
    user_frames,
)
from headway.torch_adapters.runtime_state import compiled_code_runs
from headway.torch_adapters.saved_state import ObjectSnapshot

NO_LOOP_OVER_BATCHES = "no `for` loop over its batches was found around it"
MAX_FRAMES = 12
"""Maximum number of frames between the guard's iterator and the loop: tqdm adds one or two."""


@dataclass(frozen=True, slots=True)
class LoopVariable:
    """The variables that a loop binds at each iteration."""

    target: ast.expr
    batch: ast.expr
    """The part of it that is the batch."""
    variables: Mapping[str, Any]
    count: str | None
    """The counter of `enumerate`."""

    @property
    def beside(self) -> bool:
        """Whether something other than a count is drawn together with the batch."""
        return any(
            node.id != self.count for node in _names(self.target) if not _within(node, self.batch)
        )

    def value_for(self, batch: Any, age: int) -> Any:
        """What the loop binds for a batch that came `age` batches before the latest."""
        return self._value(self.target, batch, age)

    def _value(self, node: ast.expr, batch: Any, age: int) -> Any:
        if node is self.batch:
            return batch
        if isinstance(node, ast.Name):
            value = self.variables[node.id]
            return value - age if node.id == self.count else value
        assert isinstance(node, (ast.Tuple, ast.List))
        return tuple(self._value(item, batch, age) for item in node.elts)


def match_loop_variable(
    loop: ast.For, variables: Mapping[str, Any], latest: Any
) -> LoopVariable | None:
    """Where the batch is in the loop variable; None: this loop is not over batches."""
    rebound = bound_names(loop.body)
    candidates = []
    for node in _parts(loop.target):
        others = [name.id for name in _names(loop.target) if not _within(name, node)]
        known = all(name in variables and name not in rebound for name in others)
        if known and _fits(node, latest, variables, rebound):
            candidates.append(node)
    if not candidates:
        return None
    certain = [node for node in candidates if any(n.id not in rebound for n in _names(node))]
    batch = (certain or candidates)[0]
    return LoopVariable(loop.target, batch, variables, _count(loop, batch, variables))


def _parts(target: ast.expr) -> Iterator[ast.expr]:
    yield target
    if isinstance(target, (ast.Tuple, ast.List)):
        for item in target.elts:
            yield from _parts(item)


def _names(node: ast.expr) -> list[ast.Name]:
    return [item for item in ast.walk(node) if isinstance(item, ast.Name)]


def _within(name: ast.Name, node: ast.expr) -> bool:
    return any(item is name for item in ast.walk(node))


def _count(loop: ast.For, batch: ast.expr, variables: Mapping[str, Any]) -> str | None:
    """`i` in `for i, batch in enumerate(…)`."""
    target = loop.target
    if batch is target or not isinstance(target, ast.Tuple) or len(target.elts) != 2:
        return None
    first = target.elts[0]
    if not isinstance(first, ast.Name) or not isinstance(variables.get(first.id), int):
        return None
    return None if _within(first, batch) else first.id


def _fits(target: ast.expr, value: Any, variables: Mapping[str, Any], rebound: set[str]) -> bool:
    if isinstance(target, ast.Name):
        return target.id in rebound or variables.get(target.id) is value
    if not isinstance(target, (ast.Tuple, ast.List)) or isinstance(value, (str, bytes)):
        return False
    try:
        parts = list(value)
    except TypeError:
        return False
    if any(isinstance(item, ast.Starred) for item in target.elts):
        return len(parts) >= len(target.elts) - 1
    return len(parts) == len(target.elts) and all(
        _fits(item, part, variables, rebound) for item, part in zip(target.elts, parts, strict=True)
    )


class LoopBody:
    """The body of a loop over batches."""

    def __init__(
        self, frame: FrameType, loop: ast.For, variable: LoopVariable, ages: Sequence[int]
    ) -> None:
        self._variable = variable
        self._ages = ages
        self._body = LiftedBody(frame, loop)

    def __call__(self, batches: Sequence[Any]) -> None:
        """Run the body once for each batch."""
        ages = self._ages if len(self._ages) == len(batches) else [0] * len(batches)
        bind = self._variable.value_for
        self._body([bind(batch, age) for batch, age in zip(batches, ages, strict=True)])

    def save(self, trained: Sequence[nn.Module], *, tensors: bool) -> ObjectSnapshot:
        return self._body.save_reachable(trained, tensors=tensors)


@dataclass(frozen=True, slots=True)
class FoundLoop:
    """A loop whose body can run a step again."""

    body: LoopBody | None = None
    again: bool = False
    """The loop can receive its batch again: nothing else is drawn together with it."""


def find_loop_body(frame: FrameType | None, latest: Any, ages: Sequence[int]) -> FoundLoop:
    """The training loop that this frame is in, or one that called it.

    `latest` is the current batch of the loop; `ages`: how many batches before it those came over
    which the body will be run.
    """
    passed_on: FoundLoop | None = None
    for candidate in user_frames(frame, MAX_FRAMES):
        tree = parse_source(candidate)
        if tree is None:  # most loops are over the loader alone
            return passed_on or FoundLoop(again=True)
        for loop in loops_around([tree], candidate.f_lineno):
            if not isinstance(loop, ast.For):
                continue
            variable = match_loop_variable(loop, candidate.f_locals, latest)
            if variable is None or (variable.beside and any(ages)):
                continue
            found = FoundLoop(again=not variable.beside)
            if is_liftable([loop.target, *loop.body]):
                try:
                    return FoundLoop(LoopBody(candidate, loop, variable, ages))
                except (SyntaxError, ValueError):  # not valid as a function
                    return found
            if not _yields(loop):
                return found
            passed_on = passed_on or found  # a generator: the loop that trains may be outside of it
            break
    return passed_on or FoundLoop()


def _yields(loop: ast.For) -> bool:
    return any(isinstance(node, (ast.Yield, ast.YieldFrom)) for node in own_nodes(loop.body))


def find_loop_of(case: RerunCase) -> FoundLoop:
    """The loop of a bad step that has batches; searched once."""
    if case.found_loop is None:
        batches = case.bad_step.batches
        latest = batches[-1]
        if case.moment is not RerunMoment.AFTER_STEP:  # the loop may have drawn others since
            latest = case.host.latest or latest
        ages = [
            0
            if kept.origin is None or latest.origin is None
            else latest.origin.number - kept.origin.number
            for kept in batches
        ]
        case.found_loop = find_loop_body(case.frame, latest.batch, ages)
    return case.found_loop


class LoopBodyRerun(Rerun):
    """Calls the body of the user's loop over batches."""

    def prepare(self) -> Readiness:
        case = self._case
        if not case.bad_step.batches:
            return NOT_APPLICABLE
        if case.moment is RerunMoment.STEP_COMPLETE:
            return LATER  # when the loop asks for its next batch, its frame is known
        found = find_loop_of(case)
        if case.moment is RerunMoment.AFTER_STEP and (found.body is not None or found.again):
            return LATER  # the rest of the body still runs
        if found.body is None:
            return Readiness(why_not=NO_LOOP_OVER_BATCHES)
        self._undo = found.body.save(case.host.models, tensors=compiled_code_runs())
        return CAN

    def run(self, batches: Sequence[Any]) -> tuple[()]:
        body = find_loop_of(self._case).body
        assert body is not None
        body(batches)
        return ()
