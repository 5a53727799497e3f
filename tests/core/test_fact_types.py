"""Typed facts: one class per topic, read with care, and explained in docs/signals.md."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
from support.declared_facts import KINDS, undeclared

from headway import registry
from headway.core.facts import FactTable
from headway.core.loss_facts import BackwardRootFacts, LossCallFacts
from headway.core.records import SetupRecord

SIGNALS_PAGE = Path(__file__).parents[2] / "docs" / "signals.md"


def documented() -> dict[str, str]:
    """Topic → what the page says of its facts."""
    text = SIGNALS_PAGE.read_text(encoding="utf-8")
    section = text[text.index("## Set-up facts") : text.index("## Tensors")]
    return dict(re.findall(r"^\| `([\w-]+)` \| (.*) \|$", section, re.M))


def own_fields(kind: type) -> set[str]:
    """The fields a class adds to those it inherits, without those that mean the same everywhere."""
    return set(kind.__annotations__) - {"file", "line", "function", "place"}


def tables_of(kind: type[FactTable]) -> set[type[FactTable]]:
    """The tables within the facts."""
    found = set()
    for hint in get_type_hints(kind).values():
        inner = get_args(hint)[0] if get_args(hint) else hint
        if isinstance(inner, type) and issubclass(inner, FactTable):
            found |= {inner, *tables_of(inner)}
    return found


def test_every_topic_a_check_needs_has_a_type() -> None:
    for check in registry.all_checks():
        for topic in check.needs.topics:
            assert topic in KINDS, f"{check.code}: {topic}"


def test_the_page_and_the_types_know_the_same_topics() -> None:
    assert documented().keys() == KINDS.keys()


def test_the_page_explains_every_field() -> None:
    rows = documented()
    everywhere = words_of(" ".join(rows.values()))
    missing = {topic: own_fields(kind) - words_of(rows[topic]) for topic, kind in KINDS.items()}
    for topic, kind in KINDS.items():
        for table in tables_of(kind):
            missing[f"{topic}: {table.__name__}"] = own_fields(table) - everywhere
    assert {name: fields for name, fields in missing.items() if fields} == {}


def words_of(text: str) -> set[str]:
    return set(re.findall(r"`([\w-]+)`", text))


@pytest.mark.parametrize("junk", [None, 3, "text", [], {}, [None], {"file": 3}, float("nan")])
def test_facts_of_any_type_can_be_read(junk: Any) -> None:
    for topic, kind in KINDS.items():
        facts = {item.name: junk for item in dataclasses.fields(kind)}
        kind.of(SetupRecord(0, 0, topic, facts))
        kind.read(junk)


def test_facts_are_read_by_their_type() -> None:
    facts = LossCallFacts.read(
        {
            "function": "nll_loss",
            "classes": 10,
            "labels": 10.5,
            "weighted": True,
            "prediction": {"shape": [32, 10], "made_at": {"file": "train.py", "line": 7}},
            "place": {"file": "train.py", "line": 9, "function": "main"},
            "of_a_later_version": 1,
        }
    )
    assert (facts.function, facts.classes, facts.labels) == ("nll_loss", 10, None)
    assert facts.weighted
    assert facts.prediction.shape == [32, 10]
    assert facts.target.shape is None
    assert facts.locate(rank=1, op="nll").to_dict()["line"] == 9
    assert facts.locate(place=facts.prediction.made_at).line == 7
    assert facts.locate(place=facts.bounded.made_at).line == 9


def test_a_flag_that_is_missing_is_told_from_one_that_is_false() -> None:
    assert BackwardRootFacts.read({}).grad_enabled is None
    assert BackwardRootFacts.read({"grad_enabled": False}).grad_enabled is False
    assert BackwardRootFacts.read({}).graph is False


def test_what_an_observer_writes_is_compared_with_the_type() -> None:
    assert undeclared("dropout", {"member": "fc", "p": 0.5, "kept": None}) == []
    assert undeclared("dropout", {"rate": 0.5}) == ["dropout.rate"]
    assert undeclared("dropout", {"p": "half"}) == ["dropout.p: 'half'"]
    assert undeclared("dropout", {"place": {"row": 1}}) == ["dropout.place.row"]
    assert undeclared("unheard-of", {}) == ["unheard-of has no type"]
