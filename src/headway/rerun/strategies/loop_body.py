"""Turns the body of the user's `for` loop into a function that runs a step again."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from headway.torch_adapters.frames import is_user_frame, walk_callers
from headway.torch_adapters.runtime_state import compiled_code_runs
from headway.torch_adapters.saved_state import ObjectSnapshot
from headway.torch_adapters.source import compile_function

# What a `for` loop binds at every turn, and where in it the batch is.

#     for i, (x, y) in enumerate(guard(loader)):         # (a count, the batch)
#     for batch, weight in zip(guard(loader), weights):  # (the batch, something beside it)

# Told by the present variables: those that the body does not bind to something else still are what
# the loop bound.


@dataclass(frozen=True, slots=True)
class LoopVariable:
    """The target of a loop."""

    target: ast.expr
    batch: ast.expr
    """The part of it that is the batch."""
    variables: Mapping[str, Any]
    count: str | None
    """The name that `enumerate` counts in."""

    @property
    def beside(self) -> bool:
        """Whether something other than a count is drawn along with the batch."""
        return any(
            node.id != self.count for node in _names(self.target) if not _within(node, self.batch)
        )

    def holding(self, batch: Any, age: int) -> Any:
        """What the loop would bind for a batch that came so many before the latest."""
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
    """How the loop comes by its batch; None if it is not over batches."""
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


def bound_names(nodes: Sequence[ast.AST]) -> set[str]:
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


# The body of the user's training loop as something that can be called.

#     for i, (x, y) in enumerate(guard(loader)):   # a frame of the user's, in this loop
#         ...                                      # this, from its source, as a function

# Run this way, the step is the user's own code on their own line numbers, and yet an experiment:
# the loop's counters stay where they are, an error ends the experiment and not the training, and
# local variables are those of a call. Where the source is not to be had, or the body cannot be
# taken out of its function (it yields, say), there is none, and the batch is given to the loop
# once more instead.

VALUES = "__headway_values__"
TURN = "__headway_turn__"
NOT_A_LOOP_OVER_BATCHES = "its loop draws the batches by hand, not by a `for` over them"
MAX_FRAMES = 12
"""Frames between the guard's iterator and the loop: tqdm and its like put one or two there."""
_UNLIFTABLE = (ast.Yield, ast.YieldFrom, ast.Await, ast.AsyncFor, ast.AsyncWith, ast.Nonlocal)


class LoopBody:
    """A loop's body, ready to be run over other batches."""

    def __init__(
        self, frame: FrameType, loop: ast.For, variable: LoopVariable, ages: Sequence[int]
    ) -> None:
        self._variable = variable
        self._ages = ages
        named = used_names([loop])
        at_module_level = frame.f_locals is frame.f_globals
        stored = bound_names([loop.target, *loop.body])
        # A module's variables are found as globals; only what the body binds must be its own.
        wanted = stored if at_module_level else named
        self._arguments = {name: v for name, v in frame.f_locals.items() if name in wanted}
        everything = {**frame.f_globals, **frame.f_locals}
        reached = [everything[name] for name in sorted(used_names(loop.body)) if name in everything]
        self._reachable = [item for item in reached if not is_headway_object(item)]
        self._function = compile_body(frame, loop, list(self._arguments))

    def __call__(self, batches: Sequence[Any]) -> None:
        """Run the body once for each batch."""
        ages = self._ages if len(self._ages) == len(batches) else [0] * len(batches)
        values = [
            self._variable.holding(batch, age) for batch, age in zip(batches, ages, strict=True)
        ]
        self._function(values, **self._arguments)

    def keep(self, trained: Sequence[nn.Module], *, tensors: bool) -> ObjectSnapshot:
        """What the body can reach through its variables, to be put back afterwards.

        The tensors of the models that are trained are put back by whoever holds their updates;
        `tensors`: all others are to be copied, for nobody sees what is written to them.
        """
        return ObjectSnapshot(self._reachable, trained, tensors=tensors)


@dataclass(frozen=True, slots=True)
class FoundLoop:
    """How a step can be run again in a loop."""

    body: LoopBody | None = None
    again: bool = False
    """The loop may be given its batch once more: nothing else is drawn along with it."""


def find_loop_body(frame: FrameType | None, latest: Any, ages: Sequence[int]) -> FoundLoop:
    """The training loop that this frame is in, or one that called it.

    `latest` is the batch the loop has now; `ages`: how many batches before it those came that the
    body will be run over.
    """
    handed_on: FoundLoop | None = None
    for candidate in user_frames(frame):
        loops = _loops_at(candidate)
        if loops is None:
            return handed_on or FoundLoop(
                again=True
            )  # no source: most loops are over the loader alone
        for loop in loops:
            variable = match_loop_variable(loop, candidate.f_locals, latest)
            if variable is None or (variable.beside and any(ages)):
                continue
            if not is_liftable(loop):
                found = FoundLoop(again=not variable.beside)
                if not _yields(loop):
                    return found
                handed_on = handed_on or found  # a generator in between: who trains may be behind
                break
            try:
                return FoundLoop(LoopBody(candidate, loop, variable, ages))
            except (SyntaxError, ValueError):  # legal in its place, not in a function
                return FoundLoop(again=not variable.beside)
    return handed_on or FoundLoop()


def find_loop_of(case: RerunCase) -> FoundLoop:
    """The loop of a bad step that has batches; looked for once."""
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
            return Readiness(why_not=NOT_A_LOOP_OVER_BATCHES)
        self._undo = found.body.keep(case.host.models, tensors=compiled_code_runs())
        return CAN

    def run(self, batches: Sequence[Any]) -> tuple[()]:
        body = find_loop_of(self._case).body
        assert body is not None
        body(batches)
        return ()


def user_frames(frame: FrameType | None, farthest: int = MAX_FRAMES) -> Iterator[FrameType]:
    """The frames of the user's own code, from this one outwards."""
    return filter(is_user_frame, walk_callers(frame, farthest))


def source_file(frame: FrameType) -> ast.Module | None:
    """The file that the frame's code is from; None where it is not to be had."""
    try:
        lines = linecache.getlines(frame.f_code.co_filename, frame.f_globals)
        return ast.parse("".join(lines)) if lines else None
    except (SyntaxError, ValueError):
        return None


def _loops_at(frame: FrameType) -> list[ast.For] | None:
    """The `for` statements that the frame is in, innermost first; None without source."""
    tree = source_file(frame)
    if tree is None:
        return None
    found = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.For)
        and node.lineno <= frame.f_lineno <= (node.end_lineno or node.lineno)
    ]
    return sorted(found, key=lambda node: -node.lineno)


def is_liftable(loop: ast.For | ast.While) -> bool:
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


def used_names(nodes: Sequence[ast.AST]) -> set[str]:
    """Every name in there."""
    return {node.id for top in nodes for node in ast.walk(top) if isinstance(node, ast.Name)}


def is_headway_object(value: Any) -> bool:
    """Whether it is one of our own objects: a guard among the loop's variables."""
    return type(value).__module__.startswith("headway.")


def compile_body(
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
    ast.copy_location(function, loop)
    ast.copy_location(again, loop)
    return compile_function(function, code, frame.f_globals)
