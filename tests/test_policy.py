"""The policy: from a bad step to an action, and never further than it must go."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from support.strategies import lightly, thoroughly

from headway.errors import SettingsError
from headway.policy import Ladder, Policy, Proceed, Rung, Skip, StepVerdict

EVERY_RUNG = frozenset(Rung)
policies = st.builds(
    Policy,
    hold_spikes=st.booleans(),
    skips_in_a_row=st.integers(1, 5),
    skips_per_window=st.integers(1, 8),
    window=st.integers(1, 20),
    grace=st.integers(1, 4),
    cooldown=st.integers(1, 10),
    back_offs=st.integers(0, 3),
    roll_backs=st.integers(0, 3),
    halt=st.booleans(),
)
verdicts = st.builds(
    StepVerdict,
    step=st.integers(0, 100),
    nonfinite=st.booleans(),
    spike=st.booleans(),
    poisoned=st.lists(st.text(max_size=3), max_size=5).map(tuple),
)
rungs = st.frozensets(st.sampled_from(Rung))
ladders = st.builds(
    lambda in_a_row, held: restored({"in_a_row": in_a_row, "held": held}),
    st.integers(0, 30),
    st.lists(st.integers(0, 100), max_size=30).map(sorted),
)


def restored(state: dict[str, Any]) -> Ladder:
    ladder = Ladder()
    ladder.load_state_dict(state)
    return ladder


def live(policy: Policy, verdicts: list[StepVerdict], **kwargs: Any) -> list[Rung]:
    """The rungs taken when every action is carried out."""
    ladder, taken = Ladder(), []
    for verdict in verdicts:
        action = policy.decide(ladder, verdict, **kwargs)
        ladder.record_action(action, policy.cooldown)
        taken.append(action.rung)
    return taken


def bad(step: int) -> StepVerdict:
    return StepVerdict(step, nonfinite=True)


# One decision


def test_a_good_step_proceeds_in_silence() -> None:
    assert Policy().decide(Ladder(), StepVerdict(5)) == Proceed(5)


def test_a_bad_step_is_skipped_and_says_why() -> None:
    assert Policy().decide(Ladder(), bad(5)) == Skip(5, "non-finite loss or gradient")
    spike = Policy().decide(Ladder(), StepVerdict(5, spike=True))
    assert spike == Skip(5, "gradient spike")
    assert spike.to_dict() == {"action": "skip", "step": 5, "reason": "gradient spike"}


def test_a_spike_that_is_not_to_be_held_proceeds() -> None:
    policy = Policy(hold_spikes=False)
    assert policy.decide(Ladder(), StepVerdict(5, spike=True)).rung is Rung.PROCEED
    assert policy.decide(Ladder(), StepVerdict(5, spike=True, nonfinite=True)).rung is Rung.SKIP


@pytest.mark.parametrize(
    ("available", "expected"),
    [
        (EVERY_RUNG, Rung.ROLL_BACK),
        (frozenset({Rung.SKIP, Rung.ROLL_BACK}), Rung.ROLL_BACK),
        (frozenset({Rung.SKIP, Rung.HALT}), Rung.HALT),
        (frozenset({Rung.SKIP, Rung.BACK_OFF, Rung.HALT}), Rung.HALT),
        (frozenset({Rung.SKIP}), Rung.SKIP),
    ],
)
def test_poisoned_weights_go_straight_to_roll_back_or_halt(
    available: frozenset[Rung], expected: Rung
) -> None:
    verdict = StepVerdict(3, nonfinite=True, poisoned=("fc.weight", "fc.bias"))
    action = Policy().decide(Ladder(), verdict, available)
    assert action.rung is expected
    assert action.reason == "fc.weight, fc.bias are non-finite: skipping cannot repair it"


def test_a_long_list_of_poisoned_tensors_is_cut_short() -> None:
    action = Policy().decide(Ladder(), StepVerdict(3, poisoned=("a", "b", "c", "d", "e")))
    assert action.reason.startswith("a, b, c and 2 more are non-finite")
    assert Policy().decide(Ladder(), StepVerdict(3, poisoned=("a",))).reason.startswith("a is non-")


# The ladder


def test_so_many_skips_in_a_row_are_borne_and_no_more() -> None:
    taken = live(Policy(skips_in_a_row=3), [bad(step) for step in range(5)])
    assert taken == [Rung.SKIP, Rung.SKIP, Rung.SKIP, Rung.HALT, Rung.HALT]


def test_a_good_step_starts_the_count_again() -> None:
    steps = [bad(0), bad(1), StepVerdict(2), bad(3), bad(4), bad(5)]
    taken = live(Policy(skips_in_a_row=2), steps)
    assert taken == [Rung.SKIP, Rung.SKIP, Rung.PROCEED, Rung.SKIP, Rung.SKIP, Rung.HALT]


def test_so_many_skips_within_a_window_are_borne_and_no_more() -> None:
    policy = Policy(skips_per_window=3, window=100)
    every_tenth = [bad(step) if step % 10 == 0 else StepVerdict(step) for step in range(41)]
    taken = live(policy, every_tenth)
    assert taken.count(Rung.SKIP) == 3
    assert taken.index(Rung.HALT) == 30
    assert (
        "3 skipped updates within 100 steps"
        in policy.decide(restored({"in_a_row": 0, "held": [0, 10, 20]}), bad(30)).reason
    )


def test_skips_older_than_the_window_are_forgiven() -> None:
    policy = Policy(skips_per_window=3, window=25)
    every_tenth = [bad(step) if step % 10 == 0 else StepVerdict(step) for step in range(500)]
    assert Rung.HALT not in live(policy, every_tenth)


def test_a_window_is_as_many_steps_as_it_says() -> None:
    policy = Policy(skips_per_window=1, window=10)
    assert live(policy, [bad(0), StepVerdict(1), bad(10)])[-1] is Rung.SKIP
    assert live(policy, [bad(0), StepVerdict(1), bad(9)])[-1] is Rung.HALT


def test_a_guard_without_a_rung_goes_past_it() -> None:
    ladder = restored({"in_a_row": 99, "held": []})
    for available, expected in (
        (EVERY_RUNG, Rung.BACK_OFF),
        (EVERY_RUNG - {Rung.BACK_OFF}, Rung.ROLL_BACK),
        (EVERY_RUNG - {Rung.BACK_OFF, Rung.ROLL_BACK}, Rung.HALT),
        (frozenset({Rung.SKIP}), Rung.SKIP),
    ):
        assert Policy().decide(ladder, bad(1), available).rung is expected


def test_a_streak_climbs_rung_by_rung_and_each_is_borne_a_little() -> None:
    policy = Policy(skips_in_a_row=3, grace=2, back_offs=2, roll_backs=2)
    taken = live(policy, [bad(step) for step in range(20)], rungs=EVERY_RUNG)
    skip, off, back, halt = Rung.SKIP, Rung.BACK_OFF, Rung.ROLL_BACK, Rung.HALT
    ladder = [skip, skip, skip, off, skip, skip, off, skip, skip, back, skip, skip, back]
    assert taken == [*ladder, skip, skip, *[halt] * 5]


def test_after_a_roll_back_the_rate_is_not_what_is_wrong() -> None:
    policy = Policy(skips_in_a_row=1, grace=1, back_offs=5)
    poisoned = StepVerdict(0, nonfinite=True, poisoned=("w",))
    taken = live(policy, [poisoned, *[bad(step) for step in range(1, 8)]], rungs=EVERY_RUNG)
    assert Rung.BACK_OFF not in taken


def test_enough_good_steps_end_an_incident() -> None:
    policy = Policy(skips_in_a_row=2, grace=1, cooldown=10, back_offs=1, roll_backs=0)
    first = [bad(0), bad(1), bad(2)]
    calm = [StepVerdict(step) for step in range(3, 13)]
    again = [bad(13), bad(14), bad(15)]
    taken = live(policy, [*first, *calm, *again], rungs=EVERY_RUNG)
    assert taken[2] is taken[-1] is Rung.BACK_OFF
    taken = live(policy, [*first, *calm[:-1], *again], rungs=EVERY_RUNG)
    assert taken[-2:] == [Rung.HALT, Rung.HALT], "not over yet: one is borne, and there is no rung"


def test_roll_backs_are_so_many_within_a_window() -> None:
    policy = Policy(roll_backs=2, window=100)
    poisoned = [StepVerdict(step, poisoned=("w",)) for step in (0, 50, 99, 160)]
    taken = live(policy, poisoned, rungs=EVERY_RUNG)
    assert taken == [Rung.ROLL_BACK, Rung.ROLL_BACK, Rung.HALT, Rung.ROLL_BACK]


def test_a_back_off_says_by_how_much() -> None:
    ladder = restored({"in_a_row": 99, "held": []})
    action = Policy(back_off_factor=0.25).decide(ladder, bad(1), EVERY_RUNG)
    assert action.to_dict()["factor"] == 0.25


@lightly
@given(policies, st.lists(st.sampled_from(["good", "bad", "poisoned"]), max_size=120))
def test_no_rung_is_taken_beyond_its_budget(policy: Policy, story: list[str]) -> None:
    verdicts = [
        StepVerdict(at, nonfinite=what != "good", poisoned=("w",) if what == "poisoned" else ())
        for at, what in enumerate(story)
    ]
    taken = live(policy, verdicts, rungs=EVERY_RUNG)
    for at, rung in enumerate(taken):
        recent = taken[max(0, at - policy.window + 1) : at + 1]
        assert recent.count(Rung.ROLL_BACK) <= policy.roll_backs
        if rung is Rung.BACK_OFF:
            assert policy.back_offs


@lightly
@given(policies, st.lists(st.booleans(), max_size=80))
def test_skips_are_bounded_whatever_comes(policy: Policy, steps: list[bool]) -> None:
    taken = live(policy, [StepVerdict(at, nonfinite=sick) for at, sick in enumerate(steps)])
    if not policy.halt:
        assert Rung.HALT not in taken
        return
    in_a_row = 0
    for at, rung in enumerate(taken):
        in_a_row = in_a_row + 1 if rung is not Rung.PROCEED else 0
        if rung is Rung.SKIP:
            assert in_a_row <= policy.skips_in_a_row
            recent = taken[max(0, at - policy.window + 1) : at + 1]
            assert recent.count(Rung.SKIP) <= policy.skips_per_window
        elif rung is Rung.HALT:  # never without need
            recent = taken[max(0, at - policy.window + 1) : at + 1]
            held = len(recent) - recent.count(Rung.PROCEED)
            assert in_a_row > policy.skips_in_a_row or held > policy.skips_per_window


@thoroughly
@given(policies, ladders, verdicts, rungs)
def test_a_decision_is_pure_never_raises_and_takes_no_rung_it_was_not_given(
    policy: Policy, ladder: Ladder, verdict: StepVerdict, available: frozenset[Rung]
) -> None:
    before = copy.deepcopy(ladder)
    action = policy.decide(ladder, verdict, available)
    assert ladder == before
    assert policy.decide(ladder, verdict, available) == action
    assert action.step == verdict.step
    assert action.rung in available | {Rung.PROCEED, Rung.SKIP}
    assert policy.halt or action.rung is not Rung.HALT
    matters = verdict.nonfinite or verdict.poisoned or (verdict.spike and policy.hold_spikes)
    assert (action.rung is Rung.PROCEED) is (not matters)
    assert bool(action.reason) is bool(matters)
    if verdict.poisoned:
        assert action.rung is not Rung.BACK_OFF


class Climbing(RuleBasedStateMachine):
    """A ladder that is saved and restored at any moment behaves like one that never was."""

    @initialize(policy=policies)
    def start(self, policy: Policy) -> None:
        self.policy = policy
        self.ladder, self.copied = Ladder(), Ladder()
        self.step = 0

    @rule(sick=st.booleans(), poisoned=st.booleans())
    def take_a_step(self, sick: bool, poisoned: bool) -> None:
        self.step += 1
        verdict = StepVerdict(self.step, nonfinite=sick, poisoned=("w",) if poisoned else ())
        one = self.policy.decide(self.ladder, verdict, EVERY_RUNG)
        other = self.policy.decide(self.copied, verdict, EVERY_RUNG)
        assert one == other
        self.ladder.record_action(one, self.policy.cooldown)
        self.copied.record_action(other, self.policy.cooldown)

    @rule()
    def resume(self) -> None:
        state = json.loads(json.dumps(self.copied.state_dict()))
        self.copied = restored(state)

    @rule(back=st.integers(1, 10))
    def roll_back(self, back: int) -> None:
        self.step = max(0, self.step - back)

    @invariant()
    def both_remember_the_same(self) -> None:
        if hasattr(self, "ladder"):
            assert self.copied == self.ladder


TestClimbing = Climbing.TestCase
TestClimbing.settings = lightly


def test_a_restored_ladder_is_still_bounded() -> None:
    ladder = restored({"in_a_row": 1, "held": list(range(50_000))})
    assert len(ladder.held) == 10_000
    assert ladder.held[-1] == 49_999, "the latest are the ones kept"


# The numbers a user may set


@pytest.mark.parametrize(
    "name", ["skips_in_a_row", "skips_per_window", "window", "grace", "cooldown"]
)
def test_patience_counts_from_one(name: str) -> None:
    with pytest.raises(SettingsError, match=f"{name}=…"):
        Policy(**{name: 0})


@pytest.mark.parametrize("name", ["back_offs", "back_off_steps", "rewarm_steps", "roll_backs"])
def test_budgets_count_from_zero(name: str) -> None:
    Policy(**{name: 0})
    with pytest.raises(SettingsError, match=f"{name}=…"):
        Policy(**{name: -1})


@pytest.mark.parametrize("factor", [0.0, 1.0, -0.5, float("nan")])
def test_a_factor_lies_between_zero_and_one(factor: float) -> None:
    with pytest.raises(SettingsError, match="back_off_factor"):
        Policy(back_off_factor=factor)


def test_a_policy_comes_from_the_settings_table() -> None:
    assert Policy.from_mapping({}) == Policy()
    assert Policy.from_mapping({"halt": False, "window": 7}) == Policy(halt=False, window=7)
