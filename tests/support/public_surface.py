"""The public surface as text: names, signatures, the command line, exit codes, the run directory.

`python tests/support/public_surface.py` (`make api-snapshot`) writes it beside the tests that hold
us to it. A part whose framework is not installed is left as its file says.
"""

from __future__ import annotations

import ast
import dataclasses
import enum
import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import click

import headway
from headway.core import codec
from headway.core.records import Column, EventRecord, Header, SetupRecord, StepRecord, TensorRecord
from headway.core.signals import Signal

FOLDER = Path(__file__).parents[1] / "release"
BESIDE = {
    "headway.report": ["Coverage"],
    "headway.diagnosis": ["Cause"],
    "headway.core.findings": ["NotRun"],
    "headway.explain.explanation": ["Explanation", "Origin", "Trial"],
    "headway.policy": ["Action", "BackOff", "Rung"],
}
"""Not imported by name, but handed out by what is."""
CALLBACKS = ("lightning", "transformers")
FUNCTIONS = {"accelerate": ["guard"], "deepspeed": ["watch"], "ray": ["guard", "report"]}
GUARD_INSIDE = {
    "count_from",
    "open_pass",
    "redeliver_captured",
    "data_position",
    "rerun_pending_at_end",
    "explain_captured_step",
    "restore_captured",
    "replaying",
    "rerun_in_loop",
    "saw_batch",
    "step_done",
    "rerun_pending",
}
"""What its own loaders and adapters call; not for people, and free to change."""
SPECIAL = ("__call__", "__enter__", "__exit__")


def python_names() -> dict[str, str]:
    """Every public name of Python, by the module it is used from."""
    told: dict[str, str] = {}
    for name in sorted(headway.__all__):
        told[f"headway.{name}"] = _describe(f"headway.{name}", _home(headway, name))
    numerics = importlib.import_module("headway.numerics")
    for name in sorted(numerics.__all__):
        told[f"headway.numerics.{name}"] = _describe(
            f"headway.numerics.{name}", _home(numerics, name)
        )
    for module, names in BESIDE.items():
        home = importlib.import_module(module)
        for name in names:
            told[f"{module}.{name}"] = _describe(f"{module}.{name}", getattr(home, name))
    errors = importlib.import_module("headway.errors")
    for name, value in vars(errors).items():
        if isinstance(value, type) and issubclass(value, Exception):
            told[f"headway.errors.{name}"] = _error(f"headway.errors.{name}", value)
    return told


def callback_names(framework: str) -> dict[str, str]:
    """The callback of one framework. Raises ImportError where that is missing."""
    module = importlib.import_module(f"headway.integrations.{framework}")
    name = f"headway.integrations.{framework}.HeadwayCallback"
    return {name: _describe(name, module.HeadwayCallback)}


def adapter_functions() -> dict[str, str]:
    """The functions of the other adapters, from their source: it needs none of the frameworks."""
    folder = Path(headway.__file__).parent / "integrations"
    told = {}
    for framework, names in FUNCTIONS.items():
        tree = ast.parse((folder / f"{framework}.py").read_text(encoding="utf-8"))
        found = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
        for name in names:
            full = f"headway.integrations.{framework}.{name}"
            given = ast.unparse(found[name].args)
            told[full] = _block(f"def {full}({given})", [])
    return told


def command_line() -> dict[str, str]:
    """Every command with its arguments, options and defaults; then the exit codes."""
    main = importlib.import_module("headway.cli.main")
    context = click.Context(main.cli)
    told = {"headway": _command("headway", main.cli)}
    for name in main.COMMANDS:
        command = main.cli.get_command(context, name)
        told[f"headway {name}"] = _command(f"headway {name}", command)
    exits = importlib.import_module("headway.cli.exit_codes").__doc__ or ""
    codes = [" ".join(line.split()) for line in exits.splitlines() if re.match(r"\d", line)]
    told["exit codes"] = _block("exit codes", codes)
    return told


def run_directory() -> dict[str, str]:
    """The keys of each kind of line in a run directory, all of them given."""
    column = Column([1.0], [0])
    records = {
        "run.json": Header("s", {"loss": Signal(span=2)}, {"param": ["w"]}, {"a": 1}, 2, 1, 1),
        "step": StepRecord(0, 1, 0, {"loss": 1.0}, {"param/grad_norm": column}, held=True),
        "setup": SetupRecord(0, 2, "optimizer", {"a": 1}),
        "tensor": TensorRecord(0, 3, 0, "w", "weight", "float32", (1,), {"nan": 0}, {"a": 1}),
        "event": EventRecord(0, 4, 0, "action", {"a": 1}),
    }
    told = {}
    for name, record in records.items():
        line = codec.to_json(record)
        kind = line.get("kind", "step")
        told[f"record {name}"] = _block(
            f"record {name}", [f"kind {kind}", *(f"key {key}" for key in line)]
        )
    return told


PARTS: dict[str, Callable[[], dict[str, str]]] = {
    "python.txt": python_names,
    "command-line.txt": command_line,
    "run-directory.txt": run_directory,
    "adapters.txt": adapter_functions,
    **{f"callback-{name}.txt": partial(callback_names, name) for name in CALLBACKS},
}


def codes() -> dict[str, str]:
    """The code and the name of every check of ours."""
    registry = importlib.import_module("headway.registry")
    return {
        check.code: f"{check.code} {check.name}"
        for check in registry.all_checks()
        if check.code.startswith("HD")
    }


def text_of(part: str) -> str:
    """The part as its file holds it."""
    return "\n".join(PARTS[part]().values())


def _home(package: Any, name: str) -> Any:
    """The value itself: a package of the same name may stand before it."""
    home = package._HOMES.get(name)
    return getattr(importlib.import_module(home) if home else package, name)


def _describe(name: str, value: Any) -> str:
    if isinstance(value, type) and issubclass(value, enum.Enum):
        return _block(f"enum {name}", [f"{item.name} = {item.value!r}" for item in value])
    if isinstance(value, type) and issubclass(value, Exception):
        return _error(name, value)
    if isinstance(value, type):
        return _block(f"class {name}{_signature(value)}", list(_members(value)))
    if callable(value):
        return _block(f"def {name}{_signature(value)}", [])
    if name.endswith("__version__"):
        return _block(f"value {name}: str", [])
    return _block(f"value {name}: {type(value).__name__}", [])


def _members(kind: type) -> Iterator[str]:
    """What the class itself and ours above it define; not what a framework's base brings."""
    ours = [item for item in kind.__mro__ if item.__module__.startswith("headway")]
    found = {name: inspect.getattr_static(kind, name) for item in ours for name in vars(item)}
    fields = {item.name for item in dataclasses.fields(kind)} if _is_dataclass(kind) else set()
    for name in sorted(found):
        value = found[name]
        if (name.startswith("_") and name not in SPECIAL) or name in fields:
            continue
        if kind.__name__ == "Guard" and name in GUARD_INSIDE:
            continue
        if isinstance(value, property):
            yield f"property {name} -> {value.fget.__annotations__.get('return')}"
        elif isinstance(value, classmethod | staticmethod):
            yield f"{type(value).__name__} {name}{_signature(value.__func__)}"
        elif inspect.isfunction(value):
            yield f"def {name}{_signature(value)}"


def _is_dataclass(value: Any) -> bool:
    return dataclasses.is_dataclass(value)


def _error(name: str, kind: type) -> str:
    above = ", ".join(item.__name__ for item in kind.__bases__)
    code = getattr(kind, "exit_code", None)
    return _block(f"error {name}({above})", [] if code is None else [f"exit code {code}"])


def _signature(value: Any) -> str:
    try:
        # The address of a default that is a function differs from process to process.
        said = re.sub(r"<function (\S+) at 0x[0-9a-f]+>", r"\1", str(inspect.signature(value)))
    except (TypeError, ValueError):  # made in C
        return "(…)"
    # A set has no order of its own; an annotation that is a string is written without quotes.
    said = re.sub(r"frozenset\(\{.*?\}\)", "frozenset(…)", said)
    return said.replace("'", "").replace("-> None", "").rstrip()


def _command(name: str, command: click.Command) -> str:
    return _block(name, [_parameter(item) for item in command.params])


def _parameter(item: click.Parameter) -> str:
    if isinstance(item, click.Argument):
        said = f"argument {item.metavar or item.name}"
    else:
        said = "option " + " ".join([*item.opts, *item.secondary_opts])
        if isinstance(item, click.Option) and item.is_flag:
            said += " flag"
    if isinstance(item.type, click.Choice):
        said += f" [{'|'.join(map(str, item.type.choices))}]"
    elif isinstance(item.type, click.IntRange | click.FloatRange):
        said += f" {item.type.name} {item.type._describe_range()}"
    if item.multiple or item.nargs == -1:
        said += " many"
    if item.required:
        said += " required"
    default = item.default
    if isinstance(default, int | float | str) and not isinstance(default, bool):
        said += f" default={default}"
    return said


def _block(head: str, lines: list[str]) -> str:
    return "\n".join([head, *(f"    {line}" for line in lines)]) + "\n"


if __name__ == "__main__":
    for part in PARTS:
        try:
            text = text_of(part)
        except ImportError as missing:
            print(f"{part}: left as it is ({missing})", file=sys.stderr)
            continue
        (FOLDER / part).write_text(text, encoding="utf-8")
        print(f"tests/release/{part}: {text.count(chr(10))} lines")
    (FOLDER / "codes.txt").write_text("\n".join(codes().values()) + "\n", encoding="utf-8")
