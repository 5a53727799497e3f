"""The Python API, from signatures and docstrings, read without importing: torch is not needed."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import headway

SOURCE = Path(headway.__file__).parent

GROUPS = {
    "The guard": ("Guard", "Policy", "Snapshots", "AdaGC", "ZClip", "checkpoint_activations"),
    "Before and after": ("preflight", "diagnose", "scan", "Report"),
    "What is found": ("Finding", "Where", "Remedy", "Severity"),
    "Settings and errors": ("Settings", "HeadwayError", "TrainingHalted"),
}
"""The public names; a test holds this list to `headway.__all__`."""

ADAPTERS = {
    "headway.integrations.transformers": ("HeadwayCallback",),
    "headway.integrations.lightning": ("HeadwayCallback",),
    "headway.integrations.accelerate": ("guard",),
    "headway.integrations.ray": ("guard", "report"),
    "headway.integrations.deepspeed": ("watch",),
}

INNER = {
    "Guard": [
        "open_pass",
        "redeliver_captured",
        "data_position",
        "rerun_pending_at_end",
        "explain_captured_step",
        "restore_captured",
        "rerun_in_loop",
        "rerun_pending",
    ],
    "Policy": ["decide"],
    "Report": ["from_engine", "reread"],
    "Finding": ["order", "segment", "seq"],
    "AdaGC": ["__call__"],
    "ZClip": ["__call__"],
}
"""Public to other parts of headway, of no use to anybody else."""

Definition = ast.ClassDef | ast.FunctionDef


@dataclass(frozen=True)
class Member:
    """Something of a class worth a line."""

    signature: str
    about: str


def page() -> str:
    """Every public name."""
    parts = [
        "# The Python API",
        "",
        "Generated from signatures and docstrings. These names are stable; anything else may "
        "change between releases. `import headway` never imports torch: a name is loaded when it "
        "is first used.",
        "",
    ]
    for group, names in GROUPS.items():
        parts += [f"## {group}", ""]
        for name in names:
            parts += _entry(f"headway.{name}", headway._HOMES[name], name)
    parts += ["## In frameworks", "", "See [frameworks](frameworks.md) for each in use.", ""]
    for module, names in ADAPTERS.items():
        for name in names:
            parts += _entry(f"{module}.{name}", _home(module, name), name)
    parts += [
        "## Numerics",
        "",
        "`headway.numerics` has pages of its own: [ops and losses](numerics.md), "
        "[the N-way contrastive loss](nway.md).",
        "",
    ]
    parts += _numerics()
    return "\n".join(parts)


def _entry(said: str, module: str, name: str) -> list[str]:
    found = _definition(module, name)
    parts = [f"### {said} {{ #{said} }}", "", "```py", _signature(found, said), "```", ""]
    parts += [_docstring(found), ""]
    if isinstance(found, ast.ClassDef):
        start = next((item for item in found.body if _is(item, "__init__")), None)
        if start is not None and (about := ast.get_docstring(start)):
            parts += [about, ""]
        rows = [*_members(found)]
        if rows:
            parts += ["| | |", "|---|---|"]
            parts += [f"| `{_cell(row.signature)}` | {_cell(row.about)} |" for row in rows]
            parts += [""]
    return parts


def _numerics() -> list[str]:
    tree = _tree("headway.numerics")
    homes = {
        alias.asname or alias.name: node.module or ""
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("headway.numerics")
        for alias in node.names
    }
    rows = ["| `headway.numerics.…` | |", "|---|---|"]
    for name in sorted(_exported(tree), key=str.lower):
        try:
            found = _definition(homes[name], name)
        except (KeyError, LookupError):
            continue  # a table such as ACTIVATIONS has no docstring of its own
        first = _docstring(found).split("\n\n")[0]
        rows.append(f"| `{_cell(_signature(found, name, short=True))}` | {_cell(first)} |")
    return [*rows, ""]


def _members(found: ast.ClassDef) -> Iterator[Member]:
    inner = INNER.get(found.name, ())
    for item, below in pairwise([*found.body, ast.Pass()]):
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
            name = item.target.id
            if name.startswith("_") or "ClassVar" in ast.unparse(item.annotation):
                continue
            default = f" = {ast.unparse(item.value)}" if item.value is not None else ""
            if " = field(" in default:
                default = ""
            if name in inner:
                continue
            about = below.value.value if _is_text(below) else ""
            yield Member(f"{name}: {ast.unparse(item.annotation)}{default}", str(about))
        elif isinstance(item, ast.Assign) and isinstance(item.targets[0], ast.Name):
            name = item.targets[0].id
            if name.isupper() and isinstance(item.value, ast.Constant):
                yield Member(f"{name} = {item.value.value!r}", "")
        elif isinstance(item, ast.FunctionDef) and (
            not item.name.startswith("_") or item.name == "__call__"
        ):
            about = ast.get_docstring(item)
            if about is None or item.name in inner:
                continue
            yield Member(_member_signature(item), about)


def _member_signature(item: ast.FunctionDef) -> str:
    marks = {ast.unparse(mark) for mark in item.decorator_list}
    if "property" in marks:
        returned = f": {ast.unparse(item.returns)}" if item.returns else ""
        return f"{item.name}{returned}"
    return _signature(item, item.name, short=True)


def _signature(found: Definition, said: str, *, short: bool = False) -> str:
    if isinstance(found, ast.ClassDef):
        start = next((item for item in found.body if _is(item, "__init__")), None)
        if start is None:
            return f"class {said}" if not short else said
        return _call(start, said if short else f"class {said}", short=short, returns=False)
    return _call(found, said, short=short, returns=not short)


def _call(found: ast.FunctionDef, said: str, *, short: bool, returns: bool) -> str:
    arguments = [*_arguments(found.args, short=short)]
    arrow = f" -> {ast.unparse(found.returns)}" if returns and found.returns else ""
    line = f"{said}({', '.join(arguments)}){arrow}"
    if short or len(line) <= 88:
        return line
    return f"{said}(\n" + "".join(f"    {item},\n" for item in arguments) + f"){arrow}"


def _arguments(given: ast.arguments, *, short: bool) -> Iterator[str]:
    plain = [*given.posonlyargs, *given.args]
    defaults: list[ast.expr | None] = [None] * (len(plain) - len(given.defaults))
    defaults += given.defaults
    for argument, default in zip(plain, defaults, strict=True):
        if argument.arg not in ("self", "cls"):
            yield _argument(argument, default, short)
    if given.vararg:
        yield f"*{_argument(given.vararg, None, short)}"
    elif given.kwonlyargs:
        yield "*"
    for argument, default in zip(given.kwonlyargs, given.kw_defaults, strict=True):
        yield _argument(argument, default, short)
    if given.kwarg:
        yield f"**{_argument(given.kwarg, None, short)}"


def _argument(argument: ast.arg, default: ast.expr | None, short: bool) -> str:
    said = argument.arg
    if argument.annotation is not None and not short:
        said += f": {ast.unparse(argument.annotation)}"
        return f"{said} = {ast.unparse(default)}" if default is not None else said
    return f"{said}={ast.unparse(default)}" if default is not None else said


def _docstring(found: Definition) -> str:
    return ast.get_docstring(found) or ""


def _cell(text: str) -> str:
    return " ".join(textwrap.dedent(text).split()).replace("|", "\\|")


def _is(item: ast.stmt, name: str) -> bool:
    return isinstance(item, ast.FunctionDef) and item.name == name


def _is_text(item: ast.stmt) -> bool:
    return (
        isinstance(item, ast.Expr)
        and isinstance(item.value, ast.Constant)
        and isinstance(item.value.value, str)
    )


def _home(module: str, name: str) -> str:
    """Where an adapter's name is defined: in its module, or in one it imports it from."""
    for node in _tree(module).body:
        if isinstance(node, ast.ImportFrom) and name in {alias.name for alias in node.names}:
            return node.module or module
    return module


def _exported(tree: ast.Module) -> Sequence[str]:
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            names: Sequence[str] = ast.literal_eval(node.value)
            return names
    return ()


def _definition(module: str, name: str) -> Definition:
    for node in ast.walk(_tree(module)):
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and node.name == name:
            return node
    raise LookupError(f"{module} defines no {name}")


def _tree(module: str) -> ast.Module:
    stem = SOURCE.joinpath(*module.split(".")[1:])
    path = stem / "__init__.py" if stem.is_dir() else stem.with_suffix(".py")
    return ast.parse(path.read_text(encoding="utf-8"))
