"""The body of the user's training loop as something that can be called.

    for i, (x, y) in enumerate(guard(loader)):   # a frame of the user's, waiting for a batch
        ...                                      # this, from its source, as a function

Run this way, the step is the user's own code on their own line numbers, and yet an experiment: the
loop's counters stay where they are, an error ends the experiment and not the training, and local
variables are those of a call. Where the source is not to be had, or the body cannot be taken out of
its function (it yields, say), there is none, and the batch is given to the loop once more instead.
"""

from __future__ import annotations

import ast
import linecache
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stdout
from io import StringIO
from types import CodeType, FrameType
from typing import Any

from holdfast.torch_tools.places import is_installed, is_machinery
from holdfast.torch_tools.put_back import PutBack

VALUES = "__holdfast_values__"
FARTHEST = 12
"""Frames between the guard's iterator and the loop: tqdm and its like put one or two there."""
_UNLIFTABLE = (ast.Yield, ast.YieldFrom, ast.Await, ast.AsyncFor, ast.AsyncWith, ast.Nonlocal)
_FUTURES = 0x1FF0000
"""The flags of `from __future__ import …` in a code object."""


class LoopBody:
    """A loop's body, ready to be run over other batches."""

    def __init__(
        self, frame: FrameType, loop: ast.For, value_of: Callable[[Any, int], Any]
    ) -> None:
        self._frame = frame
        self._value_of = value_of
        used = {node.id for node in ast.walk(loop) if isinstance(node, ast.Name)}
        at_module_level = frame.f_locals is frame.f_globals
        stored = _stored(loop)
        # A module's variables are found as globals; only what the body binds must be its own.
        wanted = stored if at_module_level else used
        self._arguments = {name: v for name, v in frame.f_locals.items() if name in wanted}
        everything = {**frame.f_globals, **frame.f_locals}
        self._reachable = [everything[name] for name in sorted(used) if name in everything]
        self._function = _compile(frame, loop, list(self._arguments))

    def __call__(self, batches: Sequence[Any]) -> None:
        """Run the body once for each batch; what it prints is not printed again."""
        values = [self._value_of(batch, at - len(batches)) for at, batch in enumerate(batches)]
        with redirect_stdout(StringIO()):
            self._function(values, **self._arguments)

    def keep(self) -> PutBack:
        """What the body can reach through its variables, to be put back afterwards."""
        return PutBack(self._reachable)


def find(frame: FrameType | None, batches: Sequence[Any]) -> LoopBody | None:
    """The body of the loop that waits in this frame, or in one that called it."""
    for candidate in _users_frames(frame):
        loop = _loop_at(candidate)
        if loop is None:
            continue
        value_of = _matching(loop.target, candidate.f_locals, _stored_in_body(loop), batches)
        if value_of is None or not _liftable(loop):
            return None
        try:
            return LoopBody(candidate, loop, value_of)
        except (SyntaxError, ValueError):  # legal in its place, not in a function
            return None
    return None


def _users_frames(frame: FrameType | None) -> Iterator[FrameType]:
    for _ in range(FARTHEST):
        if frame is None:
            return
        file = frame.f_code.co_filename
        if not is_machinery(file) and not is_installed(file):
            yield frame
        frame = frame.f_back


def _loop_at(frame: FrameType) -> ast.For | None:
    """The innermost `for` statement whose iterator the frame is waiting for."""
    try:
        lines = linecache.getlines(frame.f_code.co_filename, frame.f_globals)
        tree = ast.parse("".join(lines))
    except (SyntaxError, ValueError):
        return None
    line = frame.f_lineno
    found = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.For)
        and node.iter.lineno <= line <= (node.iter.end_lineno or node.iter.lineno)
    ]
    position = _position(frame.f_code, frame.f_lasti)
    exact = [node for node in found if position == (node.iter.lineno, node.iter.col_offset)]
    chosen = exact or found
    return chosen[-1] if len(chosen) == 1 else None


def _position(code: CodeType, instruction: int) -> tuple[int | None, int | None] | None:
    positions = getattr(code, "co_positions", None)
    if positions is None:  # Python 3.10 knows lines only
        return None
    line, _, column, _ = [*positions()][instruction // 2]
    return line, column


def _liftable(loop: ast.For) -> bool:
    for node in _own_nodes(loop):
        if isinstance(node, _UNLIFTABLE):
            return False
        if isinstance(node, ast.Name) and node.id in ("super", "__class__"):
            return False
    return True


def _own_nodes(loop: ast.For) -> Iterator[ast.AST]:
    """The nodes of the body that are not in a function of their own."""
    waiting: list[ast.AST] = [loop.target, *loop.body]
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)):
            waiting.extend(ast.iter_child_nodes(node))


def _stored(loop: ast.For) -> set[str]:
    return _bound([loop.target, *loop.body])


def _stored_in_body(loop: ast.For) -> set[str]:
    return _bound(loop.body)


def _bound(nodes: Sequence[ast.AST]) -> set[str]:
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


def _matching(
    target: ast.expr, variables: Any, rebound: set[str], batches: Sequence[Any]
) -> Callable[[Any, int], Any] | None:
    """How the loop's variable comes from a batch: as it is, or counted by `enumerate`.

    Told by the variables of the last pass, those that the body has not bound to something else.
    """
    last = batches[-1]
    if _fits(target, last, variables, rebound):
        return lambda batch, before_end: batch
    if isinstance(target, ast.Tuple) and len(target.elts) == 2:
        first = target.elts[0]
        if isinstance(first, ast.Name) and first.id not in rebound:
            count = variables.get(first.id)
            if isinstance(count, int) and _fits(target.elts[1], last, variables, rebound):
                return lambda batch, before_end: (count + 1 + before_end, batch)
    return None


def _fits(target: ast.expr, value: Any, variables: Any, rebound: set[str]) -> bool:
    if isinstance(target, ast.Name):
        return target.id in rebound or variables.get(target.id) is value
    if isinstance(target, (ast.Tuple, ast.List)):
        try:
            parts = list(value) if not isinstance(value, (str, bytes)) else []
        except TypeError:
            return False
        if any(isinstance(item, ast.Starred) for item in target.elts):
            return len(parts) >= len(target.elts) - 1
        return len(parts) == len(target.elts) and all(
            _fits(item, part, variables, rebound)
            for item, part in zip(target.elts, parts, strict=True)
        )
    return True


def _compile(frame: FrameType, loop: ast.For, arguments: list[str]) -> Callable[..., None]:
    code = frame.f_code
    name = code.co_name if code.co_name.isidentifier() else "training_loop"
    again = ast.For(
        target=loop.target,
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
    module = ast.Module(body=[ast.copy_location(function, loop)], type_ignores=[])
    ast.copy_location(again, loop)
    ast.fix_missing_locations(module)
    compiled = compile(
        module, code.co_filename, "exec", flags=code.co_flags & _FUTURES, dont_inherit=True
    )
    made: dict[str, Any] = {}
    exec(compiled, frame.f_globals, made)
    result: Callable[..., None] = made[name]
    return result
