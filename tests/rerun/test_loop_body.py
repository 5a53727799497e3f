"""The user's loop body as a function: found from its frame, run over other batches, alone."""

from __future__ import annotations

import runpy
import sys
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from headway.rerun.strategies import loop_body
from headway.rerun.strategies.loop_body import LoopBody


class Given:
    """An iterator that looks for the body of the loop it is in, before it ends."""

    def __init__(self, batches: Iterable[Any], ages: tuple[int, ...] = (0,)) -> None:
        self.batches = list(batches)
        self.ages = ages
        self.found: LoopBody | None = None
        self.asked = False

    def __iter__(self) -> Iterator[Any]:
        yield from self.batches
        self.look(sys._getframe().f_back)

    def look(self, frame: FrameType | None) -> None:
        self.asked = True
        self.found = loop_body.find_loop_body(frame, self.batches[-1], self.ages).body


def through(source: Iterable[Any]) -> Iterator[Any]:
    """As tqdm is: a generator between the loop and the loader."""
    yield from source


PAIR = ([1, 2], [3, 4])


def test_a_plain_loop() -> None:
    seen = []
    given = Given([PAIR])
    for x, y in given:
        seen.append((x, y))
    assert given.found is not None
    given.found([("a", "b")])
    assert seen == [PAIR, ("a", "b")]


def test_counted_by_enumerate() -> None:
    seen = []
    given = Given([1.5, 2.5, 3.5], ages=(1, 0))
    for i, batch in enumerate(given):
        seen.append((i, batch))
    assert given.found is not None
    given.found([20, 30])
    assert seen[3:] == [(1, 20), (2, 30)]


def test_counted_from_another_number_through_a_progress_bar() -> None:
    seen = []
    given = Given([1.5, 2.5])
    for i, batch in enumerate(through(given), 10):
        seen.append((i, batch))
    assert given.found is not None
    given.found([20])
    assert seen[2:] == [(11, 20)]


def test_names_that_the_body_binds_again_are_the_batch_once_more() -> None:
    seen = []
    given = Given([2])
    for batch in given:
        batch = batch * 10
        seen.append(batch)
    assert given.found is not None
    given.found([2])
    given.found([3])
    assert seen == [20, 20, 30]


def test_variables_of_the_loop_are_left_alone() -> None:
    count, total = 0, 0.0
    given = Given([1.0])
    for batch in given:
        count += 1
        total += batch
    assert given.found is not None
    given.found([5.0])
    assert (count, total) == (1, 1.0)


def test_closures_and_comprehensions_see_the_variables() -> None:
    seen = []
    given = Given([3])
    scale = 7
    for batch in given:

        def scaled(times: int = batch) -> int:
            return times * scale

        seen.append(scaled() + sum(batch + scale for _ in range(2)))
    assert given.found is not None
    given.found([1])
    assert seen == [3 * 7 + 20, 7 + 16]


def test_continue_and_break() -> None:
    seen = []
    given = Given([1, 2])
    for batch in given:
        if batch == "skip":
            continue
        seen.append(batch)
        if batch == "stop":
            break
    assert given.found is not None
    given.found(["skip", "stop"])
    assert seen == [1, 2, "stop"]


def test_something_beside_the_batch() -> None:
    seen = []
    given = Given(["a", "b"])
    for number, (batch, weight) in enumerate(zip(given, [0.5, 0.25, 0.1], strict=False)):
        seen.append((number, batch, weight))
    assert given.found is not None
    given.found(["c"])
    assert seen[2:] == [(1, "c", 0.25)]


def test_an_inner_loop_is_not_the_training_loop() -> None:
    seen: list[Any] = []
    given = Given([{"x": 1}])

    def inside() -> None:
        for batch in given:
            for part in range(2):
                seen.append((part, batch["x"]))
                if part == 1:
                    given.look(sys._getframe())

    inside()
    assert given.found is not None
    given.found([{"x": 5}])
    assert seen == [(0, 1), (1, 1), (0, 5), (1, 5)]


def test_found_from_within_a_function_that_the_body_calls() -> None:
    seen = []
    given = Given([4])

    def step(batch: int) -> None:
        given.look(sys._getframe().f_back)
        seen.append(batch)

    for batch in given.batches:
        step(batch)
    assert given.found is not None
    given.found([9])
    assert seen == [4, 9]


def test_what_the_body_reaches_is_put_back() -> None:
    history: dict[str, Any] = {"train": {"loss": [1.0]}}

    class Meter:
        def __init__(self) -> None:
            self.count, self.seen = 0, [0]

    meter = Meter()
    given = Given([1])
    for batch in given:
        history["train"]["loss"].append(batch)
        meter.count += 1
        meter.seen.append(batch)
    assert given.found is not None
    put_back = given.found.save([], tensors=True)
    given.found([2])
    assert history["train"]["loss"] == [1.0, 1, 2]
    put_back()
    assert history == {"train": {"loss": [1.0, 1]}}
    assert (meter.count, meter.seen) == (1, [0, 1])


def test_a_loop_at_the_top_of_a_script(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent("""
            import sys
            count, seen, total = 0, [], 0
            for x, y in given:
                count += 1
                total = total + x
                seen.append((x, y, total))
        """)
    )
    given = Given([(1, 2)])
    ended = runpy.run_path(str(script), {"given": given}, "__main__")
    assert given.found is not None
    assert ended["count"] == 1


def test_an_error_names_the_line_of_the_file() -> None:
    given = Given([1])
    for batch in given:
        if batch == "bad":
            raise ValueError("here")
    assert given.found is not None
    with pytest.raises(ValueError, match="here") as caught:
        given.found(["bad"])
    frame = caught.tb
    while frame.tb_next is not None:
        frame = frame.tb_next
    assert frame.tb_frame.f_code.co_filename == __file__
    assert "here" in Path(__file__).read_text().splitlines()[frame.tb_lineno - 1]


def test_a_body_that_yields_cannot_be_taken_out() -> None:
    given = Given([1])

    def training() -> Iterator[int]:
        for batch in given:
            yield batch + 1

    assert list(training()) == [2]
    assert given.asked
    assert given.found is None


def test_a_loop_without_source_cannot_either() -> None:
    given = Given([1])
    exec(compile("for batch in given:\n    pass", "<nowhere>", "exec"), {"given": given})
    assert given.asked
    assert given.found is None


def test_a_loop_over_something_made_of_the_batch_cannot_either() -> None:
    given = Given([(1, 2)])
    for x in (x for x, _ in given):
        assert x == 1
    assert given.asked
    assert given.found is None
