"""`headway env`, with and without torch."""

from __future__ import annotations

import json
import sys

import pytest

import headway


def test_text(invoke):
    result = invoke("env")
    assert result.exit_code == 0
    for name in ("headway:", "python:", "os:", "cores:", "memory:", "torch:", "packages:"):
        assert f"\n{name}" in result.stdout
    assert headway.__version__ in result.stdout


def test_json(invoke):
    told = json.loads(invoke("env", "--format", "json").stdout)
    assert list(told) == [
        *("schema", "tool", "version", "command", "python", "os"),
        *("cores", "memory_bytes", "torch", "packages"),
    ]
    assert told["cores"] >= 1
    device = told["torch"]["devices"][0]
    assert device["device"] == "cpu"
    assert device["dtypes"]["float32"] is True


@pytest.mark.parametrize("form", ["text", "json"])
def test_without_torch(invoke, monkeypatch, form):
    monkeypatch.setitem(sys.modules, "torch", None)
    result = invoke("env", "--format", form)
    assert result.exit_code == 0
    if form == "text":
        assert "torch:    not installed" in result.stdout
    else:
        assert json.loads(result.stdout)["torch"]["problem"] == "not installed"
