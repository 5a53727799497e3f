"""A healthy training on several ranks is left bit for bit as it is."""

from __future__ import annotations

import pytest
from support.rank_processes import run_ranks
from support.rank_trainings import Plan, halved, run_all, train
from support.torch_versions import CLIPS_BY_WHOLE_NORM
from support.trainings import assert_same

VARIANTS: dict[int, dict[str, Plan]] = {
    2: {
        "ddp": Plan(),
        "unused parameters": Plan(wrap={"find_unused_parameters": True}),
        "static graph": Plan(wrap={"static_graph": True}),
        "bucket views": Plan(wrap={"gradient_as_bucket_view": True}),
        "accumulation": Plan(accumulate=3),
        "reduced at every micro-batch": Plan(accumulate=2, always_reduce=True),
        "small buckets": Plan(wrap={"bucket_cap_mb": 0.0001}),
        "clipped": Plan(clip=0.5),
        "a hook of the user's": Plan(wrap={"hook": halved}),
        "momentum": Plan(optimizer="SGD", keep_gradients=True),
    },
    3: {
        "ddp": Plan(),
        "bucket views": Plan(wrap={"gradient_as_bucket_view": True}),
        "bucket views kept": Plan(wrap={"gradient_as_bucket_view": True}, keep_gradients=True),
        "static graph": Plan(wrap={"static_graph": True}),
        "unused parameters": Plan(wrap={"find_unused_parameters": True}),
        "accumulation": Plan(accumulate=2),
    },
}
SHARDED = {
    "fsdp": Plan(kind="fsdp"),
    "fsdp, accumulation": Plan(kind="fsdp", accumulate=2),
    "fsdp, reduced at every micro-batch": Plan(kind="fsdp", accumulate=2, always_reduce=True),
    "fsdp, clipped": Plan(kind="fsdp", clip=0.5),
    "partly sharded": Plan(kind="mixed"),
}


@pytest.mark.parametrize(
    "size", [2, *(pytest.param(size, marks=pytest.mark.slow) for size in VARIANTS if size > 2)]
)
def test_replicas_are_left_as_they_are(size: int) -> None:
    compare(size, VARIANTS[size])


@pytest.mark.slow
def test_shards_are_left_as_they_are() -> None:
    plans = dict(SHARDED)
    if not CLIPS_BY_WHOLE_NORM:  # the guard does, so that the last digits differ
        del plans["fsdp, clipped"]
    compare(2, plans)


@pytest.mark.slow
def test_shards_that_are_replicated_too_are_left_as_they_are() -> None:
    compare(4, {"hsdp": Plan(kind="hsdp"), "clipped": Plan(kind="hsdp", clip=0.5)})


def compare(size: int, plans: dict[str, Plan]) -> None:
    plans = {name: plan.but(steps=24) for name, plan in plans.items()}
    pairs = [plan.but(guarded=guarded) for plan in plans.values() for guarded in (True, False)]
    for results in run_ranks(run_all, size, [(train, plan) for plan in pairs]):
        for at, name in enumerate(plans):
            guarded, plain = results[2 * at], results[2 * at + 1]
            assert_same(plain.state, guarded.state, name)
            assert plain.losses == guarded.losses
            assert plain.norms == guarded.norms
            assert not guarded.actions, name
