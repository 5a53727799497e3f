"""Reads the source of the loop around an optimizer step: what an iteration is, and which names it
binds.

An iteration is the body of the loop. Where that cannot be a function, because it yields or draws
from an iterator, or where there is no loop statement (a comprehension, `map`, recursion), it is the
part around the step that can: the rest of the body, or the function that computes the gradients
and steps. What the other part has computed is still in the variables of the frame.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from types import CodeType, FrameType
from typing import NamedTuple

from torch import Tensor

from headway.rerun.strategies.lifted_body import (
    LoopNode,
    all_loops_around,
    bound_names,
    is_liftable,
    loop_target,
    loops_around,
    own_nodes,
    parse_source,
    read_variables,
    surrounds,
    used_names,
)
from headway.torch_adapters.frames import is_installed_file, is_internal_file, walk_callers

MAX_FRAMES = 24
"""Maximum number of frames between the optimizer's hook and the loop: a scaler, a framework's
wrapper, a few calls of the user's code."""
NO_LOOP = "no loop was found around it"
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_EXPRESSIONS = frozenset(("<genexpr>", "<listcomp>", "<setcomp>", "<dictcomp>", "<lambda>"))
_MANY_CALLS = frozenset(("map", "starmap", "reduce", "filter", "accumulate"))
_Block = ast.For | ast.While | ast.AsyncFor | ast.FunctionDef | ast.AsyncFunctionDef


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
    part: bool = False
    """Only a part of an iteration: the results of the earlier part are in the frame, and only while
    the frame is at its step."""
    used: frozenset[str] = frozenset()
    """Of a part of a loop, the names in its whole body."""
    passed: frozenset[str] = frozenset()
    """Of a function, its arguments: others at each call."""

    def same_loop(self, other: LoopSource) -> bool:
        """Whether the other is the same loop, perhaps at another of its steps."""
        mine, theirs = self.node, other.node
        same_place = (mine.lineno, mine.col_offset) == (theirs.lineno, theirs.col_offset)
        return self.code is other.code and same_place and self.part == other.part

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


# Finding it.


def find_loop(frame: FrameType | None) -> LoopSource | NoLoop:
    """The innermost loop around both the backward pass and the step.

    A loop of a framework, or one over whole trainings, must not be run again.
    """
    backward_inside, called = False, set[CodeType]()
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
            if backward_inside and _steps_often(training, candidate.f_lineno):
                return NoLoop(NO_LOOP)
            return _describe_loop(candidate, training)
        if candidate.f_code in called or candidate.f_code.co_name in _EXPRESSIONS:
            return NoLoop(NO_LOOP)  # recursion, or a comprehension: a loop outside has many steps
        called.add(candidate.f_code)
        backward_inside = backward_inside or _calls_backward(function)
    return NoLoop(NO_LOOP)


def _steps_often(loop: LoopNode, line: int) -> bool:
    """Whether the statement of a loop that calls the step's function may do so many times."""
    for node in _nodes(one for one in loop.body if surrounds(one, line)):
        if isinstance(node, _COMPREHENSIONS) and surrounds(node, line):
            return True
        if isinstance(node, ast.Call) and surrounds(node, line):
            name = node.func.id if isinstance(node.func, ast.Name) else ""
            name = node.func.attr if isinstance(node.func, ast.Attribute) else name
            if name in _MANY_CALLS:
                return True
    return False


def find_part(frame: FrameType | None, avoid: frozenset[str] = frozenset()) -> LoopSource | None:
    """The statements around forward, backward and step that can be run once more, without those
    that use one of the names to `avoid`."""
    for depth, candidate in enumerate(_own_frames(frame)):
        tree = None if candidate is None else parse_source(candidate)
        if candidate is None or tree is None:
            return None
        if candidate.f_code.co_name in _EXPRESSIONS:
            continue  # its variables are its own
        function = _definition(tree, candidate)
        blocks: list[_Block] = [*all_loops_around(function or tree, candidate.f_lineno)]
        for block in [*blocks, function] if function is not None else blocks:
            found = _describe_part(candidate, block, avoid, closures=depth == 0)
            if found is not None:
                return found
        if blocks:
            return None  # outside of the loop are whole trainings
    return None


class RestOfFrame(NamedTuple):
    """What a frame runs after the step."""

    frame: FrameType
    node: LoopNode
    counters: frozenset[str]
    """The variables of its loop, if that is the one which ends here."""


def find_rest(frame: FrameType | None, *, after_loop: bool = False) -> list[RestOfFrame]:
    """What runs after the step until the body of its loop ends: the statements of each frame, from
    the innermost on. Empty if there is no such loop, or they cannot run outside of it.

    `after_loop`: instead, what runs after that loop in its function or in the loop around it.
    """
    found: list[RestOfFrame] = []
    for candidate in _own_frames(frame):
        tree = None if candidate is None else parse_source(candidate)
        if candidate is None or tree is None or candidate.f_code.co_name in _EXPRESSIONS:
            return found
        function, line = _definition(tree, candidate), candidate.f_lineno
        loops = all_loops_around(function or tree, line)
        blocks: list[_Block] = [*loops, *([] if function is None else [function])]
        block = next(iter(blocks[1:] if loops and after_loop else blocks), None)
        if block is None:
            return [] if after_loop else found
        rest = [one for one in block.body if one.lineno > line]
        if not is_liftable(rest):
            return []
        if rest:
            again = ast.While(test=ast.Constant(True), body=rest, orelse=[])
            ends = loops[0] if loops and not after_loop else None
            target = [] if ends is None or isinstance(ends, ast.While) else [ends.target]
            names = frozenset(bound_names(target))
            found.append(RestOfFrame(candidate, ast.copy_location(again, rest[0]), names))
        if loops:
            return found
    return found


def _describe_part(
    frame: FrameType, block: _Block, avoid: frozenset[str], *, closures: bool
) -> LoopSource | None:
    at = next((n for n, one in enumerate(block.body) if surrounds(one, frame.f_lineno)), None)
    if at is None:
        return None
    first = at + 1
    while first > 0 and _can_run(block.body[first - 1], avoid):
        first -= 1
    body = block.body[first : at + 1]
    # A closure is called by the step itself.
    inside = any(map(_is_backward, own_nodes(body)))
    inside = inside or (closures and _calls_backward(_closures(block.body)))
    if not body or not inside or _reads_graph(body, frame):
        return None
    again = ast.While(test=ast.Constant(True), body=body, orelse=[])
    found = _describe_loop(frame, ast.copy_location(again, block))
    if isinstance(block, _DEFINITIONS):
        return replace(found, part=True, passed=_arguments(block))
    used = frozenset(used_names(block.body))
    return replace(found, part=True, used=used, bound=found.bound | bound_names(block.body))


def _reads_graph(body: Sequence[ast.stmt], frame: FrameType) -> bool:
    """Whether they use the result of an earlier forward pass."""
    given = read_variables(frame, frozenset(read_first(body)))
    return any(isinstance(value, Tensor) and value.grad_fn is not None for value in given.values())


def _can_run(statement: ast.stmt, avoid: frozenset[str]) -> bool:
    return is_liftable([statement]) and avoid.isdisjoint(used_names([statement]))


def _arguments(function: _Block) -> frozenset[str]:
    """Names of its arguments; a method's object is the same at each call."""
    assert isinstance(function, _DEFINITIONS)
    names = [node.arg for node in ast.walk(function.args) if isinstance(node, ast.arg)]
    return frozenset(names) - {"self", "cls"}


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
    # Of a statement around the step, a part may run after it: `finally`, the rest of a `with`.
    before = [node for node in _nodes(loop.body) if getattr(node, "lineno", 1 << 30) <= line]
    before = [node for node in before if (getattr(node, "end_lineno", 0) or 0) <= line]
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
    if not is_liftable([loop_target(loop), *loop.body]):
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
    found = _definition(tree, frame)
    return tree.body if found is None else found.body


def _definition(
    tree: ast.Module, frame: FrameType
) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    """The function that the frame is a call of; None for a module, a comprehension or a lambda."""
    around = [
        node
        for node in ast.walk(tree)
        if isinstance(node, _DEFINITIONS)
        and node.name == frame.f_code.co_name
        and surrounds(node, frame.f_lineno)
    ]
    return max(around, key=lambda node: node.lineno) if around else None


def _calls_backward(nodes: Iterable[ast.AST]) -> bool:
    return any(map(_is_backward, _nodes(nodes)))


def _is_backward(node: ast.AST) -> bool:
    """`loss.backward`, `manual_backward`, `torch.autograd.grad`."""
    if not isinstance(node, ast.Attribute):
        return False
    of = node.value.attr if isinstance(node.value, ast.Attribute) else ""
    of = node.value.id if isinstance(node.value, ast.Name) else of
    return "backward" in node.attr or (of, node.attr) == ("autograd", "grad")


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
