"""A bad step is run again on every rank: the rank, line and sample are named, and nobody waits."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support.rank_processes import run_ranks
from support.rank_replays import (
    Outcome,
    Plan,
    born_on,
    collectives_of_rerun,
    each,
    until_lost,
    with_a_defect,
)
from support.trainings import assert_same

import headway

SPIKE: dict[str, Any] = {"bad": (), "large": ((24, 1, 3),), "steps": 28}


def ran(size: int, plans: Sequence[Plan]) -> list[list[Outcome]]:
    """Per plan: what each rank is left with; and that no rank is left with more than a skip."""
    ranks = run_ranks(each, size, plans)
    for rank in ranks:
        for looked, skipped in rank:
            assert repr(looked.losses) == repr(skipped.losses)
            assert looked.actions == skipped.actions
            assert_same(skipped.state, looked.state)
    outcomes = [[rank[at][0] for rank in ranks] for at in range(len(plans))]
    for plan, (first, *others) in zip(plans, outcomes, strict=True):
        assert all(other.explanations == first.explanations for other in others), plan
    return outcomes


def assert_named(outcomes: Sequence[Outcome], step: int = 7, rank: int = 1, row: int = 3) -> None:
    [found] = outcomes[0].explanations
    [origin] = found["origins"]
    assert (found["step"], found["nature"], found["rank"]) == (step, "deterministic", rank)
    assert (origin["op"], origin["kind"], origin["rows"]) == ("log", "log-of-zero", (row,))
    assert (Path(origin["place"]["file"]).name, origin["place"]["line"]) == (
        "rank_replays.py",
        born_on(),
    )
    assert [(trial["key"], trial["tried"]) for trial in found["trials"]] == [
        ("guard-input", "cured"),
        ("drop-samples", "cured"),
    ]
    assert f"on rank {rank}, sample {row}" in found["headline"]
    about = {code: where for code, at, where in outcomes[0].findings if at == step}
    assert {"HD101", "HD201"} <= about.keys() <= {"HD101", "HD201", "HD602"}
    for code, where in about.items():
        named = (where["line"], where["op"], where["rank"], where["sample"])
        assert named == (born_on(), "log", rank, row), code


def assert_carried(outcomes: Sequence[Outcome], rank: int = 1) -> None:
    [found] = outcomes[0].explanations
    assert (found["symptom"], found["nature"], found["rank"]) == ("spike", "deterministic", rank)
    assert found["spike"]["rows"] == (3,)
    assert found["trials"][0] == {
        "key": "drop-samples",
        "text": "Fix or remove sample 3 with values in batch[2] about 1e+08 times the usual",
        "tried": "cured",
        "why": "",
        "edits": (),
    }
    assert found["guilt"] == "batch", "with the weights of a snapshot, too"


@pytest.mark.parametrize("kind", ["ddp", "fsdp", pytest.param("by hand", marks=pytest.mark.slow)])
@pytest.mark.slow
def test_the_rank_the_line_and_the_sample(kind: str) -> None:
    plain, clipped, spiked = ran(2, [Plan(kind), Plan(kind, clip=1.0), Plan(kind, **SPIKE)])
    assert_named(plain)
    assert_named(clipped)
    assert_carried(spiked)


@pytest.mark.slow
def test_ways_to_wrap_and_to_accumulate() -> None:
    plans = [
        Plan(wrap={"static_graph": True}),
        Plan(wrap={"find_unused_parameters": True}),
        Plan(wrap={"find_unused_parameters": True}, twist="spares"),
        Plan(wrap={"gradient_as_bucket_view": True}, keep_gradients=True),
        Plan(accumulate=2),
        Plan(accumulate=2, always_reduce=True),
        Plan("fsdp", accumulate=2),
    ]
    for outcomes in ran(2, plans):
        assert_named(outcomes)


@pytest.mark.slow
def test_a_handful_of_collectives() -> None:
    """Whether all can; the trace, gathered; one vote for each of two trials; the explanation."""
    found = run_ranks(collectives_of_rerun, 2, Plan(normed=False))
    assert found == [7, 7]


@pytest.mark.slow
def test_two_guilty_ranks() -> None:
    """One speaks for both; leaving out samples is tried on both."""
    [outcomes] = ran(2, [Plan(bad=((7, 0, 2), (7, 1, 3)))])
    assert_named(outcomes, rank=0, row=2)
    assert "rank 1 has an origin too: log" in outcomes[0].explanations[0]["notes"][0]


PLACES = ("begin", "forward", "end", "backward")
TRAPS = [(where, rank, at) for where in PLACES for rank in (0, 1) for at in (0, 1)]
SOME = [("forward", 0, 0), ("backward", 0, 1), ("end", 1, 0)]
KINDS = ("ddp", "fsdp", "by hand")


@pytest.mark.parametrize(
    ("kind", "traps"),
    [
        ("ddp", SOME),
        ("fsdp", SOME),
        *[pytest.param(kind, TRAPS, marks=pytest.mark.slow) for kind in KINDS],
    ],
)
@pytest.mark.slow
def test_a_rank_that_raises_holds_nobody_up(kind: str, traps: Sequence[Any]) -> None:
    """Neither in the first pass, after which nothing is known, nor in a trial."""
    plans = [Plan(kind, steps=9, trap=trap) for trap in traps]
    for plan, outcomes in zip(plans, ran(2, plans), strict=True):
        [found] = outcomes[0].explanations
        assert plan.trap is not None
        if plan.trap[2] == 0:
            assert found["nature"] == "unknown"
            assert "the step could not be re-run: ValueError: a trap" in found["headline"]
            assert found["rank"] is None
        else:
            assert found["rank"] == 1
            assert [(trial["key"], trial["tried"]) for trial in found["trials"]] == [
                ("drop-samples", "cured"),
                ("guard-input", "not tried"),
            ]


@pytest.mark.slow
def test_a_rank_that_cannot_run_it_again() -> None:
    """Then none does."""
    plans = [
        Plan(twist="in a generator"),
        Plan(twist="no loader"),
        Plan(policy={"replay": False}),
        Plan("fsdp", twist="no loader"),
    ]
    for outcomes in ran(2, plans):
        for outcome in outcomes:
            assert outcome.explanations == []
            assert [action["step"] for action in outcome.actions] == [7]


def test_what_happens_between_the_ranks_is_not_called_transient() -> None:
    """A hook that sends float16 makes infinity of a large gradient; no rank does so by itself."""
    [outcomes] = ran(2, [Plan(bad=(), large=((7, 1, 3),), twist="compressed")])
    [found] = outcomes[0].explanations
    assert (found["symptom"], found["nature"]) == ("nonfinite", "unknown")
    assert "changes gradients between the ranks" in found["headline"]


@pytest.mark.slow
def test_a_compiled_model_stays_compiled() -> None:
    ranks = run_ranks(each, 2, [Plan(twist="compiled")])
    for [(looked, skipped)] in ranks:
        assert_named([looked])
        assert looked.compiled == skipped.compiled > 0
        assert repr(looked.losses) == repr(skipped.losses)


@pytest.mark.parametrize("kind", ["ddp", pytest.param("fsdp", marks=pytest.mark.slow)])
def test_a_defect_of_ours_on_one_rank_holds_nobody_up(kind: str) -> None:
    """The guards go off together, as after any other defect; the training goes on."""
    for outcome in run_ranks(with_a_defect, 2, Plan(kind)):
        assert outcome.explanations == []
        assert len(outcome.losses) == Plan().steps
        assert [action["step"] for action in outcome.actions] == [7]


def test_a_rank_that_dies_meanwhile() -> None:
    told = run_ranks(until_lost, 2, Plan(twist="dies"), timeout=5.0, lone=True)
    assert told == ["RankLost", None]


@pytest.mark.slow
def test_the_run_directory_tells_it_once(tmp_path: Path) -> None:
    run = tmp_path / "run"
    ran(2, [Plan(run_dir=run)])
    [capsule] = (run / "incidents").iterdir()
    assert json.loads((capsule / "incident.json").read_text())["rank"] == 1
    for name in ("events.jsonl", "events.rank1.jsonl"):
        events = [json.loads(line) for line in (run / name).read_text().splitlines()]
        told = [event["data"] for event in events if event["kind"] == "incident"]
        assert [(data["rank"], data["origins"][0]["place"]["line"]) for data in told] in (
            [(1, born_on())],
            [],
        )
    report = headway.diagnose(run)
    assert [cause.code for cause in report.causes] == ["HD602"]
    for finding in report.findings:
        assert finding.where is not None
        assert (finding.where.rank, finding.where.line) == (1, born_on())
    assert sorted(finding.code for finding in report.findings) == ["HD101", "HD201", "HD602"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ddp", "fsdp", "hsdp", "by hand"])
def test_four_ranks(kind: str) -> None:
    spike = {**SPIKE, "large": ((24, 2, 3),)}
    plans = [
        Plan(kind, bad=((7, 3, 3),)),
        Plan(kind, **spike),
        *[Plan(kind, steps=9, trap=(where, 2, 1)) for where in ("forward", "backward")],
    ]
    plain, spiked, *_ = ran(4, plans)
    assert_named(plain, rank=3)
    assert_carried(spiked, rank=2)
