"""Patches of ours that lie on each other leave nothing behind, in whichever order they go."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations
from typing import Any

import pytest

from headway.torch_adapters import patching
from headway.torch_adapters.patching import install_patch, wrap_function


def _passed_on(original: Callable[[Any], str]) -> Callable[[Any], str]:
    return lambda item: original(item)


class Base:
    def greet(self) -> str:
        return "hello"


@pytest.mark.parametrize("order", list(permutations(range(3))), ids=str)
@pytest.mark.parametrize("inherited", [False, True])
def test_any_order(order: tuple[int, ...], inherited: bool) -> None:
    owner = type("Owner", (Base,), {} if inherited else {"greet": lambda self: "hello"})
    before, covered = vars(owner).get("greet"), dict(patching._covered)
    undo = [wrap_function(owner, "greet", _passed_on) for _ in range(3)]
    for number in order:
        undo[number]()
        undo[number]()
        assert owner().greet() == "hello"
    assert vars(owner).get("greet") is before
    assert patching._covered == covered


def test_a_patch_of_another_library_stays() -> None:
    covered = dict(patching._covered)
    owner = type("Owner", (Base,), {})
    undo = install_patch(owner, "greet", lambda self: "ours")
    ours = vars(owner)["greet"]
    owner.greet = theirs = lambda self: f"theirs over {ours(self)}"
    undo()
    assert vars(owner)["greet"] is theirs
    for key in patching._covered.keys() - covered:
        del patching._covered[key]
