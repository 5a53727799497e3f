"""The names people import. Taking one away, or moving it, is a decision, not an accident."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path
from types import ModuleType

import pytest

import headway

PUBLIC = [
    "AdaGC",
    "Finding",
    "Guard",
    "HeadwayError",
    "Policy",
    "Remedy",
    "Report",
    "Settings",
    "Severity",
    "Snapshots",
    "TrainingHalted",
    "Where",
    "ZClip",
    "__version__",
    "checkpoint_activations",
    "diagnose",
    "preflight",
    "scan",
]
NEEDS_TORCH = {"AdaGC", "Guard", "Snapshots", "ZClip", "checkpoint_activations", "preflight"}


def test_the_public_names_are_these_and_no_others() -> None:
    assert sorted(headway.__all__) == PUBLIC
    assert dir(headway) == PUBLIC


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_can_be_imported_from_where_it_lives(name: str) -> None:
    if name in NEEDS_TORCH:
        pytest.importorskip("torch")
    value = getattr(headway, name)
    if isinstance(value, ModuleType):  # the package of that name came first; it can be called
        assert callable(value)
        value = getattr(importlib.import_module(headway._HOMES[name]), name)
    if name != "__version__":
        home = importlib.import_module(headway._HOMES[name])
        assert value is getattr(home, name)
        assert value.__module__ == headway._HOMES[name], "it lives where we say"
        assert value.__doc__, "and says what it is"


def test_type_checkers_are_told_of_every_lazy_name() -> None:
    tree = ast.parse(Path(headway.__file__).read_text(encoding="utf-8"))
    [block] = [node for node in tree.body if isinstance(node, ast.If)]
    told = {
        alias.name: node.module
        for node in ast.walk(block)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert told == headway._HOMES


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'headway' has no attribute 'Gaurd'"):
        _ = headway.Gaurd
    assert not hasattr(headway, "anything_else")


def test_the_version_is_one_a_package_index_accepts() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+((a|b|rc|\.dev|\.post)\d+)?", headway.__version__)


def test_the_errors_form_the_tree_their_docstring_draws() -> None:
    errors = importlib.import_module("headway.errors")
    drawn: dict[str, str] = {}
    above: list[tuple[int, str]] = []
    for line in (errors.__doc__ or "").splitlines():
        match = re.match(r"^([\s│├└─]*)([A-Z]\w+)", line)
        if match and hasattr(errors, match[2]):
            depth = len(match[1])
            above = [(level, name) for level, name in above if level < depth]
            drawn[match[2]] = above[-1][1] if above else "Exception"
            above.append((depth, match[2]))
    real = {
        name: value.__mro__[1].__name__
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, Exception)
    }
    assert drawn == real


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("UsageError", 2),
        ("UnreadableInput", 2),
        ("SettingsError", 2),
        ("LossNotScalar", 2),
        ("FrameworkMissing", 2),
        ("TrainingHalted", 1),
        ("InternalError", 4),
    ],
)
def test_an_error_knows_its_exit_code(name: str, code: int) -> None:
    assert getattr(importlib.import_module("headway.errors"), name).exit_code == code
