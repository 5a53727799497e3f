"""Finds lines in the user's source: of a call, in a collate function, in a traceback, and lines
that seed.
"""

from __future__ import annotations

import ast
import inspect
import linecache
import math
import re
import textwrap
import traceback
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from headway.preflight.script_context import ScriptContext
from headway.torch_adapters.frames import (
    Location,
    add_function_name,
    find_user_location,
    is_installed_file,
    is_internal_file,
)

# Looking a line up in a user's own collate function: where it takes a sample, where it scales.


def find_batch_functions(loader: Any) -> tuple[Any, ...]:
    """The functions of a loader that make a batch: its collate function, and `__getitem__`."""
    collate = getattr(loader, "collate_fn", None)
    collate = getattr(collate, "data_collator", collate)  # transformers' Trainer wraps it
    data: Any = getattr(loader, "dataset", None)
    while type(data).__module__.startswith("torch.") and hasattr(data, "dataset"):
        data = data.dataset  # a Subset
    return tuple(item for item in (collate, getattr(data, "__getitem__", None)) if item is not None)


def find_taking_line(function: Any) -> dict[str, Any] | None:
    """The line that takes one sample out of many (`rows[0]`), or where the function begins."""
    return _find_collate_line(function, _takes_one) or _find_collate_line(
        function, lambda node: True
    )


def find_scaling_line(function: Any) -> dict[str, Any] | None:
    """The first line that divides or multiplies."""
    return _find_collate_line(function, _scales)


def find_converting_line(function: Any) -> dict[str, Any] | None:
    """The first line that turns stored numbers into floats: `torch.from_numpy(x).float()`."""
    return _find_collate_line(function, _converts)


def find_shifting_line(function: Any) -> dict[str, Any] | None:
    """The first line that drops the first token: `ids[:, 1:]`, or rolls."""
    return _find_collate_line(function, _shifts)


def find_truncating_line(function: Any) -> dict[str, Any] | None:
    """The first line that cuts labels off: `labels[:max_length]`."""
    return _find_collate_line(function, _truncates)


def find_attribute_line(function: Any, name: str) -> dict[str, Any] | None:
    """The first line of a function that uses an attribute, such as `self.pe`."""
    return _find_collate_line(
        function, lambda node: isinstance(node, ast.Attribute) and node.attr == name
    )


def find_argument_line(function: Any, name: str) -> dict[str, Any] | None:
    """The line that assigns the variable given to a layer, as `pos` in `self.positions(pos)`; the
    line of the attribute where it is given no variable."""
    given: list[str] = []

    def is_given(node: ast.AST) -> bool:
        if isinstance(node, ast.Call) and len(node.args) == 1 and _called(node) == name:
            given.extend(arg.id for arg in node.args if isinstance(arg, ast.Name))
        return False

    _find_collate_line(function, is_given)
    line = None
    if len(given) == 1:
        line = _find_collate_line(function, lambda node: _assigns(node, given[0]))
    return line or find_attribute_line(function, name)


def _assigns(node: ast.AST, name: str) -> bool:
    targets = node.targets if isinstance(node, ast.Assign) else []
    return any(isinstance(target, ast.Name) and target.id == name for target in targets)


def _find_collate_line(function: Any, wanted: Callable[[ast.AST], bool]) -> dict[str, Any] | None:
    try:
        routine = function if inspect.isroutine(function) else type(function).__call__
        lines, first = inspect.getsourcelines(routine)
        file = inspect.getsourcefile(routine) or ""
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, AttributeError, TypeError, SyntaxError, ValueError):
        return None
    if is_internal_file(file):
        return None
    found = [node.lineno for node in ast.walk(tree) if hasattr(node, "lineno") and wanted(node)]
    if not found:
        return None
    return add_function_name(Location(file, first + min(found) - 1)).to_dict()


def _converts(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    name = _called(node)
    if name in ("to", "astype", "type"):
        return "float" in ast.unparse(node)
    return name in ("float", "FloatTensor", "from_numpy", "as_tensor", "pil_to_tensor")


def _truncates(node: ast.AST) -> bool:
    if not isinstance(node, ast.Subscript) or "label" not in ast.unparse(node.value).lower():
        return False
    last = node.slice.elts[-1] if isinstance(node.slice, ast.Tuple) else node.slice
    cut = isinstance(last, ast.Slice) and last.lower is None and last.upper is not None
    return cut and isinstance(node.ctx, ast.Load)


def _shifts(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        return _called(node) == "roll"
    if not isinstance(node, ast.Subscript):
        return False
    last = node.slice.elts[-1] if isinstance(node.slice, ast.Tuple) else node.slice
    lower = last.lower if isinstance(last, ast.Slice) else None
    return isinstance(lower, ast.Constant) and lower.value == 1


def _takes_one(node: ast.AST) -> bool:
    index = node.slice if isinstance(node, ast.Subscript) else None
    if isinstance(index, ast.UnaryOp):
        index = index.operand
    return isinstance(index, ast.Constant) and isinstance(index.value, int)


def _scales(node: ast.AST) -> bool:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.attr in ("div", "div_", "mul", "mul_")
    return isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Div, ast.Mult))


# The user's line in a traceback.


def locate_crash(error: BaseException) -> dict[str, Any] | None:
    """The innermost line of the user's that an error went through, as facts carry it."""
    frames = traceback.extract_tb(error.__traceback__)
    found = find_user_location(
        Location(f.filename, f.lineno or 0, f.name) for f in reversed(frames)
    )
    return None if found is None else found.to_dict()


# Finds a line in the user's source by its text.

_MEANT = re.compile(r"freez|frozen|stage|phase|thaw|lock|requires_grad|schedule|curriculum", re.I)
_TIMED = re.compile(r"epoch|step|iter|stage|phase", re.I)


_APART = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.If, ast.Try, ast.While)


def find_line(script: ScriptContext, pattern: str) -> dict[str, Any] | None:
    """The first line of the user's running files that matches, as facts carry a place."""
    wanted = re.compile(pattern)
    for file in find_user_files(script):
        for number, text in enumerate(linecache.getlines(file), start=1):
            if wanted.search(text.partition("#")[0]):
                return add_function_name(Location(file, number)).to_dict()
    return None


def find_only_line(script: ScriptContext, pattern: str) -> dict[str, Any] | None:
    """The one line that matches; None where there is none, or more than one."""
    wanted = re.compile(pattern)
    found = [
        (file, number)
        for file in find_user_files(script)
        for number, text in enumerate(linecache.getlines(file), start=1)
        if wanted.search(text.partition("#")[0])
    ]
    return add_function_name(Location(*found[0])).to_dict() if len(found) == 1 else None


def find_user_files(script: ScriptContext) -> list[str]:
    """The user's files that run now, innermost first."""
    files = (frame.f_code.co_filename for frame in script.frames())
    return list(dict.fromkeys(file for file in files if not is_installed_file(file)))


def is_freezing_by_name(functions: Iterable[str]) -> bool:
    """Whether a function that runs is there to freeze or to unfreeze."""
    return any(_MEANT.search(name) for name in functions)


def is_under_time_condition(file: str, line: int) -> bool:
    """Whether a line stands under an `if` that asks for one epoch or step, not for every n-th."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return False
    around = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and node.lineno <= line <= (node.end_lineno or node.lineno)
    ]
    tests = [ast.unparse(node.test) for node in around]
    return any(_TIMED.search(test) and "%" not in test for test in tests)


def freezes_without_effect(
    script: ScriptContext, heard: set[tuple[str, int]]
) -> list[dict[str, Any]]:
    """Loops over parameters that ran, freeze by a condition on the name, and froze nothing.

    `heard` are the lines that did freeze something. A loop counts as run where it stands above the
    line that runs now, in a function that is running or that was called from above, under no `if`.
    """
    found = []
    for file in find_user_files(script):
        try:
            tree = ast.parse("".join(linecache.getlines(file)))
        except (SyntaxError, ValueError):
            continue
        running = {
            frame.f_code.co_name: frame.f_lineno
            for frame in script.frames()
            if frame.f_code.co_filename == file
        }
        ran = _certainly_ran(tree, running)
        for loop in ran:
            lines = _conditional_freezes(loop)
            if lines and not any((file, line) in heard for line in lines):
                found.append(add_function_name(Location(file, lines[0])).to_dict())
    return found


def _certainly_ran(tree: ast.Module, running: Mapping[str, int]) -> list[ast.For]:
    """The loops of running functions above their line, and of functions called from there."""
    defined = [
        node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    ]
    names = [node.name for node in defined]
    functions = {node.name: node for node in defined if names.count(node.name) == 1}
    todo: list[tuple[ast.AST, float]] = [
        (functions.get(name, tree), line)
        for name, line in running.items()
        if name in functions or name == "<module>"
    ]
    loops: list[ast.For] = []
    seen: set[str] = set()
    while todo:
        scope, until = todo.pop()
        for statement in _plain_statements(scope):
            if statement.lineno >= until:
                continue
            if isinstance(statement, ast.For):
                loops.append(statement)
                continue
            for call in ast.walk(statement):
                name = _called(call)
                if name in functions and name not in seen and name not in running:
                    seen.add(name)
                    todo.append((functions[name], math.inf))
    return loops


def _plain_statements(scope: ast.AST) -> list[ast.stmt]:
    """Its statements that run whenever it does: `with` blocks are entered, `if` blocks are not."""
    found: list[ast.stmt] = []
    for statement in getattr(scope, "body", []):
        entered = isinstance(statement, ast.With) or (
            isinstance(statement, ast.If) and "__main__" in ast.unparse(statement.test)
        )
        if entered:
            found += _plain_statements(statement)
        elif not isinstance(statement, _APART):
            found.append(statement)
    return found


def _called(node: ast.AST) -> str | None:
    if not isinstance(node, ast.Call):
        return None
    function = node.func
    if isinstance(function, ast.Name):
        return function.id
    return function.attr if isinstance(function, ast.Attribute) else None


def _conditional_freezes(loop: ast.For) -> list[int]:
    """The lines of a loop over parameters that freeze under a condition on its own variable."""
    if "named_parameters" not in ast.unparse(loop.iter) and "named_modules" not in ast.unparse(
        loop.iter
    ):
        return []
    targets = {node.id for node in ast.walk(loop.target) if isinstance(node, ast.Name)}
    lines = []
    for branch in ast.walk(loop):
        if not isinstance(branch, ast.If):
            continue
        asked = {node.id for node in ast.walk(branch.test) if isinstance(node, ast.Name)}
        if not asked & targets:
            continue
        for statement in branch.body:
            lines += [line for node in ast.walk(statement) if (line := _freezes(node))]
    return lines


def _freezes(node: ast.AST) -> int:
    """The line of a freeze; 0 for anything else."""
    if isinstance(node, ast.Assign):
        names = [target.attr for target in node.targets if isinstance(target, ast.Attribute)]
        return node.lineno if "requires_grad" in names and _is_false(node.value) else 0
    if isinstance(node, ast.Call) and _called(node) == "requires_grad_":
        return node.lineno if len(node.args) == 1 and _is_false(node.args[0]) else 0
    return 0


def _is_false(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value is False


_SEEDS = re.compile(
    r"(manual_seed|random\.seed|RandomState|default_rng|random\.Random|seed_everything|set_seed)\("
)


def find_seeding_line(script: ScriptContext) -> dict[str, Any] | None:
    """A line that seeds whenever a pass begins: in an iterator, a generator, or a loop."""
    for file in find_user_files(script):
        lines = linecache.getlines(file)
        try:
            tree = ast.parse("".join(lines))
        except (SyntaxError, ValueError):
            continue
        for line in sorted(_repeated_lines(tree)):
            if line <= len(lines) and _SEEDS.search(lines[line - 1].partition("#")[0]):
                return add_function_name(Location(file, line)).to_dict()
    return None


def _repeated_lines(tree: ast.Module) -> set[int]:
    """The lines that run once for every pass: of iterators, generators, and loops."""
    found: set[int] = set()
    for node in ast.walk(tree):
        functions = (ast.FunctionDef, ast.AsyncFunctionDef)
        is_iterator = isinstance(node, functions) and (
            node.name == "__iter__"
            or any(isinstance(inner, (ast.Yield, ast.YieldFrom)) for inner in ast.walk(node))
        )
        if is_iterator or isinstance(node, (ast.For, ast.While)):
            found.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))  # type: ignore[attr-defined]
    return found


_OTHER_STEPS = re.compile(r"sched|warm|lr|env|prof|ema|counter|bar", re.I)


def has_other_step_calls(file: str, seen: Iterable[int]) -> bool:
    """Whether a file calls `.step()` of an optimizer on a line that was not seen to run."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return True
    calls = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "step"
        and not _OTHER_STEPS.search(ast.unparse(node.func.value))
    ]
    ran = set(seen)
    return any(not ran & set(range(n.lineno, (n.end_lineno or n.lineno) + 1)) for n in calls)
