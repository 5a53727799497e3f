"""The body of the user's training loop as something that can be called.

    for i, (x, y) in enumerate(guard(loader)):   # a frame of the user's, in this loop
        ...                                      # this, from its source, as a function

Run this way, the step is the user's own code on their own line numbers, and yet an experiment: the
loop's counters stay where they are, an error ends the experiment and not the training, and local
variables are those of a call. Where the source is not to be had, or the body cannot be taken out of
its function (it yields, say), there is none, and the batch is given to the loop once more instead.
"""

from __future__ import annotations

import ast
import linecache
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from types import FrameType, FunctionType
from typing import Any

from torch import nn

from headway.live import loop_variable
from headway.live.loop_variable import LoopVariable, bound_in
from headway.torch_tools.places import is_installed, is_machinery
from headway.torch_tools.put_back import PutBack

VALUES = "__headway_values__"
TURN = "__headway_turn__"
FARTHEST = 12
"""Frames between the guard's iterator and the loop: tqdm and its like put one or two there."""
_UNLIFTABLE = (ast.Yield, ast.YieldFrom, ast.Await, ast.AsyncFor, ast.AsyncWith, ast.Nonlocal)
_FUTURES = 0x1FF0000
"""The flags of `from __future__ import …` in a code object."""


class LoopBody:
    """A loop's body, ready to be run over other batches."""

    def __init__(
        self, frame: FrameType, loop: ast.For, variable: LoopVariable, ages: Sequence[int]
    ) -> None:
        self._variable = variable
        self._ages = ages
        named = used([loop])
        at_module_level = frame.f_locals is frame.f_globals
        stored = bound_in([loop.target, *loop.body])
        # A module's variables are found as globals; only what the body binds must be its own.
        wanted = stored if at_module_level else named
        self._arguments = {name: v for name, v in frame.f_locals.items() if name in wanted}
        everything = {**frame.f_globals, **frame.f_locals}
        reached = [everything[name] for name in sorted(used(loop.body)) if name in everything]
        self._reachable = [item for item in reached if not is_ours(item)]
        self._function = compiled(frame, loop, list(self._arguments))

    def __call__(self, batches: Sequence[Any]) -> None:
        """Run the body once for each batch; what it prints is not printed again."""
        ages = self._ages if len(self._ages) == len(batches) else [0] * len(batches)
        values = [
            self._variable.holding(batch, age) for batch, age in zip(batches, ages, strict=True)
        ]
        with redirect_stdout(StringIO()), without_logs():
            self._function(values, **self._arguments)

    def keep(self, trained: Sequence[nn.Module], *, tensors: bool) -> PutBack:
        """What the body can reach through its variables, to be put back afterwards.

        The tensors of the models that are trained are put back by whoever holds their updates;
        `tensors`: all others are to be copied, for nobody sees what is written to them.
        """
        return PutBack(self._reachable, trained, tensors=tensors)


@contextmanager
def without_logs() -> Iterator[None]:
    """What was logged once is not logged again."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


@dataclass(frozen=True, slots=True)
class Found:
    """How a step can be run again in a loop."""

    body: LoopBody | None = None
    again: bool = False
    """The loop may be given its batch once more: nothing else is drawn along with it."""


def find(frame: FrameType | None, latest: Any, ages: Sequence[int]) -> Found:
    """The training loop that this frame is in, or one that called it.

    `latest` is the batch the loop has now; `ages`: how many batches before it those came that the
    body will be run over.
    """
    handed_on: Found | None = None
    for candidate in users_frames(frame):
        loops = _loops_at(candidate)
        if loops is None:
            return handed_on or Found(again=True)  # no source: most loops are over the loader alone
        for loop in loops:
            variable = loop_variable.match(loop, candidate.f_locals, latest)
            if variable is None or (variable.beside and any(ages)):
                continue
            if not liftable(loop):
                found = Found(again=not variable.beside)
                if not _yields(loop):
                    return found
                handed_on = handed_on or found  # a generator in between: who trains may be behind
                break
            try:
                return Found(LoopBody(candidate, loop, variable, ages))
            except (SyntaxError, ValueError):  # legal in its place, not in a function
                return Found(again=not variable.beside)
    return handed_on or Found()


def users_frames(frame: FrameType | None, farthest: int = FARTHEST) -> Iterator[FrameType]:
    """The frames of the user's own code, from this one outwards."""
    for _ in range(farthest):
        if frame is None:
            return
        file = frame.f_code.co_filename
        if not is_machinery(file) and not is_installed(file):
            yield frame
        frame = frame.f_back


def source_of(frame: FrameType) -> ast.Module | None:
    """The file that the frame's code is from; None where it is not to be had."""
    try:
        lines = linecache.getlines(frame.f_code.co_filename, frame.f_globals)
        return ast.parse("".join(lines)) if lines else None
    except (SyntaxError, ValueError):
        return None


def _loops_at(frame: FrameType) -> list[ast.For] | None:
    """The `for` statements that the frame is in, innermost first; None without source."""
    tree = source_of(frame)
    if tree is None:
        return None
    found = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.For)
        and node.lineno <= frame.f_lineno <= (node.end_lineno or node.lineno)
    ]
    return sorted(found, key=lambda node: -node.lineno)


def liftable(loop: ast.For | ast.While) -> bool:
    """Whether its body can be a function of its own."""
    for node in _own_nodes(loop):
        if isinstance(node, _UNLIFTABLE):
            return False
        if isinstance(node, ast.Name) and node.id in ("super", "__class__"):
            return False
    return True


def _yields(loop: ast.For) -> bool:
    return any(isinstance(node, (ast.Yield, ast.YieldFrom)) for node in _own_nodes(loop))


def _own_nodes(loop: ast.For | ast.While) -> Iterator[ast.AST]:
    """The nodes of the body that are not in a function of their own."""
    waiting: list[ast.AST] = [_target(loop), *loop.body]
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)):
            waiting.extend(ast.iter_child_nodes(node))


def _target(loop: ast.For | ast.While) -> ast.expr:
    """What the loop binds at every turn; a `while` gets a variable that nobody reads."""
    return loop.target if isinstance(loop, ast.For) else ast.Name(TURN, ast.Store())


def used(nodes: Sequence[ast.AST]) -> set[str]:
    """Every name in there."""
    return {node.id for top in nodes for node in ast.walk(top) if isinstance(node, ast.Name)}


def is_ours(value: Any) -> bool:
    """Whether it is one of our own objects: a guard among the loop's variables."""
    return type(value).__module__.startswith("headway.")


def compiled(
    frame: FrameType, loop: ast.For | ast.While, arguments: list[str]
) -> Callable[..., None]:
    """The loop's body as a function of what the loop binds at every turn, and of these."""
    code = frame.f_code
    name = code.co_name if code.co_name.isidentifier() else "training_loop"
    again = ast.For(
        target=_target(loop),
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
    built = compile(
        module, code.co_filename, "exec", flags=code.co_flags & _FUTURES, dont_inherit=True
    )
    made: dict[str, Any] = {}
    exec(built, frame.f_globals, made)
    result: FunctionType = made[name]
    result.__code__ = result.__code__.replace(co_name=code.co_name)  # `<module>`, where it is one
    return result
