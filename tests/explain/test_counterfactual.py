"""Which remedies fit, and what is said of the outcome."""

from __future__ import annotations

import pytest
import torch
from support.remedy_runs import operands, scene_of
from torch import nn

from headway.explain.counterfactual import (
    MOST_TRIED,
    REMEDIES_BY_KIND,
    judge_trial,
    select_remedies,
)
from headway.explain.explanation import Operand, Origin
from headway.explain.failing_step import Outcome
from headway.explain.origin.bad_call import KINDS
from headway.explain.remedies.base import Advice
from headway.explain.remedies.drop_samples import DropSamples
from headway.explain.remedies.one_line_remedies import Bf16
from headway.torch_adapters.frames import Location

TOLD = (*KINDS, "unknown")
NATURAL_OP = {
    "division-by-zero": "div", "zero-over-zero": "div", "log-of-zero": "log",
    "log-of-negative": "log", "sqrt-of-negative": "sqrt", "sqrt-at-zero": "sqrt",
    "pow-singular": "pow", "overflow": "mm", "exp-overflow": "exp", "zero-times-infinity": "mul",
    "infinity-minus-infinity": "sub", "norm-at-zero": "norm", "std-singular": "std",
    "acos-at-one": "acos", "masked-softmax-row": "softmax", "mean-of-nothing": "mean",
    "masked-target": "nll_loss_forward", "uninitialised-memory": "add",
}  # fmt: skip


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(3, 1)


def keys(kind: str, dtype: torch.dtype, autocast: str | None = None) -> list[str]:
    scene = scene_of(Net(), torch.zeros(4, 3))
    origin = Origin(
        kind,
        "",
        "forward",
        NATURAL_OP.get(kind, "mm"),
        module="body",
        place=Location("loss.py", 31, source="x"),
        inputs=operands(torch.ones(2, dtype=dtype)),
        rows=(1,),
        autocast=autocast,
    )
    return [remedy.key for remedy in select_remedies(origin, None, scene, "deterministic")]


def test_every_kind_has_its_row() -> None:
    assert set(REMEDIES_BY_KIND) == set(TOLD)


@pytest.mark.parametrize("kind", TOLD)
def test_every_kind_gets_something_and_not_too_much(kind: str) -> None:
    for dtype, autocast in [
        (torch.float32, None),
        (torch.float16, None),
        (torch.float32, "float16"),
        (torch.float32, "bfloat16"),
    ]:
        found = keys(kind, dtype, autocast)
        assert 1 <= len(found) <= MOST_TRIED, (kind, dtype)
        assert len(set(found)) == len(found)


def test_what_is_tried_first() -> None:
    half, single = torch.float16, torch.float32
    assert keys("overflow", half, "float16")[:3] == ["fp32-island", "bf16", "fp32"]
    assert keys("overflow", single) == ["drop-samples", "smaller-rate"]
    assert keys("exp-overflow", single) == ["guard-input", "drop-samples", "smaller-rate"]
    for kind in ("log-of-zero", "sqrt-at-zero", "division-by-zero", "acos-at-one"):
        assert keys(kind, single) == ["guard-input", "drop-samples"]
        assert keys(kind, half) == ["guard-input", "drop-samples", "fp32-island", "fp32"]
    assert keys("poisoned-batch", single) == ["drop-samples"]
    assert keys("poisoned-weight", single) == ["roll-back"]
    assert keys("a kind of the future", single) == ["drop-samples"]


@pytest.mark.parametrize("kind", TOLD)
def test_bad_advice_is_never_given(kind: str) -> None:
    for dtype in (torch.float32, torch.float16):
        found = keys(kind, dtype)
        if kind == "overflow":
            assert "guard-input" not in found
        if "overflow" not in kind:
            assert "smaller-rate" not in found
        if dtype is torch.float32:
            assert not {"fp32-island", "bf16", "fp32"} & set(found)


def test_weights_and_buffers_are_named_and_not_tried() -> None:
    scene = scene_of(Net(), torch.zeros(4, 3))
    weight = Operand("body.weight", "weight", (1, 3), "float32", nan=1)
    origin = Origin("poisoned-weight", "", "forward", "linear", inputs=(weight,))
    (remedy,) = select_remedies(origin, None, scene, "deterministic")
    assert remedy.text == "Roll back to weights from before body.weight became non-finite"
    trial = judge_trial(remedy, None, None)
    assert trial.tried == "not tried"
    assert trial.why


def test_what_is_said_of_an_outcome() -> None:
    scene = scene_of(Net(), torch.zeros(4, 3))
    remedy = DropSamples(scene, {0: [1]})
    fine = Outcome(losses=[1.0], norms={"a": 3.0, "b": 4.0})
    assert judge_trial(remedy, fine, None).tried == "cured"
    assert judge_trial(remedy, fine, 5.0).tried == "cured"
    over = judge_trial(remedy, fine, 4.0)
    assert (over.tried, over.why) == ("not cured", "the gradient norm is 5, still above 4")
    nan = float("nan")
    bad = judge_trial(remedy, Outcome(losses=[1.0], norms={"a": nan, "b": nan, "c": 1.0}), None)
    assert (bad.tried, bad.why) == (
        "not cured",
        "the gradient of a and 1 more is still not finite",
    )
    loss = judge_trial(remedy, Outcome(losses=[1.0, nan], norms={"a": 1.0}), None)
    assert (loss.tried, loss.why) == ("not cured", "the loss is still nan")
    error = judge_trial(remedy, Outcome(error="RuntimeError: no"), None)
    assert error.tried == "not tried"
    assert "RuntimeError: no" in error.why
    assert judge_trial(remedy, Outcome(), None).tried == "not tried"
    assert judge_trial(remedy, None, None).why == "the limit on passes was reached"
    assert judge_trial(Bf16(), fine, None).tried == "not tried"  # nothing was in float16
    assert judge_trial(Advice("x", "Do x", "because"), fine, None).why == "because"
