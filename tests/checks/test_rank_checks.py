"""HD601 to HD605: what their pages cannot say, for any number of ranks."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.strategies import thoroughly

from headway.checks.ranks.hd601_rank_desync import RankDesync
from headway.checks.ranks.hd602_rank_nonfinite import RankNonfinite
from headway.checks.ranks.hd603_rank_order_shared import RankOrderShared
from headway.checks.ranks.hd604_straggler_rank import StragglerRank
from headway.checks.ranks.hd605_clip_per_shard import ClipPerShard
from headway.core.check import Check
from headway.core.findings import Finding
from headway.core.records import Column, StepRecord

EVERY = 10
"""Steps from one sample to the next, as live."""


def told(check: Check, name: str, rows: Iterable[Sequence[float]]) -> list[Finding]:
    """What a check says to a column, given sample by sample."""
    return [
        finding
        for at, row in enumerate(rows)
        for finding in check.observe(
            StepRecord(0, at, EVERY * at, {}, {f"rank/{name}": Column(list(row))})
        )
    ]


# HD601


@thoroughly
@given(st.lists(st.integers(1, 3).map(float), min_size=2, max_size=12))
def test_replicas_are_desynchronised_exactly_when_two_differ(hashes: list[float]) -> None:
    found = told(RankDesync(), "weights_hash", [hashes])
    assert bool(found) == (len(set(hashes)) > 1)
    if not found:
        return
    [finding] = found
    (version, votes), *_ = Counter(hashes).most_common()
    if 2 * votes > len(hashes):
        apart = [rank for rank, value in enumerate(hashes) if value != version]
        assert finding.evidence["apart"] == apart
        assert finding.where.rank == apart[0]
    else:
        assert finding.where.rank is None, "nobody knows who is right"
        assert finding.evidence["apart_count"] == len(hashes)


def test_the_last_step_at_which_replicas_were_equal_is_known() -> None:
    [finding] = told(RankDesync(), "weights_hash", [[1, 1], [2, 2], [3, 4], [5, 6]])
    assert finding.step == 20
    assert finding.evidence["last_equal_step"] == 10


def test_replicas_that_agreed_again_in_between_are_told_of_twice() -> None:
    found = told(RankDesync(), "weights_hash", [[1, 1], [2, 3], [4, 5], [6, 6], [7, 8]])
    assert [finding.step for finding in found] == [10, 40]


# HD602


@thoroughly
@given(st.lists(st.booleans(), min_size=1, max_size=12))
def test_a_rank_is_named_unless_all_of_them_did_it(bad: list[bool]) -> None:
    found = told(RankNonfinite(), "nonfinite", [[float(flag) for flag in bad]])
    assert bool(found) == (0 < sum(bad) < len(bad))
    if found:
        assert found[0].where.rank == bad.index(True)
        assert found[0].evidence["guilty_count"] == sum(bad)


def test_the_loss_and_the_norm_of_the_guilty_rank_are_evidence() -> None:
    columns = {
        "rank/nonfinite": Column([0.0, 1.0]),
        "rank/loss": Column([0.5, math.inf]),
        "rank/grad_norm": Column([3.0], [0]),
    }
    [finding] = RankNonfinite().observe(StepRecord(0, 1, 1, {}, columns, held=True))
    assert finding.evidence["loss"] == math.inf
    assert finding.evidence["grad_norm"] is None
    assert "its loss is Inf" in finding.message


# HD603

partitions = st.lists(st.integers(0, 5), min_size=2, max_size=8)
"""Which reader each rank is."""


@thoroughly
@given(partitions, st.integers(0, 2**32))
def test_ranks_share_exactly_when_they_are_the_same_reader(readers: list[int], seed: int) -> None:
    rng = random.Random(seed)
    rows = []
    for _ in range(12):
        read = [rng.randrange(1, 1 << 24) for _ in range(6)]
        rows.append([float(read[reader]) for reader in readers])
    found = told(RankOrderShared(), "batch_hash", rows)
    sizes = Counter(readers)
    groups = [[rank for rank, one in enumerate(readers) if one == who] for who in sizes]
    neighbours = all(group[-1] - group[0] == len(group) - 1 for group in groups)
    tensor_parallel = neighbours and len(set(sizes.values())) == 1 and len(sizes) > 1
    assert bool(found) == (max(sizes.values()) > 1 and not tensor_parallel)
    if found:
        assert 3 * EVERY <= found[0].step <= 6 * EVERY
        assert len(found[0].evidence["sharing"]) == max(sizes.values())


def test_sharing_is_told_once_and_once_more_after_it_had_ended() -> None:
    def shared(first: int, count: int) -> list[list[float]]:
        return [[float(at)] * 2 for at in range(first, first + count)]

    apart = [[1e3, 2e3], [3e3, 4e3]]
    found = told(RankOrderShared(), "batch_hash", [*shared(1, 10), *apart, *shared(20, 20)])
    assert len(found) == 2
    assert found[1].evidence["samples"] == 13, "more than half of 12 + 13"


@pytest.mark.parametrize("distinct", [2, 3, 10])
@pytest.mark.parametrize("world", [2, 8, 64])
def test_chance_on_a_tiny_data_set_is_no_sharing(world: int, distinct: int) -> None:
    alarms = 0
    for seed in range(20):
        rng = random.Random(seed)
        rows = [[float(rng.randint(1, distinct)) for _ in range(world)] for _ in range(500)]
        alarms += bool(told(RankOrderShared(), "batch_hash", rows))
    assert alarms <= 1


# HD604

Draw = Callable[[random.Random], float]
NOISES: dict[str, Draw] = {
    "log-normal, 5 %": lambda rng: math.exp(rng.gauss(0, 0.05)),
    "log-normal, 30 %": lambda rng: math.exp(rng.gauss(0, 0.3)),
    "log-normal, wild": lambda rng: math.exp(rng.gauss(0, 1.0)),
    "exponential": lambda rng: 0.2 + rng.expovariate(1.0),
    "rare stalls": lambda rng: rng.uniform(0.95, 1.05) * (5.0 if rng.random() < 0.05 else 1.0),
    "sequence lengths": lambda rng: float(rng.choice([1, 1, 1, 2, 4, 8])),
}


def paces(seed: int, world: int, draw: Draw, *, late: float = 1.0, count: int = 400) -> list[list]:
    rng = random.Random(seed)
    return [
        [0.1 * draw(rng) * (late if rank == 1 else 1.0) for rank in range(world)]
        for _ in range(count)
    ]


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("world", [2, 3, 4, 16])
def test_ranks_that_differ_by_chance_alone_are_no_stragglers(world: int, noise: str) -> None:
    for seed in range(20 if world < 10 else 5):
        assert told(StragglerRank(), "step_time_s", paces(seed, world, NOISES[noise])) == []


@pytest.mark.parametrize(("noise", "late"), [("log-normal, 5 %", 1.5), ("rare stalls", 2.5)])
@pytest.mark.parametrize("world", [2, 3, 4, 16])
def test_a_rank_that_is_slower_is_found(world: int, noise: str, late: float) -> None:
    for seed in range(5):
        found = told(StragglerRank(), "step_time_s", paces(seed, world, NOISES[noise], late=late))
        assert {finding.where.rank for finding in found} == {1}
        assert found[0].step <= 60 * EVERY
        assert found[0].evidence["ratio"] == pytest.approx(late, rel=0.15)


def test_through_more_noise_it_takes_longer() -> None:
    calm = told(StragglerRank(), "step_time_s", paces(0, 8, NOISES["log-normal, 5 %"], late=1.5))
    rough = told(StragglerRank(), "step_time_s", paces(0, 8, NOISES["log-normal, 30 %"], late=1.5))
    assert calm[0].step < rough[0].step


def test_one_stall_however_long_does_not_settle_it() -> None:
    rows = paces(0, 8, NOISES["log-normal, 30 %"], late=1.5)
    usual = told(StragglerRank(), "step_time_s", rows)[0].step
    rows[8][1] *= 1e6
    stalled = told(StragglerRank(), "step_time_s", rows)[0].step
    assert usual is not None
    assert stalled is not None
    assert stalled > 0.7 * usual


def test_what_slows_all_ranks_alike_does_not_hide_the_slow_one() -> None:
    rng = random.Random(0)
    together = [rng.choice([1.0, 4.0]) for _ in range(400)]
    rows = paces(0, 4, NOISES["log-normal, 5 %"], late=1.5)
    varied = [[unit * seconds for seconds in row] for unit, row in zip(together, rows, strict=True)]
    steps = [item.step for item in told(StragglerRank(), "step_time_s", rows)]
    assert [item.step for item in told(StragglerRank(), "step_time_s", varied)] == steps


def test_held_steps_are_the_guards_own_time() -> None:
    check = StragglerRank()
    found = [
        finding
        for at in range(40)
        for finding in check.observe(
            StepRecord(0, at, EVERY * at, {}, {"rank/step_time_s": Column([0.1, 0.5])}, held=True)
        )
    ]
    assert found == []


@thoroughly
@given(st.floats(0.5, 1e4), st.integers(0, 100))
def test_only_ratios_count_once_steps_are_long_enough(unit: float, seed: int) -> None:
    rows = paces(seed, 3, NOISES["log-normal, 5 %"], late=1.6, count=20)
    scaled = [[unit * seconds for seconds in row] for row in rows]
    steps = [item.step for item in told(StragglerRank(), "step_time_s", rows)]
    assert steps
    assert [item.step for item in told(StragglerRank(), "step_time_s", scaled)] == steps


def test_of_thousands_of_ranks_only_the_slow_ones_are_kept() -> None:
    check = StragglerRank()
    found = told(check, "step_time_s", paces(0, 2000, NOISES["log-normal, 5 %"], late=2, count=14))
    assert [finding.where.rank for finding in found] == [1]
    assert set(check.slow) == {1}


# HD605


@thoroughly
@given(
    st.lists(st.floats(1e-6, 1e6), min_size=4, max_size=8),
    st.integers(2, 12),
    st.floats(0, 5e-4),
)
def test_one_norm_with_rounding_is_one_norm(norms: list[float], world: int, off: float) -> None:
    rows = [[norm * (1 + off * (rank % 2)) for rank in range(world)] for norm in norms]
    assert told(ClipPerShard(), "clip_norm", rows) == []


@thoroughly
@given(
    st.lists(st.floats(1e-6, 1e6), min_size=3, max_size=8),
    st.integers(2, 12),
    st.floats(2e-3, 10),
)
def test_norms_that_differ_are_told_once(norms: list[float], world: int, off: float) -> None:
    rows = [[norm * (1 + off * (rank == world - 1)) for rank in range(world)] for norm in norms]
    [finding] = told(ClipPerShard(), "clip_norm", rows)
    assert finding.step == 2 * EVERY
    assert finding.evidence["highest_rank"] == world - 1
    assert finding.evidence["norm_if_shards"] >= finding.evidence["highest"]
