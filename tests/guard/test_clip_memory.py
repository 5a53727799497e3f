"""What an adaptive clipping learns: the published formulas, and nothing from a bad step."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.reference_clipping import PlainAdaGC, PlainZClip
from support.strategies import thoroughly
from support.trainings import assert_same
from torch import Tensor, nn

from headway import AdaGC, ZClip
from headway.errors import UsageError
from headway.guard.brake.clip_rules import AdaptiveClip, ClipStatistics
from headway.guard.measure.gradient_measure import GradientNorms

TENSORS = 3
RULES = {"AdaGC": AdaGC(warmup=4), "ZClip": ZClip(warmup=4)}
BOTH = pytest.mark.parametrize("name", RULES)

norm = st.floats(1e-5, 1e5)
norms_of_a_step = st.lists(norm | st.just(0.0), min_size=TENSORS, max_size=TENSORS)
runs = st.lists(norms_of_a_step, min_size=1, max_size=40)
NOT_FINITE = st.sampled_from([math.nan, math.inf])


class Steps:
    """A memory, and the optimizer whose gradients it is of."""

    def __init__(self, rule: AdaptiveClip, tensors: int = TENSORS) -> None:
        self.parameters: list[Any] = [nn.Parameter(torch.zeros(2)) for _ in range(tensors)]
        self.optimizer = torch.optim.SGD(self.parameters, lr=0.1)
        self.memory = ClipStatistics(rule, self.optimizer)

    def take(
        self, norms: Sequence[float], *, of: Sequence[int] | None = None, bad: bool | None = None
    ) -> list[float]:
        """A step with these norms; the factor for each of them."""
        each = torch.tensor(norms)
        chosen = self.parameters if of is None else [self.parameters[at] for at in of]
        verdict = None if bad is None else torch.tensor(bad)
        factors = self.memory.factors(chosen, GradientNorms(each, each.norm()), verdict)
        return factors.expand(len(norms)).tolist()

    @property
    def state(self) -> dict[str, Any]:
        return self.memory.state_dict()


def copy_of(steps: Steps) -> Steps:
    other = Steps(steps.memory.rule, len(steps.parameters))
    assert other.memory.load_state_dict(steps.state)
    return other


@thoroughly
@given(
    runs,
    st.builds(
        AdaGC,
        relative=st.floats(0.5, 3.0),
        beta=st.floats(0.0, 0.99),
        warmup=st.integers(1, 8),
        max_norm=st.floats(0.01, 100.0),
    ),
)
def test_adagc_is_the_published_algorithm(run: list[list[float]], rule: AdaGC) -> None:
    steps, expected = Steps(rule), PlainAdaGC(rule, TENSORS)
    for norms in run:
        assert steps.take(norms) == pytest.approx(expected.step(norms), rel=1e-4)
    assert steps.state["seen"].tolist() == expected.seen
    assert steps.state["usual"].tolist() == pytest.approx(expected.usual, rel=1e-4)


@thoroughly
@given(
    runs,
    st.builds(
        ZClip,
        z=st.floats(0.5, 4.0),
        alpha=st.floats(0.5, 0.99),
        warmup=st.integers(1, 8),
        max_norm=st.none() | st.floats(0.01, 100.0),
    ),
)
def test_zclip_is_the_published_algorithm(run: list[list[float]], rule: ZClip) -> None:
    steps, expected = Steps(rule), PlainZClip(rule)
    for norms in run:
        assert steps.take(norms) == pytest.approx(expected.step(norms), rel=1e-3)
        if len(expected.first):
            mean = steps.state["mean"].item()
            assert mean == pytest.approx(expected.mean, rel=1e-3)
            rounding = 1e-5 * expected.mean**2
            variance = steps.state["variance"].item()
            assert variance == pytest.approx(expected.variance, rel=1e-2, abs=rounding)


def test_the_defaults_are_the_published_ones() -> None:
    assert AdaGC() == AdaGC(relative=1.05, beta=0.98, warmup=100, max_norm=1.0)
    assert ZClip() == ZClip(z=2.5, alpha=0.97, warmup=25, max_norm=None)


def test_a_spike_is_brought_down_by_adagc_in_its_own_tensor_only() -> None:
    steps = Steps(AdaGC(warmup=4, max_norm=100.0))
    for _ in range(8):
        steps.take([1.0, 2.0, 4.0])
    assert steps.take([1.0, 200.0, 4.0]) == pytest.approx([1.0, 1.05 * 2 / 200, 1.0])


def test_the_further_out_the_harder_zclip_clips() -> None:
    steps = Steps(ZClip(warmup=100), tensors=1)
    for at in range(100):
        steps.take([9.0 + 2 * (at % 2)])  # mean 10, deviation 1
    (mild,), (hard,) = (copy_of(steps).take([size]) for size in (15.0, 1010.0))
    assert mild * 15.0 == pytest.approx(10 + 2.5**2 / 5, rel=1e-4)
    assert hard * 1010.0 == pytest.approx(10 + 2.5**2 / 1000, rel=1e-4)


# What must not be learned.


@thoroughly
@given(st.data(), runs, st.sampled_from(list(RULES.values())))
def test_a_bad_step_is_as_if_it_had_never_been(
    data: st.DataObject, run: list[list[float]], rule: AdaptiveClip
) -> None:
    """Not finite, or finite and held back: neither clipped nor learned from."""
    watched, clean = Steps(rule), Steps(rule)
    for norms in run:
        kind = data.draw(st.sampled_from(["fine", "not finite", "held"]))
        if kind == "not finite":
            spoiled = list(norms)
            spoiled[data.draw(st.integers(0, TENSORS - 1))] = data.draw(NOT_FINITE)
            verdict = data.draw(st.sampled_from([None, False, True]))
            assert watched.take(spoiled, bad=verdict) == [1.0] * TENSORS
        elif kind == "held":
            assert watched.take(norms, bad=True) == [1.0] * TENSORS
        assert watched.take(norms, bad=False) == clean.take(norms)
        assert_same(clean.state, watched.state)


@BOTH
def test_one_step_can_be_undone(name: str) -> None:
    steps = Steps(RULES[name])
    for at in range(6):
        steps.take([1.0, 2.0, 3.0 + at])
    before = steps.state
    steps.take([7.0, 7.0, 7.0])
    assert not torch.equal(before["seen"], steps.state["seen"])
    steps.memory.undo()
    assert_same(before, steps.state)


@BOTH
def test_a_norm_of_zero_does_not_freeze_a_tensor(name: str) -> None:
    """The first gradient of a LoRA's A is exactly 0; as a running minimum it would stay."""
    steps = Steps(RULES[name])
    for _ in range(10):
        assert steps.take([0.0, 0.0, 0.0]) == [1.0] * TENSORS
    for _ in range(10):
        factors = steps.take([0.1, 0.1, 0.1])
    assert factors == pytest.approx([1.0] * TENSORS)


def test_zeros_in_between_do_not_lower_what_is_usual() -> None:
    """An expert that is asked at one step in ten has a gradient at one step in ten."""
    steps = Steps(AdaGC(warmup=4))
    for at in range(400):
        factors = steps.take([0.1, 0.1, 0.1 if at % 10 == 9 else 0.0])
    assert factors == pytest.approx([1.0] * TENSORS)


@BOTH
@pytest.mark.parametrize("size", [1e25, 1e38])
def test_a_norm_whose_square_overflows_poisons_nothing(name: str, size: float) -> None:
    """Finite, and within bounds as long as there is no history; its variance would be infinite."""
    steps = Steps(RULES[name])
    steps.take([1.0, 1.0, 1.0])
    steps.memory.factors(
        steps.parameters, GradientNorms(torch.tensor([1.0, 1.0, size]), torch.tensor(size))
    )
    assert all(torch.isfinite(v).all() for k, v in steps.state.items() if k != "rule")
    for _ in range(60):
        steps.take([0.3, 0.4, 0.5])
    assert min(steps.take([30.0, 40.0, 50.0])) < 0.2, "it still clips"


def test_norms_far_below_one_are_not_taken_for_zero() -> None:
    """A constant added against a division by 0 must not shrink small gradients."""
    for rule in RULES.values():
        steps = Steps(rule)
        for at in range(30):
            factors = steps.take([1e-9 * (1 + 0.01 * (at % 3))] * TENSORS)
        assert factors == pytest.approx([1.0] * TENSORS, abs=0.05)


# Parameters that come and go.


def test_every_parameter_has_its_own_history_whatever_the_order() -> None:
    steps, expected = Steps(AdaGC(warmup=3)), PlainAdaGC(AdaGC(warmup=3), TENSORS)
    generator = torch.Generator().manual_seed(0)
    for at in range(30):
        norms = (torch.rand(TENSORS, generator=generator) + 0.1).tolist()
        order = [(0, 1, 2), (2, 0, 1), (2, 1, 0)][at % 3]
        found = steps.take([norms[place] for place in order], of=order)
        factors = expected.step(norms)
        assert found == pytest.approx([factors[place] for place in order], rel=1e-4)


def test_a_parameter_that_joins_late_starts_with_a_warmup_of_its_own() -> None:
    rule = AdaGC(warmup=5, max_norm=1.0)
    steps = Steps(rule)
    for _ in range(20):
        steps.take([0.3, 0.3], of=[0, 1])
    assert steps.take([0.3, 0.3, 40.0])[2] == pytest.approx(1 / 40, rel=1e-3)
    assert steps.state["seen"].tolist() == [21, 21, 1]


def test_a_group_that_is_added_on_the_way() -> None:
    steps = Steps(AdaGC(warmup=2))
    for _ in range(5):
        steps.take([0.1, 0.1, 0.1])
    steps.parameters.append(nn.Parameter(torch.zeros(2)))
    steps.optimizer.add_param_group({"params": steps.parameters[3:]})
    steps.take([0.1, 0.1, 0.1], of=[0, 1, 2])  # the new one has no gradient yet
    steps.take([0.1, 0.1, 0.1, 0.2])
    assert steps.state["seen"].tolist() == [7, 7, 7, 1]
    assert steps.state["usual"].tolist() == pytest.approx([0.1, 0.1, 0.1, 0.2])


# State.


@BOTH
@pytest.mark.parametrize("saved_after", [0, 2, 9])
def test_a_saved_state_goes_on_as_if_never_interrupted(name: str, saved_after: int) -> None:
    generator = torch.Generator().manual_seed(1)
    run = (torch.rand(30, TENSORS, generator=generator) * 3).tolist()
    steps = Steps(RULES[name])
    for norms in run[:saved_after]:
        steps.take(norms)
    file = io.BytesIO()
    torch.save(steps.state, file)
    file.seek(0)
    resumed = Steps(RULES[name])
    resumed.take([5.0, 5.0, 5.0])  # what it knew before is gone
    assert resumed.memory.load_state_dict(torch.load(file, weights_only=True))
    for norms in run[saved_after:]:
        assert resumed.take(norms) == steps.take(norms)
    assert_same(steps.state, resumed.state)


@BOTH
def test_a_state_that_was_taken_stays_as_it_was(name: str) -> None:
    """Roll-back may come any number of steps later."""
    steps = Steps(RULES[name])
    steps.take([1.0, 2.0, 3.0])
    taken = steps.state
    copied = {key: v.clone() if isinstance(v, Tensor) else v for key, v in taken.items()}
    for _ in range(9):
        steps.take([2.0, 3.0, 4.0])
    assert_same(copied, taken)
    steps.memory.load_state_dict(taken)
    taken["seen"].fill_(1e6)
    assert_same(copied["seen"], steps.state["seen"])


WRONG: dict[str, dict[str, Any]] = {
    "empty": {},
    "of no rule": {"seen": torch.tensor(3.0)},
    "more tensors": {"rule": "AdaGC", "seen": torch.ones(4), "usual": torch.ones(4)},
    "another length": {"rule": "AdaGC", "seen": torch.ones(3), "usual": torch.ones(2)},
    "a name too few": {"rule": "AdaGC", "seen": torch.ones(3)},
    "another shape": {"rule": "AdaGC", "seen": torch.tensor(1.0), "usual": torch.tensor(1.0)},
    "a vector": {
        "rule": "ZClip",
        "seen": torch.ones(1),
        "mean": torch.ones(1),
        "variance": torch.ones(1),
    },
}


@BOTH
@pytest.mark.parametrize("kind", [*WRONG, "another rule's"])
def test_a_state_that_does_not_fit_is_not_taken_over(name: str, kind: str) -> None:
    steps = Steps(RULES[name])
    other = Steps(RULES["ZClip" if name == "AdaGC" else "AdaGC"])
    other.take([1.0, 1.0, 1.0])
    steps.take([1.0, 1.0, 1.0])
    assert not steps.memory.load_state_dict(WRONG.get(kind, other.state))
    assert steps.state == {"rule": name}, "nothing is known"
    assert len(steps.take([1.0, 1.0, 1.0])) == TENSORS


# Settings.


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: AdaGC(relative=0.0), r"AdaGC\(relative=…\) is a positive number: got 0.0"),
        (lambda: AdaGC(relative=math.inf), "relative"),
        (lambda: AdaGC(beta=1.0), "beta.*less than 1: got 1.0"),
        (lambda: AdaGC(beta=-0.1), "beta"),
        (lambda: AdaGC(warmup=0), "warmup.*at least 1: got 0"),
        (lambda: AdaGC(max_norm=None), "max_norm.*got None"),  # type: ignore[arg-type]
        (lambda: AdaGC(max_norm="1"), "max_norm.*got '1'"),  # type: ignore[arg-type]
        (lambda: ZClip(z=-1.0), r"ZClip\(z=…\)"),
        (lambda: ZClip(alpha=1.5), "alpha"),
        (lambda: ZClip(warmup=2.5), "warmup"),  # type: ignore[arg-type]
        (lambda: ZClip(max_norm=math.nan), "max_norm"),
    ],
)
def test_a_setting_without_sense_is_refused_by_name(make: Any, named: str) -> None:
    with pytest.raises(UsageError, match=named):
        make()
