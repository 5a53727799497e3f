"""An eps at the user's line cures what it should; typed by hand, it does the same."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.remedy_runs import Script, attempt, bits, leaves_nothing, operands, run, scene_of
from torch import Tensor, nn

from headway.explain.counterfactual import select_remedies
from headway.explain.explanation import Operand, Origin, Phase
from headway.explain.remedies.one_line_remedies import GuardInput
from headway.torch_adapters.frames import Location


class Scale(nn.Module):
    """Multiplies by a weight of 1, so that there is something to train."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


@dataclass(frozen=True)
class Case:
    name: str
    line: str
    """The line that goes wrong; `x` is the batch times a weight of 1."""
    bad: list[Any]
    good: list[Any]
    kind: str
    op: str
    phase: Phase = "forward"
    inputs: tuple[Operand, ...] = ()
    before: str = ""
    rewritten: bool = True

    def text(self) -> str:
        before = f"    {self.before}\n" if self.before else ""
        return (
            "def step(batch):\n    x = model(batch)\n    other = 2.0 * x\n"
            f"{before}    {self.line}  # here\n    return loss\n"
        )


NEGATIVE = operands(torch.ones(3), torch.tensor([-1.0, 0.0, 2.0]))
COUNT = operands(torch.ones(()), torch.tensor(0))
OPEN = [0.2, 0.5, 0.9]
INF = float("inf")

CASES = [
    Case("gamma", "loss = torch.lgamma(x).mean()", [0.0, 0.5, 1.0], OPEN, "log-of-zero", "lgamma"),
    Case(
        "softplus",
        "loss = torch.log(1 + torch.exp(x)).mean()",
        [1.0, 95.0, 30.0],
        OPEN,
        "exp-overflow",
        "exp",
    ),
    Case(
        "softplus by log1p",
        "loss = x.exp().log1p().mean()",
        [1.0, 95.0, 30.0],
        OPEN,
        "overflow",
        "exp",
    ),
    Case(
        "eigenvectors",
        "loss = torch.linalg.eigh(a)[1][0].abs().sum()",
        [1.0, 1.0, 1.0],
        OPEN,
        "zero-over-zero",
        "linalg_eigh",
        "backward",
        before="a = x[:, None] * torch.eye(3)",
    ),
    Case(
        "masked after its use",
        "loss = torch.where(y.isnan(), 0.0, (x - y).square()).mean()",
        [0.1, 2.0, 0.2],
        OPEN,
        "masked-nan",
        "pow",
        "backward",
        before="y = torch.where(batch > 1, torch.nan, batch - 0.1)",
    ),
    Case(
        "half",
        "loss = other.half().float().mean()",
        [1.0, 1e5, 1.0],
        OPEN,
        "overflow",
        "to",
    ),
    Case(
        "to float16",
        "loss = other.to(dtype=torch.float16).float().mean()",
        [1.0, 1e5, 1.0],
        OPEN,
        "overflow",
        "to",
    ),
    Case("log", "loss = -torch.log(x).mean()", [0.0, 0.5, 1.0], OPEN, "log-of-zero", "log"),
    Case("log method", "loss = -x.log().mean()", [0.0, 0.5, 1.0], OPEN, "log-of-zero", "log"),
    Case(
        "log of less", "loss = torch.log2(x).sum()", [-1.0, 0.5, 1.0], OPEN,
        "log-of-negative", "log2",
    ),
    Case("log1p", "loss = torch.log1p(-x).sum()", [1.0, 0.5, 0.1], OPEN, "log-of-zero", "log1p"),
    Case(
        "log in place", "loss = x.clone().log_().sum()", [0.0, 0.5, 1.0], OPEN,
        "log-of-zero", "log", rewritten=False,
    ),
    Case(
        "log behind where", "loss = torch.where(x > 0, torch.log(x), 0.0).sum()",
        [0.0, 0.5, 1.0], OPEN, "zero-times-infinity", "log", "backward",
    ),
    Case(
        "xlogy", "loss = torch.special.xlogy(other, x).sum() + other.sum()", [-1.0, 0.5, 1.0], OPEN,
        "log-of-negative", "xlogy",
    ),
    Case("sqrt", "loss = torch.sqrt(x).sum()", [0.0, 1.0], OPEN, "sqrt-at-zero", "sqrt",
         "backward"),
    Case(
        "sqrt method", "loss = (x - 0.0).sqrt().sum()", [0.0, 1.0], OPEN,
        "sqrt-at-zero", "sqrt", "backward",
    ),
    Case(
        "sqrt of less", "loss = x.sqrt().sum()", [-1.0, 1.0], OPEN, "sqrt-of-negative", "sqrt",
    ),
    Case("rsqrt", "loss = torch.rsqrt(x).sum()", [0.0, 1.0], OPEN, "division-by-zero", "rsqrt"),
    Case("pow", "loss = (x ** 0.5).sum()", [0.0, 1.0], OPEN, "pow-singular", "pow", "backward"),
    Case("inverse pow", "loss = x.pow(-1).sum()", [0.0, 1.0], OPEN, "pow-singular", "pow"),
    Case(
        "inverse pow of both signs", "loss = (x ** -2).sum()", [-1.0, 0.0, 2.0], OPEN,
        "pow-singular", "pow", inputs=operands(torch.tensor([-1.0, 0.0, 2.0])),
    ),
    Case(
        "root of squares", "loss = (((x - 0.5) ** 2).sum() ** 0.5) / 0.07", [0.5, 0.5],
        [0.2, 0.9], "pow-singular", "pow", "backward",
    ),
    Case(
        "several divisions", "loss = (other / x).sum() / 0.07 + (other / (x - 5)).sum()",
        [0.0, 1.0], OPEN, "zero-over-zero", "div",
    ),
    Case("div", "loss = (other / x).sum()", [0.0, 1.0], OPEN, "zero-over-zero", "div"),
    Case("inverse", "loss = (1 / x).sum()", [0.0, 1.0], OPEN, "division-by-zero", "reciprocal"),
    Case(
        "reciprocal", "loss = x.reciprocal().sum()", [0.0, 1.0], OPEN,
        "division-by-zero", "reciprocal",
    ),
    Case(
        "div of both signs", "loss = torch.div(other + 1, x).sum()", [-1.0, 0.0, 2.0], OPEN,
        "division-by-zero", "div", inputs=NEGATIVE,
    ),
    Case("div in place", "other /= x; loss = other.sum()", [0.0, 1.0], OPEN, "zero-over-zero",
         "div"),
    Case("div_", "loss = other.div_(x).sum()", [0.0, 1.0], OPEN, "zero-over-zero", "div"),
    Case(
        "a count", "loss = kept.sum() / len(kept)", [0.0, 0.0], [2.0, 3.0], "zero-over-zero",
        "div", before="kept = x[x > 1]",
    ),
    Case(
        "product in float16", "loss = (low * low).float().mean()", [1.0, 300.0], [0.5, 0.25],
        "overflow", "mul", before="low = x.half()", inputs=operands(torch.ones(2).half()),
    ),
    Case(
        "div by a count", "loss = x[batch > 9].sum() / (batch > 9).sum()", [0.0, 1.0], [10.0, 11.0],
        "zero-over-zero", "div", inputs=COUNT,
    ),
    Case(
        "div by a number", "loss = x[batch > 9].sum() / int((batch > 9).sum())",
        [0.0, 1.0], [10.0, 11.0], "zero-over-zero", "div",
    ),
    Case("unit vector", "loss = (x / x.norm())[0]", [0.0, 0.0], OPEN, "zero-over-zero", "div"),
    Case(
        "norm", "loss = (x / torch.norm(x, dim=0, keepdim=True)).sum()", [0.0, 0.0], OPEN,
        "norm-at-zero", "norm",
    ),
    Case(
        "norm method", "loss = (x / x.norm(2, 0)).sum()", [0.0, 0.0], OPEN,
        "norm-at-zero", "norm",
    ),
    Case("normalize", "loss = F.normalize(x, dim=0, eps=0).sum()", [0.0, 0.0], OPEN,
         "zero-over-zero", "div"),
    Case(
        "cosine", "loss = F.cosine_similarity(x, other, dim=0, eps=0.0)", [0.0, 0.0], OPEN,
        "zero-over-zero", "div",
    ),
    Case(
        "std of one", "loss = torch.std(x)", [3.0], [1.0], "std-singular", "std", rewritten=True,
    ),
    Case("var of one", "loss = x.var(0)", [3.0], [1.0], "std-singular", "var"),
    Case("exp", "loss = torch.exp(x).mean()", [100.0, 1.0], OPEN, "exp-overflow", "exp"),
    Case("exp2", "loss = x.exp2().mean()", [200.0, 1.0], OPEN, "overflow", "exp2"),
    Case("sinh", "loss = torch.sinh(x).sum()", [-100.0, 1.0], OPEN, "exp-overflow", "sinh"),
    Case("acos", "loss = torch.acos(x).sum()", [1.0, 0.5], OPEN, "acos-at-one", "acos", "backward"),
    Case("asin beyond", "loss = x.asin().sum()", [1.1, 0.5], OPEN, "acos-at-one", "asin"),
    Case("acosh", "loss = torch.acosh(x).sum()", [1.0, 1.5], [1.5, 2.0], "acos-at-one", "acosh",
         "backward"),
    Case("logit", "loss = torch.logit(x).sum()", [1.0, 0.5], OPEN, "log-of-zero", "logit"),
    Case("entr", "loss = torch.special.entr(x).sum()", [0.0, 0.5], OPEN, "log-of-zero", "entr",
         "backward"),
    Case(
        "hypot", "loss = torch.hypot(x, other).sum()", [0.0, 0.5], OPEN, "norm-at-zero", "hypot",
        "backward",
    ),
    Case("atanh", "loss = torch.atanh(x).sum()", [1.0, 0.5], OPEN, "unknown", "atanh"),
    Case(
        "softmax", "loss = torch.softmax(s, dim=-1)[0] + x.sum()", [1.0, 2.0], [-1.0, 2.0],
        "masked-softmax-row", "softmax", before='s = x.masked_fill(batch > 0, -float("inf"))',
    ),
    Case(
        "log_softmax", "loss = -F.log_softmax(s, dim=-1)[0] / 1e30 + x.sum()",
        [1.0, 2.0], [-1.0, -2.0], "masked-softmax-row", "log_softmax",
        before='s = x.masked_fill(batch > 0, -float("inf"))',
    ),
    Case(
        "infinities", "loss = (s - s.max()).exp().sum() + x.sum()", [1.0, 2.0], [-1.0, 2.0],
        "infinity-minus-infinity", "sub", before='s = x.masked_fill(batch > 0, -float("inf"))',
        inputs=operands(torch.full((2,), -INF), torch.tensor(-INF)),
    ),
    Case(
        "mask by product", "loss = (m * s).sum() + x.sum()", [1.0, 2.0], [-1.0, -2.0],
        "zero-times-infinity", "mul",
        before='s = x.masked_fill(batch > 0, float("inf")); m = (batch <= 0).float()',
        inputs=operands(torch.zeros(2), torch.full((2,), INF)),
    ),
    Case(
        "singular", "loss = torch.logdet(x.reshape(2, 2))", [1.0, 2.0, 2.0, 4.0],
        [2.0, 1.0, 1.0, 3.0], "log-of-zero", "linalg_slogdet",
    ),
    Case(
        "singular, by a method", "loss = x.reshape(2, 2).logdet()", [1.0, 2.0, 2.0, 4.0],
        [2.0, 1.0, 1.0, 3.0], "log-of-zero", "linalg_slogdet",
    ),
    Case(
        "classes of weight 0", "loss = F.cross_entropy(scores, labels, weight=importance)",
        [0.0, 0.0], [0.0, 1.0], "mean-of-nothing", "nll_loss",
        before="scores = x.new_ones(2, 3) * model.weight; labels = batch.long(); "
        "importance = torch.tensor([0.0, 1.0, 2.0])",
    ),
    Case(
        "product that grows", "loss = (x * x).sum()", [1e30, 1.0], [1.0, 2.0], "overflow", "mul",
    ),
    Case(
        "square that grows", "loss = x.square().sum()", [1e30, 1.0], [1.0, 2.0], "overflow",
        "square",
    ),
    Case(
        "large and small factor", "loss = (x * 3e30).sum()", [1e30, 1.0], [1.0, 2.0], "overflow",
        "mul",
    ),
    Case("mean", "loss = x[x > 9].mean()", [0.0, 1.0], [10.0, 11.0], "mean-of-nothing", "mean"),
    Case(
        "loss of nothing", "loss = F.mse_loss(x[x > 9], other[x > 9])", [0.0, 1.0], [10.0, 11.0],
        "mean-of-nothing", "mse_loss", rewritten=False,
    ),
    Case(
        "labels ignored", "loss = F.cross_entropy(scores, labels)", [-100.0, -100.0], [0.0, 1.0],
        "mean-of-nothing", "nll_loss",
        before="scores = x.new_ones(2, 3) * model.weight; labels = batch.long()",
    ),
    Case(
        "labels ignored, other index",
        "loss = F.cross_entropy(scores, labels, ignore_index=2)", [2.0, 2.0], [0.0, 2.0],
        "mean-of-nothing", "nll_loss",
        before="scores = x.new_ones(2, 3) * model.weight; labels = batch.long()",
    ),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_guarded_line_is_cured_and_the_edited_line_as_well(case: Case, tmp_path: Path) -> None:
    model = Scale()
    script = Script(tmp_path / "loss.py", case.text())
    step = script.load(model=model)["step"]
    scene = scene_of(model, torch.tensor(case.bad))
    good = torch.tensor(case.good)
    healthy = scene_of(model, good)
    place = script.line()
    origin = Origin(case.kind, "", case.phase, case.op, place=place, inputs=tuple(case.inputs))

    assert not run(scene, step).finite
    remedy = next(
        r for r in select_remedies(origin, None, scene, "deterministic") if r.key == "guard-input"
    )
    assert isinstance(remedy, GuardInput)
    assert remedy.safe
    trial = attempt(scene, step, remedy)
    assert trial.tried == "cured", trial
    cured = run(scene, step, remedy)
    if case.good != [1.0]:  # one number alone has no deviation to be healthy with
        leaves_nothing(scene, step, remedy, healthy)

    assert f"{place}" in trial.text
    if not case.rewritten:
        assert remedy.edited is None
        return
    assert remedy.edited is not None
    assert f"`{remedy.edited}`" in trial.text
    by_hand = script.edited(place, remedy.edited).load(model=model)["step"]
    edited = run(scene, by_hand)
    assert edited.finite, remedy.edited
    assert edited.losses == pytest.approx(cured.losses, rel=1e-6, abs=1e-6)
    assert list(edited.norms.values()) == pytest.approx(
        list(cured.norms.values()), rel=1e-5, abs=1e-6
    )


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_another_line_is_left_alone(case: Case, tmp_path: Path) -> None:
    model = Scale()
    script = Script(tmp_path / "loss.py", case.text())
    step = script.load(model=model)["step"]
    scene = scene_of(model, torch.tensor(case.bad))
    elsewhere = replace(script.line(), line=script.line().line + 1)
    origin = Origin(case.kind, "", case.phase, case.op, place=elsewhere, inputs=tuple(case.inputs))
    remedy = GuardInput.fitting(origin)
    assert remedy is not None
    trial = attempt(scene, step, remedy)
    assert trial.tried != "cured"
    assert not remedy.engaged


def test_a_healthy_step_under_a_guard_is_hardly_changed(tmp_path: Path) -> None:
    for case in CASES:
        if case.good == [1.0]:
            continue
        model = Scale()
        script = Script(tmp_path / "loss.py", case.text())
        step = script.load(model=model)["step"]
        healthy = scene_of(model, torch.tensor(case.good))
        inputs = tuple(case.inputs)
        origin = Origin(case.kind, "", case.phase, case.op, place=script.line(), inputs=inputs)
        remedy = GuardInput.fitting(origin)
        assert remedy is not None
        plain, guarded = run(healthy, step), run(healthy, step, remedy)
        assert guarded.losses == pytest.approx(plain.losses, rel=1e-5), case.name


def test_no_eps_for_an_overflow() -> None:
    place = Location("train.py", 3, source="y = a @ b")
    assert GuardInput.fitting(Origin("overflow", "", "forward", "mm", place=place)) is None
    assert GuardInput.fitting(Origin("overflow", "", "forward", "div", place=place)) is None


def test_the_wrong_guard_does_not_cure(tmp_path: Path) -> None:
    model = Scale()
    text = "def step(batch):\n    x = model(batch)\n    return (torch.log(x) / x).sum()  # here\n"
    script = Script(tmp_path / "loss.py", text)
    step = script.load(model=model)["step"]
    scene = scene_of(model, torch.tensor([0.0, 1.0]))
    origin = Origin("division-by-zero", "", "forward", "div", place=script.line())
    remedy = GuardInput.fitting(origin)
    assert remedy is not None
    trial = attempt(scene, step, remedy)
    assert trial.tried == "not cured"
    assert trial.why == "the loss is still -inf"


def test_what_torch_calls_for_the_line_is_guarded(tmp_path: Path) -> None:
    """A layer of torch's whose softmax has a row that is masked completely."""
    torch.manual_seed(0)
    model = nn.MultiheadAttention(4, 1, batch_first=True)
    text = (
        "def step(batch):\n"
        "    x, mask = batch\n"
        "    out, _ = model(\n"
        "        x, x, x, key_padding_mask=mask  # here\n"
        "    )\n"
        "    return out.sum()\n"
    )
    script = Script(tmp_path / "model.py", text)
    step = script.load(model=model)["step"]
    mask = torch.tensor([[False, True], [True, True]])
    x = torch.randn(2, 2, 4)
    scene = scene_of(model, (x, mask))
    place = replace(script.line(), line=3, source="out, _ = model(")
    origin = Origin("masked-softmax-row", "", "forward", "softmax", place=place)
    assert not run(scene, step).finite
    remedy = GuardInput.fitting(origin)
    assert remedy is not None
    trial = attempt(scene, step, remedy)
    assert trial.tried == "cured", trial
    assert "do not mask a complete row" in remedy.text
    leaves_nothing(scene, step, remedy, scene_of(model, (x, torch.zeros(2, 2, dtype=torch.bool))))
    opened = mask.masked_fill(mask.all(-1, keepdim=True), False)  # by hand
    assert run(scene_of(model, (x, opened)), step).finite


def test_normalize_in_float16(tmp_path: Path) -> None:
    """1e-12 is 0 in float16: the default eps of F.normalize protects nothing there."""
    model = Scale().half()
    text = "def step(batch):\n    x = model(batch)\n    return F.normalize(x).sum()  # here\n"
    script = Script(tmp_path / "loss.py", text)
    step = script.load(model=model)["step"]
    scene = scene_of(model, torch.zeros(2, 3, dtype=torch.float16))
    inputs = operands(torch.zeros(2, 3).half(), torch.zeros(2, 3).half())
    origin = Origin("zero-over-zero", "", "forward", "div", place=script.line(), inputs=inputs)
    assert not run(scene, step).finite
    remedy = GuardInput.fitting(origin)
    assert remedy is not None
    assert remedy.edited == "return F.normalize(x, eps=0.001).sum()"
    trial = attempt(scene, step, remedy)
    assert trial.tried == "cured", trial
    by_hand = script.edited(script.line(), remedy.edited).load(model=model)["step"]
    assert bits(run(scene, by_hand)) == bits(run(scene, step, remedy))


def test_a_statement_over_several_lines_is_rewritten_from_the_file(tmp_path: Path) -> None:
    text = "def step(batch):\n    x = model(batch)\n    return torch.log(\n        x\n    ).sum()\n"
    script = Script(tmp_path / "loss.py", text)
    place = Location(str(script.path), 3, "step", "return torch.log(")
    remedy = GuardInput.fitting(Origin("log-of-zero", "", "forward", "log", place=place))
    assert remedy is not None
    assert remedy.edited == "return torch.log( x.clamp_min(1e-12) ).sum()"


def test_the_norm_of_a_matrix_is_left_alone() -> None:
    source = "y = torch.linalg.norm(a, 2) + torch.linalg.norm(b)"
    place = Location("loss.py", 3, source=source)
    remedy = GuardInput.fitting(Origin("norm-at-zero", "", "backward", "norm", place=place))
    assert remedy is not None
    assert remedy.edited == ("y = torch.linalg.norm(a, 2) + (b.square().sum() + 1e-12).sqrt()")


def test_a_line_of_a_library_is_told_with_the_users() -> None:
    place, users = Location("lib/loss.py", 3, source="y = p.log()"), Location("train.py", 9)
    origin = Origin("log-of-zero", "", "forward", "log", place=place, called_from=users)
    remedy = GuardInput.fitting(origin)
    assert remedy is not None
    assert remedy.text == (
        "At lib/loss.py:3 (called from train.py:9) write `y = p.clamp_min(1e-12).log()`"
    )


def test_a_method_of_the_users_that_is_called_log_is_not_rewritten() -> None:
    place = Location("train.py", 3, source='self.log("loss", loss); y = p.log()')
    remedy = GuardInput.fitting(Origin("log-of-zero", "", "forward", "log", place=place))
    assert remedy is not None
    assert remedy.edited == 'self.log("loss", loss); y = p.clamp_min(1e-12).log()'


def test_memory_that_nobody_filled(tmp_path: Path) -> None:
    model = Scale()
    text = (
        "def step(batch):\n"
        "    total = torch.empty(3)  # here\n"
        "    return (total + model(batch)).sum()\n"
    )
    script = Script(tmp_path / "loss.py", text)
    step = script.load(model=model)["step"]
    scene = scene_of(model, torch.ones(3))
    origin = Origin("uninitialised-memory", "", "forward", "add", place=script.line())
    remedy = GuardInput.fitting(origin)
    assert remedy is not None
    # The one way to have bad memory for certain: torch fills it with NaN in this mode.
    torch.use_deterministic_algorithms(True)
    try:
        assert not run(scene, step).finite
        trial = attempt(scene, step, remedy)
        assert trial.tried == "cured", trial
        assert remedy.edited == "total = torch.zeros(3)"
        by_hand = script.edited(script.line(), remedy.edited).load(model=model)["step"]
        assert bits(run(scene, by_hand)) == bits(run(scene, step, remedy))
    finally:
        torch.use_deterministic_algorithms(False)


def test_a_forward_that_runs_again_in_the_backward_is_guarded_too(tmp_path: Path) -> None:
    from torch.utils.checkpoint import checkpoint

    model = Scale()
    text = (
        "def inner(x):\n"
        "    return torch.sqrt(model(x)).sum()  # here\n"
        "def step(batch):\n"
        "    return checkpoint(inner, batch, use_reentrant=False)\n"
    )
    script = Script(tmp_path / "loss.py", text)
    step = script.load(model=model, checkpoint=checkpoint)["step"]
    scene = scene_of(model, torch.tensor([0.0, 1.0]))
    place = script.line()
    remedy = GuardInput.fitting(Origin("sqrt-at-zero", "", "backward", "sqrt", place=place))
    assert remedy is not None
    assert not run(scene, step).finite
    trial = attempt(scene, step, remedy)
    assert trial.tried == "cured", trial
