"""Reads the source of a training loop that makes its own data.

    for step in range(steps):        while step < steps:
        x, y = get_batch(step)           step += 1
        ...                              ...
        optimizer.step()                 optimizer.step()

No loader says when a turn begins. What is known is the frame that called `optimizer.step()`, and so
the loop that it is in, the variables that a turn binds, and those that it carries into the next.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import CodeType, FrameType

from headway.rerun.strategies import loop_body
from headway.rerun.strategies.loop_body import bound_names
from headway.torch_adapters.frames import (
    current_frame,
    find_frame,
    is_installed_file,
    is_internal_file,
    walk_callers,
)

LoopNode = ast.For | ast.While
MAX_FRAMES = 24
"""Frames between the optimizer's hook and the loop: a scaler, a framework's wrapper, a few calls of
the user's own."""


NO_LOOP = "no loop was found around it"


@dataclass(frozen=True, slots=True)
class LoopSource:
    """The loop that a step was made in."""

    node: LoopNode
    code: CodeType
    line: int
    """Where its body comes to the optimizer's step."""
    bound: frozenset[str]
    """Names that a turn binds, those of the loop itself included."""
    targets: frozenset[str]
    """Of these, the ones that the loop itself binds."""
    carried: frozenset[str]
    """Of these, the ones whose value a turn may take over from the one before."""
    early: frozenset[str]
    """Of these, the ones that are bound before the step is made."""
    obstacle: str = ""
    """Why its body cannot be run apart from it; empty: it can."""

    def same_loop(self, other: LoopSource) -> bool:
        """Whether the other is the same loop, come to another of its steps perhaps."""
        mine, theirs = self.node, other.node
        same_place = (mine.lineno, mine.col_offset) == (theirs.lineno, theirs.col_offset)
        return self.code is other.code and same_place

    def in_order(self, names: Iterable[str]) -> list[str]:
        """These names as a turn binds them, one after the other."""
        first: dict[str, int] = {}
        for node in _nodes(self.node.body):
            if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
                first[node.id] = min(node.lineno, first.get(node.id, node.lineno))
        return sorted(names, key=lambda name: first.get(name, 0))


@dataclass(frozen=True, slots=True)
class NoLoop:
    """There is none, and why."""

    obstacle: str


def frame_of(loop: LoopSource, frame: FrameType | None) -> FrameType | None:
    """The frame that is in this loop, at its step; None if another step is being made."""
    inside = find_frame(loop.code, frame, MAX_FRAMES)
    return inside if inside is not None and inside.f_lineno == loop.line else None


def frame_at(code: CodeType, line: int) -> FrameType | None:
    """The frame that runs this code now, if it is at this line."""
    inside = find_frame(code, current_frame(1), sys.maxsize)
    return inside if inside is not None and inside.f_lineno == line else None


def find_loop(frame: FrameType | None) -> LoopSource | NoLoop:
    """The loop that a step, made at this moment, is a turn of.

    It is the innermost around both the backward pass and the step: one of a framework's, or one
    over whole trainings, is not to be run again.
    """
    gone_back = False
    for candidate in _own_frames(frame):
        if candidate is None:
            return NoLoop("its loop is in an installed package")
        tree = loop_body.source_file(candidate)
        if tree is None:
            return NoLoop("the source of its loop is not to be had")
        loops = _loops_around(tree, candidate)
        training = next((loop for loop in loops if _goes_back(loop.body)), None)
        function = _function_around(tree, candidate)
        if training is None and loops and (gone_back or _goes_back(_closures(function))):
            training = loops[0]
        if training is not None:
            return _describe_loop(candidate, training)
        gone_back = gone_back or _goes_back(function)
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
    itself: list[ast.AST] = [loop.target] if isinstance(loop, ast.For) else [loop.test]
    targets = bound_names(itself)
    inside = bound_names(loop.body)
    return LoopSource(
        loop,
        frame.f_code,
        line,
        frozenset(inside | targets),
        frozenset(targets),
        frozenset(read_first(loop.body) & inside),
        frozenset(bound_names([node for node in _nodes(loop.body) if _line(node) <= line])),
        _obstacle(loop),
    )


def _obstacle(loop: LoopNode) -> str:
    if not loop_body.is_liftable(loop):
        return "the body of its loop yields, awaits, or uses `nonlocal` or `super()`"
    if isinstance(loop, ast.For) and not _plain(loop.target):
        return "its loop binds something else than plain variables"
    return ""


def _plain(target: ast.expr) -> bool:
    if isinstance(target, (ast.Tuple, ast.List)):
        return all(_plain(item) for item in target.elts)
    return isinstance(target, ast.Name)


def _loops_around(tree: ast.Module, frame: FrameType) -> list[LoopNode]:
    """Innermost first, and of the frame's own function alone."""
    scope = _function_around(tree, frame)
    found = [
        node
        for top in scope
        for node in ast.walk(top)
        if isinstance(node, (ast.For, ast.While)) and _surrounds(node, frame.f_lineno)
    ]
    return sorted(found, key=lambda node: -node.lineno)


def _function_around(tree: ast.Module, frame: FrameType) -> Sequence[ast.AST]:
    """The statements of the function that the frame is a call of."""
    around = [
        node
        for node in ast.walk(tree)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        and node.name == frame.f_code.co_name
        and _surrounds(node, frame.f_lineno)
    ]
    return tree.body if not around else max(around, key=lambda node: node.lineno).body


def _surrounds(node: ast.stmt, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or node.lineno)


def _goes_back(nodes: Iterable[ast.AST]) -> bool:
    """Whether a backward pass is asked for there."""
    return any(isinstance(n, ast.Attribute) and "backward" in n.attr for n in _nodes(nodes))


def _closures(function: Sequence[ast.AST]) -> list[ast.AST]:
    """What is defined there to be called later: by `optimizer.step(closure)`, say."""
    return [node for node in _nodes(function) if isinstance(node, (ast.FunctionDef, ast.Lambda))]


def _nodes(tops: Iterable[ast.AST]) -> Iterator[ast.AST]:
    for top in tops:
        yield from ast.walk(top)


def _line(node: ast.AST) -> int:
    return getattr(node, "lineno", 1 << 30)


# Which names a turn reads before it binds them.


def read_first(statements: Sequence[ast.stmt]) -> set[str]:
    """Names that may be read before these statements have bound them."""
    found: set[str] = set()
    _follow(statements, set(), found)
    return found


def _follow(statements: Sequence[ast.stmt], known: set[str], found: set[str]) -> set[str]:
    """What is certainly bound after these statements; what was read unbound goes to `found`."""
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
