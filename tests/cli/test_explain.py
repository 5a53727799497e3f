"""`headway explain` and `headway checks`."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest

from headway import registry
from headway.cli.explain import CheckLimit, describe_needs, limits_of
from headway.core.check import HEADINGS, Check, Needs
from headway.core.records import StepRecord, TensorRecord


@pytest.mark.parametrize("word", ["HD101", "hd101", "nonfinite-loss", "Nonfinite-Loss"])
def test_code_or_name_in_any_case(invoke, word):
    result = invoke("explain", word)
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0] == "HD101 nonfinite-loss  error"
    assert lines[-1].startswith("Next: headway ")
    for heading in HEADINGS:
        assert heading in lines


@pytest.mark.slow
def test_every_check_can_be_explained(invoke):
    for code in registry.modules():
        for form in ("text", "json"):
            result = invoke("explain", code, "--format", form)
            assert result.exit_code == 0, result.stderr
        assert max(map(len, invoke("explain", code).stdout.splitlines())) <= 80


def test_json(invoke):
    told = json.loads(invoke("explain", "HD104", "--format", "json").stdout)
    assert list(told) == [
        *("schema", "tool", "version", "command", "code", "name", "severity", "status"),
        *("family", "summary", "needs", "limits", "text"),
    ]
    assert told["code"] == "HD104"
    assert told["family"] == "loss"
    assert told["needs"]["signals"] == ["loss"]
    assert "## What to do" in told["text"]


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("HD999", "there is no check 'HD999'; `headway checks` lists them all"),
        ("nonfinit-loss", "nonfinite-loss"),
        ("x", "x"),
    ],
)
def test_an_unknown_code(invoke, word, hint):
    result = invoke("explain", word)
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1
    assert hint in result.stderr


def test_limits_come_with_what_stands_beneath_them():
    class Example(Check):
        @dataclass(frozen=True)
        class Limits(Check.Limits):
            sigmas: float = 8.0
            """So many of them,
            and no more."""
            grace: int = 20

    assert limits_of(Example) == [
        CheckLimit("sigmas", 8.0, "So many of them, and no more."),
        CheckLimit("grace", 20, ""),
    ]


def test_needs_in_a_sentence():
    assert describe_needs(Needs()) == "steps"
    assert describe_needs(Needs(signals=("loss", "lr"), span=1, nonfinite=True)) == (
        "loss, lr; one value for each step, not a mean over several; NaN and Inf not filtered out"
    )
    both = Needs(any_of=("a", "b"), kinds=(StepRecord, TensorRecord))
    assert describe_needs(both).startswith("one of a, b; or tensor statistics")


def test_the_list(invoke):
    result = invoke("checks")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0] == f"headway: {len(registry.all_checks())} checks"
    assert lines[-1].startswith("Next: headway explain HD")
    for code in registry.modules():
        assert f"  {code}  " in result.stdout
    assert max(map(len, lines)) <= 80


def test_the_list_as_json(invoke):
    told = json.loads(invoke("checks", "--format", "json").stdout)
    assert list(told) == ["schema", "tool", "version", "command", "checks"]
    assert list(told["checks"][0]) == ["code", "name", "severity", "status", "family", "summary"]
    assert [item["code"] for item in told["checks"]] == [
        item.code for item in registry.all_checks()
    ]


def test_part_of_the_list(invoke):
    def codes(*args):
        told = json.loads(invoke("checks", "--format", "json", *args).stdout)
        return [item["code"] for item in told["checks"]]

    assert codes("--select", "hd101,gradient-spike") == ["HD101", "HD207"]
    assert set(codes("--select", "HD2", "--ignore", "HD207")) == {
        code for code in registry.modules() if code.startswith("HD2") and code != "HD207"
    }
    assert invoke("checks", "--select", "HD999").exit_code == 2
