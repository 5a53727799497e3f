"""Finds lines in the user's source: of a call, in a collate function, in a traceback, and lines
that seed.
"""

from __future__ import annotations

import ast
import inspect
import linecache
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
        if isinstance(node, ast.Call) and len(node.args) == 1 and called_name(node) == name:
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
    name = called_name(node)
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
        return called_name(node) == "roll"
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


def find_layer_line(script: ScriptContext, layer: Any) -> dict[str, Any] | None:
    """The line that constructs a layer, such as its own in the `Sequential(...)` it is part of; the
    only line that constructs its class where that is not known."""
    if layer is None:
        return None
    kind = type(layer).__name__
    place, _ = script.origins.registered(layer)
    number = script.origins.name_in_owner(layer)
    line = None if place is None else _find_constructor(place, kind, number)
    if place is not None and line is not None:
        return {**place, "line": line}
    return find_only_line(script, rf"\b{kind}\(")


def _find_constructor(place: Mapping[str, Any], kind: str, number: str) -> int | None:
    """The line of the call that constructs a layer, in the call that registers it."""
    for node in ast.walk(parse_file(str(place["file"]))):
        if not isinstance(node, ast.Call) or node.lineno != place["line"]:
            continue
        if called_name(node) == kind:
            return node.lineno
        items = node.args
        if len(items) == 1 and isinstance(items[0], (ast.List, ast.Tuple)):
            items = items[0].elts
        if not number.isdigit() or any(isinstance(item, ast.Starred) for item in items):
            continue
        if int(number) < len(items) and called_name(items[int(number)]) == kind:
            return items[int(number)].lineno
    return None


def parse_file(file: str) -> ast.Module:
    """The syntax tree of a source file; an empty one if it cannot be read."""
    try:
        return ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return ast.Module([], [])


def find_user_files(script: ScriptContext) -> list[str]:
    """The user's files that run now, innermost first."""
    files = (frame.f_code.co_filename for frame in script.frames())
    return list(dict.fromkeys(file for file in files if not is_installed_file(file)))


def called_name(node: ast.AST) -> str | None:
    """The name of the function that a call calls: `b` of `a.b()`."""
    if not isinstance(node, ast.Call):
        return None
    function = node.func
    if isinstance(function, ast.Name):
        return function.id
    return function.attr if isinstance(function, ast.Attribute) else None


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
