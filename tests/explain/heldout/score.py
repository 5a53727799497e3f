"""Run a script of the held-out set and compare what the guard said with what is right."""

from __future__ import annotations

import functools
from typing import Any
from unittest import mock

import torch
from explain.heldout.expected import Expected, Script, marked

import headway


def misses(script: Script, expected: Expected, run_dir: str) -> list[str]:
    """What is wrong or missing in the explanation, in words; nothing: all of it is right."""
    guard = script(run_dir)
    after = left(guard)
    if not guard.explanations:
        return ["no explanation"]
    told = guard.explanations[0]
    origin = told.origin
    if origin is None:
        return [f"no origin: {told.summary}"]
    wrong: list[str] = []

    def compare(what: str, right: bool, got: object, wanted: object) -> None:
        if not right:
            wrong.append(f"{what}: {got!r}, not {wanted!r}")

    place = (origin.place.file, origin.place.line) if origin.place else None
    compare("line", place == marked(script), place, marked(script))
    compare("op", expected.op == ("",) or origin.op in expected.op, origin.op, expected.op)
    if expected.module is not None:
        inside = origin.module == expected.module or (
            expected.module and origin.module.startswith(f"{expected.module}.")
        )
        compare("module", bool(inside), origin.module, expected.module)
    text = told.summary.lower()
    for word in expected.words:
        known = any(choice.lower() in text for choice in word.split("|"))
        compare("words", known, told.summary, word)
    if expected.samples is not None:
        compare("samples", origin.rows == expected.samples, origin.rows, expected.samples)
    if expected.step is not None:
        compare("step", told.step == expected.step, told.step, expected.step)
    if expected.data_set is not None:
        compare("data set", told.samples == expected.data_set, told.samples, expected.data_set)
    if expected.batch is not None:
        compare("micro-batch", origin.batch == expected.batch, origin.batch, expected.batch)
    if expected.called_from:
        caller = origin.called_from and (origin.called_from.file, origin.called_from.line)
        compare("caller", caller == marked(script, "# called here"), caller, "the marked one")
    if expected.cure:
        tried = [(trial.text, trial.tried) for trial in told.trials]
        compare("cure", any(how == "cured" for _, how in tried), tried, "one that cures")
    compare("left behind", _same(after, _unreplayed(script, run_dir)), "other weights", "the same")
    explained = [finding for finding in guard.findings if finding.where.line is not None]
    compare("finding", bool(explained), [f.code for f in guard.findings], "one with a line")
    if explained and origin.place:
        where = explained[0].where
        agrees = (where.file, where.line, where.op) == (*place, origin.op)
        agrees = agrees and where.sample == (origin.rows[0] if origin.rows else None)
        compare("finding", agrees, where, origin)
    return wrong


def left(guard: headway.Guard) -> list[Any]:
    """What a run leaves: weights and buffers, and where the random numbers stand."""
    states = [model.state_dict() for model in guard._session.models]
    beside = getattr(guard, "left_over", [])  # what a script says it has besides its models
    return [
        torch.get_rng_state(),
        *beside,
        *(value for state in states for value in state.values()),
    ]


def _unreplayed(script: Script, run_dir: str) -> list[Any]:
    """What the same run leaves when nothing is looked into."""
    quiet = functools.partial(headway.Guard, policy=headway.Policy(replay=False))
    with mock.patch.object(headway, "Guard", quiet):
        return left(script(f"{run_dir}/unreplayed"))


def _same(one: list[Any], two: list[Any]) -> bool:
    return len(one) == len(two) and all(
        torch.allclose(a, b, rtol=0, atol=0, equal_nan=True) for a, b in zip(one, two, strict=True)
    )
