"""The rank that the others wait for is found from the positions and collectives of all ranks."""

from __future__ import annotations

from typing import Any

import pytest

from headway.core.hang_facts import (
    CollectiveFacts,
    RankPlace,
    compare_ranks,
    find_extra_call,
    say_positions,
)


def call(number: int, line: int, op: str = "all_reduce", size: int = 20) -> dict[str, Any]:
    place = {"file": "train.py", "line": line, "function": "main"}
    return {"group": "0", "number": number, "op": op, "sizes": [[size]], "place": place}


def calls(*lines: int, **more: Any) -> list[dict[str, Any]]:
    return [call(number, line, **more) for number, line in enumerate(lines, 1)]


def facts(given: list[dict[str, Any]]) -> list[CollectiveFacts]:
    return [CollectiveFacts.read(item) for item in given]


def extra(one: list[dict[str, Any]], two: list[dict[str, Any]]) -> tuple[bool, int | None] | None:
    found = find_extra_call(facts(one), facts(two))
    return None if found is None else (found[0], found[1].place.line)


def position(rank: int, state: str, line: int, pending: Any = None) -> RankPlace:
    place = {"file": "train.py", "line": line}
    return RankPlace.read(
        {"rank": rank, "state": state, "place": place, "collective": pending or {}}
    )


@pytest.mark.parametrize(
    ("one", "two", "expected"),
    [
        ((5, 5, 5, 40, 5, 5), (5, 5, 5, 5, 5, 60), (True, 40)),  # an additional call, long ago
        ((5, 5, 5, 5, 5, 60), (5, 5, 5, 40, 5, 5), (False, 40)),  # the same on the other rank
        ((5, 5, 40), (5, 5, 5), (True, 40)),  # nothing follows: the line that is new is the odd one
        ((5, 5, 5), (5, 5, 60), (False, 60)),  # uneven batches: one rank is at the barrier
        ((5, 41, 42, 43, 5, 5), (5, 5, 5, 5, 5, 5), (True, 41)),  # a block of three
        ((1, 5, 1, 5, 1), (2, 5, 2, 5, 2), None),  # branches: the same call from two lines
        ((1, 5, 1, 40, 5, 1), (2, 5, 2, 5, 2, 5), (True, 40)),  # branches and an additional call
        ((5, 5), (5, 5), None),
        ((), (5,), None),
    ],
)
def test_the_additional_call_is_found(
    one: tuple[int, ...], two: tuple[int, ...], expected: tuple[bool, int] | None
) -> None:
    assert extra(calls(*one), calls(*two)) == expected


def test_calls_are_aligned_by_their_number_in_the_group() -> None:
    one, two = calls(5, 5, 5, 5), calls(5, 5, 5, 5)[2:]  # its buffer was shorter
    assert extra(one, two) is None
    other_group = [{**item, "group": "7"} for item in calls(9, 9)]
    assert extra([*one, *other_group], two) is None


def test_another_operation_or_shape_is_a_difference() -> None:
    one, two = [*calls(5, 5), call(3, 5, size=1)], calls(5, 5, 5)
    assert extra(one, two) == (True, 5)
    assert extra([*calls(5, 5), call(3, 5, op="barrier")], two) == (True, 5)


def test_the_rank_that_is_not_in_a_collective_is_the_suspect() -> None:
    ranks = [position(0, "waiting", 5), position(1, "elsewhere", 9), position(2, "waiting", 5)]
    found = compare_ranks(ranks, {})
    assert (found.kind, found.suspects) == ("elsewhere", [1])


def test_a_rank_that_is_gone_is_the_suspect() -> None:
    ranks = [position(0, "waiting", 5), position(1, "dead", 9), position(2, "elsewhere", 5)]
    found = compare_ranks(ranks, {})
    assert (found.kind, found.suspects) == ("lost", [1])


def test_all_ranks_in_one_collective_do_not_differ() -> None:
    ranks = [position(rank, "waiting", 5, call(9, 5)) for rank in range(3)]
    assert compare_ranks(ranks, {}).kind == "same"


def test_of_many_ranks_the_odd_one_is_named_with_its_call() -> None:
    ranks = [position(rank, "waiting", 5, call(4, 5)) for rank in range(4)]
    ranks[2] = position(2, "waiting", 40, call(4, 40))
    sequences = {rank: calls(5, 5, 5, 5) for rank in range(4)}
    sequences[2] = calls(5, 5, 5, 40)
    found = compare_ranks(ranks, sequences)
    assert (found.kind, found.suspects) == ("mismatch", [2])
    assert found.extra is not None
    assert found.extra["place"]["line"] == 40


def test_one_rank_alone_has_nobody_to_differ_from() -> None:
    assert compare_ranks([position(0, "elsewhere", 5)], {}).suspects in ((), [])


def test_equal_positions_are_named_together() -> None:
    ranks = [position(rank, "waiting", 5, call(4, 5)) for rank in range(3)]
    text = say_positions([*ranks, position(3, "elsewhere", 8)])
    assert text == (
        "each of ranks 0, 1, 2 waits in all_reduce of [20] at train.py:5; rank 3 is at train.py:8"
    )
