"""headway.numerics as a package: its names, what it imports, its page and its tables."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import headway
from headway import numerics
from headway.numerics import ACTIVATIONS, eps_for

PAGE = (Path(__file__).parents[2] / "docs" / "numerics.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE, flags=re.M | re.S)


def test_every_name_is_in_the_module_that_the_package_lists() -> None:
    for name in numerics.__all__:
        value = getattr(numerics, name)
        assert value is getattr(importlib.import_module(numerics._HOMES[name]), name), name
        if callable(value):
            assert value.__module__ == numerics._HOMES[name], name
            assert value.__doc__, name


def test_type_checkers_are_told_of_every_name() -> None:
    tree = ast.parse(Path(numerics.__file__).read_text(encoding="utf-8"))
    [block] = [node for node in tree.body if isinstance(node, ast.If)]
    told = {
        alias.name: node.module
        for node in ast.walk(block)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert told == numerics._HOMES
    assert sorted(numerics.__all__) == sorted(told) == dir(numerics)
    assert not hasattr(numerics, "safe_everything")
    assert headway.numerics is numerics


@pytest.mark.slow
def test_neither_headway_nor_its_numerics_imports_torch_before_it_is_used() -> None:
    program = (
        "import sys, headway, headway.numerics\n"
        "assert 'torch' not in sys.modules\n"
        "headway.numerics.normalize\n"
        "assert 'torch' in sys.modules\n"
        "ours = [name for name in sys.modules if name.startswith('headway.')]\n"
        "assert all('.numerics' in name or name == 'headway._version' for name in ours), ours\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


@pytest.mark.parametrize("block", BLOCKS)
def test_the_code_on_the_page_runs(block: str) -> None:
    exec(block, {})


def test_every_name_is_on_the_page() -> None:
    for name, home in numerics._HOMES.items():
        if ".nway" not in home:  # which has a page of its own
            assert f"`{name}" in PAGE, name


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_are_torchs_own_and_on_the_page(name: str) -> None:
    entry = ACTIVATIONS[name]
    assert getattr(torch.nn, entry.module.__name__) is entry.module
    assert f"`torch.nn.{entry.module.__name__}`" in PAGE
    assert entry.when in PAGE
    assert entry.watch in PAGE
    x = torch.linspace(-60, 60, 50, requires_grad=True)
    value = entry.module()(x)
    assert torch.autograd.grad(value.sum(), x)[0].isfinite().all()


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [(torch.float64, 2.2e-308), (torch.float32, 1.2e-38), (torch.float16, 6.1e-5)],
)
def test_eps_has_a_finite_reciprocal(dtype: torch.dtype, expected: float) -> None:
    assert eps_for(dtype) == pytest.approx(expected, rel=0.05)
    assert (1 / torch.tensor(eps_for(dtype), dtype=dtype)).isfinite()
