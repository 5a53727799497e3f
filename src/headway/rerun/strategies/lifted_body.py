"""Compiles the body of the user's loop into a function that can be called.

    for i, (x, y) in enumerate(guard(loader)):   # a frame of the user is in this loop
        ...                                      # this becomes a function, from its source

The function runs the user's own code with the user's line numbers. But the loop's counters stay
where they are, an error ends the call and not the training, and local variables are those of the
call.
"""

from __future__ import annotations

import ast
import linecache
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import FrameType
from typing import Any

from torch import nn

from headway.torch_adapters.frames import is_user_frame, walk_callers
from headway.torch_adapters.saved_state import ObjectSnapshot
from headway.torch_adapters.source import compile_function

LoopNode = ast.For | ast.While
VALUES = "__headway_values__"
ITERATION = "__headway_iteration__"
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
_UNLIFTABLE = (ast.Yield, ast.YieldFrom, ast.Await, ast.AsyncFor, ast.AsyncWith, ast.Nonlocal)
_OPTIMIZED = 0x1
"""The flag of a code object whose variables are not kept in a dict."""
_COPIED_LOCALS = sys.version_info < (3, 13)
_UNSHARED = 3
"""Number of references to a frame's copy of its variables if nothing else holds it."""


class LiftedBody:
    """The body of a loop as a function of what the loop binds at each iteration."""

    def __init__(
        self, frame: FrameType, loop: LoopNode, changed: Mapping[str, Any] | None = None
    ) -> None:
        """`changed`: variables that do not have the frame's values.

        Raises SyntaxError or ValueError if the body is not valid as a function.
        """
        at_module_level = frame.f_locals is frame.f_globals
        itself = loop.target if isinstance(loop, ast.For) else loop.test
        # The variables of a module are globals; only those that the body binds must be its own.
        names = bound_names([itself, *loop.body]) if at_module_level else used_names([loop])
        values = {**read_variables(frame, frozenset(names)), **(changed or {})}
        self.arguments = {name: value for name, value in values.items() if name in names}
        used = frozenset(used_names(loop.body))
        reached = {**frame.f_globals, **read_variables(frame, used)}
        self._reachable = [
            reached[name]
            for name in sorted(used & reached.keys())
            if not is_headway_object(reached[name])
        ]
        self._function = _compile_body(frame, loop, list(self.arguments))
        self.code = self._function.__code__

    def __call__(self, values: Iterable[Any]) -> None:
        """Run the body once for each of these values of the loop variable."""
        self._function(values, **self.arguments)

    def save_reachable(self, trained: Sequence[nn.Module], *, tensors: bool) -> ObjectSnapshot:
        """Save what the body can reach through its variables; call the result to restore it.

        The sandbox restores the tensors of the trained models. `tensors`: all others are copied,
        because the sandbox does not see what compiled code writes.
        """
        return ObjectSnapshot(self._reachable, trained, tensors=tensors)


def read_variables(frame: FrameType, names: frozenset[str]) -> dict[str, Any]:
    """Some variables of a frame, without a reference to the others.

    Python before 3.13 returns a copy that it keeps: every tensor in it would live a step longer.
    """
    variables = frame.f_locals
    found = {name: variables[name] for name in names if name in variables}
    copied = _COPIED_LOCALS and frame.f_code.co_flags & _OPTIMIZED
    if copied and sys.getrefcount(variables) <= _UNSHARED:  # otherwise the user holds `locals()`
        variables.clear()
    return found


def user_frames(frame: FrameType | None, farthest: int) -> Iterator[FrameType]:
    """The frames of the user's own code, from this one outwards."""
    return filter(is_user_frame, walk_callers(frame, farthest))


def parse_source(frame: FrameType) -> ast.Module | None:
    """The file of the frame's code; None if its source is not available."""
    try:
        lines = linecache.getlines(frame.f_code.co_filename, frame.f_globals)
        return ast.parse("".join(lines)) if lines else None
    except (SyntaxError, ValueError):
        return None


def loops_around(nodes: Iterable[ast.AST], line: int) -> list[LoopNode]:
    """The loops among these statements that the line is in, innermost first."""
    found = [
        node
        for top in nodes
        for node in ast.walk(top)
        if isinstance(node, (ast.For, ast.While)) and surrounds(node, line)
    ]
    return sorted(found, key=lambda node: -node.lineno)


def all_loops_around(top: ast.AST, line: int) -> list[LoopNode | ast.AsyncFor]:
    """The same, `async for` included."""
    waiting = [node for node in ast.walk(top) if isinstance(node, ast.AsyncFor)]
    found = [*loops_around([top], line), *(node for node in waiting if surrounds(node, line))]
    return sorted(found, key=lambda node: -node.lineno)


def surrounds(node: ast.stmt | ast.expr, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or node.lineno)


def is_liftable(nodes: Iterable[ast.AST]) -> bool:
    """Whether they can be the body of a function."""
    return not any(
        isinstance(node, _UNLIFTABLE)
        or (isinstance(node, ast.Name) and node.id in ("super", "__class__"))
        for node in own_nodes(nodes)
    )


def own_nodes(nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """These nodes and those within them that are not in a function of their own."""
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, _FUNCTIONS):
            waiting.extend(ast.iter_child_nodes(node))


def used_names(nodes: Iterable[ast.AST]) -> set[str]:
    """Every name in these statements."""
    return {node.id for top in nodes for node in ast.walk(top) if isinstance(node, ast.Name)}


def bound_names(nodes: Iterable[ast.AST]) -> set[str]:
    """Every name that these statements bind."""
    found = set()
    for top in nodes:
        for node in ast.walk(top):
            if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
                found.add(node.id)
            elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                found.add(node.name)
            elif isinstance(node, ast.alias):
                found.add((node.asname or node.name).split(".")[0])
            elif isinstance(node, ast.ExceptHandler) and node.name:
                found.add(node.name)
    return found


def is_headway_object(value: Any) -> bool:
    """Whether it is one of our own objects: a guard among the loop's variables."""
    return type(value).__module__.startswith("headway.")


def loop_target(loop: LoopNode) -> ast.expr:
    """What the loop binds at each iteration; a `while` gets a variable that nothing reads."""
    return loop.target if isinstance(loop, ast.For) else ast.Name(ITERATION, ast.Store())


def _compile_body(frame: FrameType, loop: LoopNode, arguments: list[str]) -> Callable[..., None]:
    code = frame.f_code
    name = code.co_name if code.co_name.isidentifier() else "training_loop"
    again = ast.For(
        target=loop_target(loop),
        iter=ast.Name(VALUES, ast.Load()),
        body=loop.body,
        orelse=[],
        type_comment=None,
    )
    signature = ast.arguments(
        posonlyargs=[],
        args=[ast.arg(VALUES), *[ast.arg(argument) for argument in arguments]],
        kwonlyargs=[],
        kw_defaults=[],
        defaults=[],
    )
    # Newer Pythons ask for type parameters, older ones do not know them.
    more: dict[str, Any] = {"type_params": []} if "type_params" in ast.FunctionDef._fields else {}
    function = ast.FunctionDef(
        name=name, args=signature, body=[again], decorator_list=[], returns=None, **more
    )
    ast.copy_location(function, loop)
    ast.copy_location(again, loop)
    return compile_function(function, code, frame.f_globals)
