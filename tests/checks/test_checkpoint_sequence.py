"""Checkpoints that are compared with the one before."""

from __future__ import annotations

from headway.checks.checkpoint_tensors import CheckpointSequence
from headway.core.records import EventRecord, TensorRecord
from headway.core.state import decode, encode


def save(saved: CheckpointSequence, step: int, *names: str) -> None:
    data = {"path": f"run/step_{step}.pt", "step": step}
    saved.announce(EventRecord(0, step, step, "checkpoint", data))
    for name in names:
        saved.add(TensorRecord(0, step, step, name, "weight", "float32", (2,), {"numel": 2}))


def steps(saved: CheckpointSequence) -> tuple[int | None, int | None] | None:
    pair = saved.pair()
    return None if pair is None else (pair[0].step, pair[1].step)


def test_each_pair_once_and_never_across_an_empty_one() -> None:
    saved = CheckpointSequence()
    saved.add(TensorRecord(0, 0, 0, "w", "weight", "float32", (2,), {}))  # of the training itself
    save(saved, 1, "w")
    assert steps(saved) is None
    save(saved, 2, "w")
    assert steps(saved) == (2, 1)
    assert steps(saved) is None
    save(saved, 3)
    assert steps(saved) is None
    saved = decode(encode(saved))
    save(saved, 4, "w")
    assert steps(saved) == (4, 2)


def test_another_model_is_not_compared() -> None:
    saved = CheckpointSequence()
    save(saved, 1, "w")
    saved.pair()
    save(saved, 2, "v")
    assert saved.pair() is None
