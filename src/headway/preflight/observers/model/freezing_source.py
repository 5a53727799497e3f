"""Reads from the user's source which parameters a script means to freeze, and when."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

from headway.preflight.script_context import ScriptContext
from headway.preflight.source_lines import called_name, find_user_files, parse_file
from headway.torch_adapters.frames import Location, add_function_name

_MEANT = re.compile(r"freez|frozen|stage|phase|thaw|lock|requires_grad|schedule|curriculum", re.I)
_TIMED = re.compile(r"epoch|step|iter|stage|phase", re.I)
_APART = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.If, ast.Try, ast.While)


def is_freezing_by_name(functions: Iterable[str]) -> bool:
    """Whether a function that runs is there to freeze or to unfreeze."""
    return any(_MEANT.search(name) for name in functions)


def is_under_time_condition(file: str, line: int) -> bool:
    """Whether a line is under an `if` that tests for one epoch or step, not for every n-th."""
    around = [
        node
        for node in ast.walk(parse_file(file))
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
        tree = parse_file(file)
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
                name = called_name(call)
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
    if isinstance(node, ast.Call) and called_name(node) == "requires_grad_":
        return node.lineno if len(node.args) == 1 and _is_false(node.args[0]) else 0
    return 0


def _is_false(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value is False
