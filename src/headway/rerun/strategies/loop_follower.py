"""Follows loops that make their own data, and captures the state in which each iteration begins.

    for step in range(steps):        while step < steps:
        x, y = get_batch(step)           step += 1
        ...                              ...
        optimizer.step()                 optimizer.step()

No loader shows when an iteration begins. Known is the frame that called `optimizer.step()`, and so
its loop, the variables that an iteration binds, and those that it passes on to the next. An
iteration is assumed to begin where the last optimizer step ended; the re-run proves it or not.
"""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import TYPE_CHECKING

from headway.output.notices import logger
from headway.rerun.strategies import iteration_state
from headway.rerun.strategies.iteration_state import IterationState, MovingState
from headway.rerun.strategies.lifted_body import (
    LoopNode,
    bound_names,
    is_liftable,
    loops_around,
    parse_source,
    read_variables,
    surrounds,
)
from headway.rerun.strategies.loop_body import match_loop_variable
from headway.torch_adapters.frames import (
    current_frame,
    find_frame,
    find_user_frame,
    is_installed_file,
    is_internal_file,
    walk_callers,
)

if TYPE_CHECKING:
    from headway.rerun.recorded_batch import RecordedBatch

MAX_FRAMES = 24
"""Frames between the optimizer's hook and the loop: a scaler, a framework's wrapper, a few calls of
the user's own."""
MAX_STEP_LINES = 64
"""Lines with an optimizer step that are remembered; a script that generates code has many."""
NO_LOOP = "no loop was found around it"
FIRST_ITERATION = "it was the first of its loop, and the state in which it began is not known"


@dataclass(frozen=True, slots=True)
class LoopSource:
    """The loop around an optimizer step."""

    node: LoopNode
    code: CodeType
    line: int
    """The line at which its body calls the optimizer's step."""
    bound: frozenset[str]
    """Names that an iteration binds, the loop variable included."""
    targets: frozenset[str]
    """Of these, the loop variable."""
    carried: frozenset[str]
    """Of these, those whose value may come from the iteration before."""
    early: frozenset[str]
    """Of these, those bound before the optimizer's step."""
    obstacle: str = ""
    """Why its body cannot be a function; empty: it can."""

    def same_loop(self, other: LoopSource) -> bool:
        """Whether the other is the same loop, perhaps at another of its steps."""
        mine, theirs = self.node, other.node
        same_place = (mine.lineno, mine.col_offset) == (theirs.lineno, theirs.col_offset)
        return self.code is other.code and same_place

    def in_order(self, names: Iterable[str]) -> list[str]:
        """These names in the order in which an iteration binds them."""
        first: dict[str, int] = {}
        for node in _nodes(self.node.body):
            if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
                first[node.id] = min(node.lineno, first.get(node.id, node.lineno))
        return sorted(names, key=lambda name: first.get(name, 0))


@dataclass(frozen=True, slots=True)
class NoLoop:
    """The reason why there is no loop to follow."""

    obstacle: str


OVER_BATCHES = NoLoop("")
"""The loop is over batches that a loader hands out: `loop_body.py` runs those."""


@dataclass(slots=True)
class LoopIteration:
    """One iteration of a loop, with one step."""

    loop: LoopSource
    begin: IterationState
    end: IterationState | None = None
    """The state when the optimizer's step ended."""


class LoopFollower:
    """Follows a training whose steps come without a batch."""

    def __init__(self, latest: Callable[[], RecordedBatch | None]) -> None:
        """`latest` returns the last batch that was handed out."""
        self._latest = latest
        self._known: dict[tuple[CodeType, int], LoopSource | NoLoop] = {}
        self._loop: LoopSource | None = None
        self._before_batches = False
        """Whether a loop was found before the first batch was seen: it may be one over batches."""
        self._moving = MovingState()
        self._searched_frame = 0
        self._last: IterationState | None = None
        """The state when the last step ended."""
        self._last_loop: LoopSource | None = None
        self._batch_came = False
        self._failed = False
        self._own_data = False
        """Whether there was a step without a batch."""
        self.present: LoopIteration | None = None
        """The iteration of the current or last step; None: its beginning is not known."""
        self.obstacle = ""
        """Why it is not known; empty: the step has its batch."""

    def batch_came(self) -> None:
        """A batch was handed to this loop, or to another in between."""
        self._batch_came = True

    def step_begins(self) -> None:
        """The first optimizer is about to make a new step; its iteration has begun before."""
        self._own_data = self._own_data or not self._batch_came
        self._batch_came = False
        self.present = None
        if self._last is not None and self._last_loop is not None:
            self.present = LoopIteration(self._last_loop, self._last)
        self.obstacle = FIRST_ITERATION if self._own_data else ""

    def step_ended(self, frame: FrameType | None) -> None:
        """An optimizer has stepped, or its update was skipped; called from this frame."""
        self._last = None
        if self._failed:
            self.present = None
            return
        try:
            self._follow(frame)
        except Exception:  # ours, or an object that cannot be inspected: the guard goes on
            if os.environ.get("HEADWAY_STRICT") == "1":
                raise
            logger.debug("the loop cannot be followed", exc_info=True)
            self._failed, self._last, self.present = True, None, None
            self.obstacle = NO_LOOP

    def forget(self) -> None:
        """No step will be run again."""
        self._last = self.present = None

    def _follow(self, frame: FrameType | None) -> None:
        found = self._find(frame)
        if isinstance(found, NoLoop):
            self.present = None
            self.obstacle = found.obstacle if self._own_data else ""
            return
        loop, inside = found
        if id(inside) != self._searched_frame or not self._moving.is_of(inside):
            self._moving = iteration_state.find_moving_state(loop, inside)
            self._searched_frame = id(inside)
        self._last, self._last_loop = IterationState(loop, inside, self._moving), loop
        if self.present is not None and self.present.loop.same_loop(loop):
            self.present.loop, self.present.end, self.obstacle = loop, self._last, ""
        else:
            self.present = None

    def _find(self, frame: FrameType | None) -> tuple[LoopSource, FrameType] | NoLoop:
        if self._before_batches and self._latest() is not None:
            self._before_batches, self._loop = False, None
            self._known.clear()
        for loop in (self._loop, None):
            found = loop or self._look_up(frame)
            if isinstance(found, NoLoop):
                return found
            inside = frame_of(found, frame)
            if inside is not None:
                self._loop = found
                return found, inside
        return NoLoop(NO_LOOP)

    def _look_up(self, frame: FrameType | None) -> LoopSource | NoLoop:
        user = find_user_frame(frame, MAX_FRAMES)
        if user is None:
            return NoLoop(NO_LOOP)
        key = (user.f_code, user.f_lineno)
        found = self._known.get(key)
        if found is None:
            found = find_loop(frame)
            self._before_batches = self._before_batches or self._latest() is None
            if isinstance(found, LoopSource) and found.obstacle:
                found = NoLoop(found.obstacle)
            elif isinstance(found, LoopSource) and self._over_batches(found, frame):
                found = OVER_BATCHES
            if len(self._known) < MAX_STEP_LINES:
                self._known[key] = found
        return found

    def _over_batches(self, loop: LoopSource, frame: FrameType | None) -> bool:
        latest, inside = self._latest(), frame_of(loop, frame)
        if latest is None or inside is None or not isinstance(loop.node, ast.For):
            return False
        variables = read_variables(inside, loop.targets)
        return match_loop_variable(loop.node, variables, latest.batch) is not None


def frame_of(loop: LoopSource, frame: FrameType | None) -> FrameType | None:
    """The frame that is in this loop, at its step; None if another step is being made."""
    inside = find_frame(loop.code, frame, MAX_FRAMES)
    return inside if inside is not None and inside.f_lineno == loop.line else None


def frame_at(code: CodeType, line: int) -> FrameType | None:
    """The frame that runs this code now, if it is at this line."""
    inside = find_frame(code, current_frame(1), sys.maxsize)
    return inside if inside is not None and inside.f_lineno == line else None


# Reading the source of the loop.


def find_loop(frame: FrameType | None) -> LoopSource | NoLoop:
    """The innermost loop around both the backward pass and the step.

    A loop of a framework, or one over whole trainings, must not be run again.
    """
    backward_inside = False
    for candidate in _own_frames(frame):
        if candidate is None:
            return NoLoop("its loop is in an installed package")
        tree = parse_source(candidate)
        if tree is None:
            return NoLoop("the source of its loop is not available")
        function = _function_around(tree, candidate)
        loops = loops_around(function, candidate.f_lineno)
        training = next((loop for loop in loops if _calls_backward(loop.body)), None)
        if training is None and loops and (backward_inside or _calls_backward(_closures(function))):
            training = loops[0]
        if training is not None:
            return _describe_loop(candidate, training)
        backward_inside = backward_inside or _calls_backward(function)
    return NoLoop(NO_LOOP)


def _own_frames(frame: FrameType | None) -> Iterator[FrameType | None]:
    """The user's frames around a step; None where a framework has called them."""
    began = False
    for candidate in walk_callers(frame, MAX_FRAMES):
        file = candidate.f_code.co_filename
        if not is_internal_file(file):
            installed = is_installed_file(file)
            if not installed:
                yield candidate
            elif began:
                yield None
            began = began or not installed


def _describe_loop(frame: FrameType, loop: LoopNode) -> LoopSource:
    line = frame.f_lineno
    targets = bound_names([loop.target if isinstance(loop, ast.For) else loop.test])
    inside = bound_names(loop.body)
    before = [node for node in _nodes(loop.body) if getattr(node, "lineno", 1 << 30) <= line]
    return LoopSource(
        loop,
        frame.f_code,
        line,
        bound=frozenset(inside | targets),
        targets=frozenset(targets),
        carried=frozenset(read_first(loop.body) & inside),
        early=frozenset(bound_names(before)),
        obstacle=_obstacle(loop),
    )


def _obstacle(loop: LoopNode) -> str:
    if not is_liftable(loop):
        return "the body of its loop yields, awaits, or uses `nonlocal` or `super()`"
    if isinstance(loop, ast.For) and not _plain(loop.target):
        return "its loop variable is an attribute or an item of a container"
    return ""


def _plain(target: ast.expr) -> bool:
    if isinstance(target, (ast.Tuple, ast.List)):
        return all(_plain(item) for item in target.elts)
    return isinstance(target, ast.Name)


def _function_around(tree: ast.Module, frame: FrameType) -> Sequence[ast.AST]:
    """The statements of the function that the frame is a call of."""
    around = [
        node
        for node in ast.walk(tree)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        and node.name == frame.f_code.co_name
        and surrounds(node, frame.f_lineno)
    ]
    return tree.body if not around else max(around, key=lambda node: node.lineno).body


def _calls_backward(nodes: Iterable[ast.AST]) -> bool:
    return any(isinstance(n, ast.Attribute) and "backward" in n.attr for n in _nodes(nodes))


def _closures(function: Sequence[ast.AST]) -> list[ast.AST]:
    """Functions that are defined there and called later: by `optimizer.step(closure)`, say."""
    return [node for node in _nodes(function) if isinstance(node, (ast.FunctionDef, ast.Lambda))]


def _nodes(tops: Iterable[ast.AST]) -> Iterator[ast.AST]:
    for top in tops:
        yield from ast.walk(top)


# Which names an iteration reads before it binds them.


def read_first(statements: Sequence[ast.stmt]) -> set[str]:
    """Names that may be read before these statements have bound them."""
    found: set[str] = set()
    _follow(statements, set(), found)
    return found


def _follow(statements: Sequence[ast.stmt], known: set[str], found: set[str]) -> set[str]:
    """The names certainly bound after these statements; those read unbound go to `found`."""
    for one in statements:
        if isinstance(one, ast.If):
            _read([one.test], known, found)
            branches = [_follow(part, {*known}, found) for part in (one.body, one.orelse)]
            known |= branches[0] & branches[1]
        elif isinstance(one, (ast.For, ast.While)):
            first = one.iter if isinstance(one, ast.For) else one.test
            _read([first], known, found)
            inside = {*known, *(bound_names([one.target]) if isinstance(one, ast.For) else ())}
            _follow(one.body, inside, found)
            _follow(one.orelse, {*known}, found)
        elif isinstance(one, ast.With):
            _read([item.context_expr for item in one.items], known, found)
            known |= bound_names([item.optional_vars for item in one.items if item.optional_vars])
            known |= _follow(one.body, {*known}, found)
        elif isinstance(one, ast.Try):
            ways = [_follow([*one.body, *one.orelse], {*known}, found)]
            ways += [_follow(handler.body, {*known}, found) for handler in one.handlers]
            known |= set.intersection(*ways)
            known |= _follow(one.finalbody, {*known}, found)
        else:
            _read([one], known, found)
            known |= bound_names([one])
    return known


def _read(nodes: Sequence[ast.AST], known: set[str], found: set[str]) -> None:
    for node in _nodes(nodes):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id not in known:
            found.add(node.id)
        elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            found |= {node.target.id} - known
