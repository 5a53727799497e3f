"""Where each rank of a run is when nothing progresses, and how the ranks compare.

The watchdogs of the guard collect the positions; the checks of hangs and lost ranks read them.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headway.core.ending_facts import COLLECTIVE_MISMATCH, HANG, RANK_LOST, EndingFacts
from headway.core.facts import FactTable, Names, Number, Numbers, Place, Rows, Text, Whole, say_list

ACTIVE = "active"
"""The rank computes, reads or writes."""
WAITING = "waiting"
"""It waits in a collective."""
ELSEWHERE = "elsewhere"
"""It makes no progress at a line that is not a collective."""
STOPPED = "stopped"
"""Its process is suspended (SIGSTOP, a debugger)."""
DEAD = "dead"
"""Its process does not exist any more, and it recorded no end."""
ENDED = "ended"
"""Its guard was closed, or the process recorded how it ended."""
SILENT = "silent"
"""It does not answer, and its process cannot be inspected."""


WORKER = "a DataLoader worker"
"""What a rank waits for if no batch arrives."""
QUEUE, LOCK, FUTURE = "a queue", "a lock or a thread", "a future"
WAITS_FOR_THREAD = (QUEUE, LOCK, FUTURE)
"""What another thread of the process has to provide."""


@dataclass(frozen=True)
class CollectiveFacts(FactTable):
    """A call of a collective."""

    group: Text
    number: Whole
    """Position in the sequence of calls of its group."""
    op: Text
    sizes: Rows
    dtype: Text
    place: Place

    @property
    def kind(self) -> tuple[Any, ...]:
        """Equal for calls that can be the same collective on two ranks."""
        return (self.op, tuple(map(tuple, self.sizes)), self.dtype)

    @property
    def line(self) -> tuple[Any, ...]:
        """The same with the line that called it."""
        return (*self.kind, self.place.file, self.place.line)

    def __str__(self) -> str:
        rows = [[int(size) for size in row] or "one number" for row in self.sizes]
        return f"{self.op or 'a collective'}{f' of {say_list(rows, 1)}' if rows else ''}"


@dataclass(frozen=True)
class FailedThread(FactTable):
    """A thread that an exception has ended."""

    name: Text
    error: Text
    place: Place

    def __str__(self) -> str:
        """`thread Thread-1 (fill) died with KeyError: 180 at train.py:18`."""
        at = f" at {say_place(self.place)}" if self.place.file else ""
        return f"thread {self.name} died with {self.error}{at}"


@dataclass(frozen=True)
class RankPlace(FactTable):
    """The position of one rank."""

    rank: Whole
    state: Text
    """`active`, `waiting`, `elsewhere`, `stopped`, `dead`, `ended` or `silent`."""
    step: Whole
    idle_s: Number
    """Seconds without progress."""
    place: Place
    """The innermost line of the user's code in the training thread."""
    line_text: Text
    within: Text
    """What it waits for, as far as its stack shows: `all_reduce`, `backward`, `a DataLoader
    worker`, `a lock`."""
    collective: CollectiveFacts
    """The call that has not completed, if PyTorch's flight recorder knows it."""
    why: Text
    """Why it ended, where it did."""
    stack: Names
    threads: Names
    """Lines of the other threads."""
    failed_threads: list[FailedThread]
    """Threads that an exception has ended, where it waits for another thread; the latest last."""

    @property
    def number(self) -> int:
        return self.rank or 0

    @property
    def waits(self) -> bool:
        return self.state == WAITING

    @property
    def gone(self) -> bool:
        return self.state in (DEAD, ENDED)

    @property
    def known_call(self) -> CollectiveFacts | None:
        return self.collective if self.collective.op else None

    def __str__(self) -> str:
        """`rank 1 waits in all_reduce of [1] at train.py:31`."""
        name = f"rank {self.number}"
        at = f" at {say_place(self.place)}" if self.place.file else ""
        if self.state == WAITING:
            what = str(self.known_call) if self.known_call else self.within
            return f"{name} waits in {what or 'a collective'}{_inside(self)}{at}"
        if self.state == ELSEWHERE:
            text = f" (`{self.line_text}`)" if self.line_text else ""
            waits = f", waiting for {self.within}" if self.within else ""
            return f"{name} is{at}{text}{waits}"
        if self.gone:
            return f"{name} {self.why or 'has ended'}"
        why = f" ({self.why})" if self.why else ""
        return f"{name} is {self.state}{at}{why}"


def _inside(position: RankPlace) -> str:
    return " during backward" if position.within == "backward" and position.known_call else ""


@dataclass(frozen=True)
class HangFacts(EndingFacts):
    """No rank made progress for far longer than before."""

    kind = HANG

    idle_s: Number
    usual_s: Number
    """The longest pause of the run before this one."""
    limit_s: Number
    ranks: list[RankPlace]
    suspects: Numbers
    """The ranks that the others wait for."""
    over: bool
    """The run made progress again."""
    timed_out: bool
    """`Policy(hang_timeout=…)` ended the process."""
    unheard: Names
    """What could not be inspected."""

    @property
    def culprit(self) -> RankPlace | None:
        """The rank to look at: the first that the others wait for."""
        named = [item for item in self.ranks if item.number in self.suspects]
        return next(iter([*named, *self.ranks]), None)


@dataclass(frozen=True)
class MismatchFacts(EndingFacts):
    """Ranks wait in collectives that do not belong together."""

    kind = COLLECTIVE_MISMATCH

    ranks: list[RankPlace]
    rank: Whole
    """The rank that calls `extra`, or differs from most other ranks."""
    extra: CollectiveFacts
    """The first call that only this rank makes, where the sequences of calls show one."""


@dataclass(frozen=True)
class RankLostFacts(EndingFacts):
    """A rank died or exited early, and the others cannot continue."""

    kind = RANK_LOST

    lost: list[RankPlace]
    error: Text
    """The error message of torch on the rank that noticed it."""
    place: Place
    """Where that rank was."""


# Comparing.

WINDOW = 16
"""Calls after a difference that are compared to find out which rank has one more."""
MAX_EXTRA = 8
"""Longest block of calls that one rank makes alone and that is recognised."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """The result of comparing the positions of all ranks."""

    kind: str
    """`lost`, `elsewhere`, `mismatch`, or `same` where all ranks are at the same place."""
    suspects: Sequence[int] = ()
    extra: Mapping[str, Any] | None = None
    """The call that only the suspect rank makes."""


def compare_ranks(
    positions: Sequence[RankPlace], calls: Mapping[int, Sequence[Mapping[str, Any]]]
) -> Comparison:
    """Find the rank that the others wait for. `calls`: the latest collectives of each rank."""
    waiting = [item for item in positions if item.waits]
    gone = [item.number for item in positions if item.gone]
    other = [item for item in positions if not item.waits and not item.gone]
    if gone and (waiting or other):
        return Comparison("lost", gone)
    if waiting and other:
        return Comparison("elsewhere", [item.number for item in other])
    if not waiting or len(waiting) == 1:
        lines = Counter((item.place.file, item.place.line) for item in positions)
        usual = lines.most_common(1)[0][0]
        odd = [item.number for item in positions if (item.place.file, item.place.line) != usual]
        return Comparison("same", odd if len(odd) < len(positions) / 2 else ())
    return _compare_waiting(waiting, calls)


def _compare_waiting(
    waiting: Sequence[RankPlace], calls: Mapping[int, Sequence[Mapping[str, Any]]]
) -> Comparison:
    keys = {item.number: _waiting_key(item) for item in waiting}
    usual, count = Counter(keys.values()).most_common(1)[0]
    if count == len(keys):
        return Comparison("same")
    reference = next(number for number, key in keys.items() if key == usual)
    odd = [number for number, key in keys.items() if key != usual]
    mine = [CollectiveFacts.read(call) for call in calls.get(odd[0], ())]
    theirs = [CollectiveFacts.read(call) for call in calls.get(reference, ())]
    found = find_extra_call(mine, theirs)
    if found is None:
        return Comparison("mismatch", odd)
    on_mine, call = found
    ranks = odd if on_mine else [number for number in keys if number not in odd]
    raw = {"group": call.group, "number": call.number, "op": call.op, "dtype": call.dtype}
    place = {"file": call.place.file, "line": call.place.line, "function": call.place.function}
    return Comparison("mismatch", ranks, {**raw, "sizes": call.sizes, "place": place})


def _waiting_key(item: RankPlace) -> tuple[Any, ...]:
    call = item.known_call
    if call is not None:
        return (call.group, call.number, *call.line)
    return (item.within, item.place.file, item.place.line)


def find_extra_call(
    one: Sequence[CollectiveFacts], two: Sequence[CollectiveFacts]
) -> tuple[bool, CollectiveFacts] | None:
    """The first call that only one of two ranks makes, and whether it is the first rank's.

    Ranks call the collectives of a group in the same order. Where they differ, either one rank has
    a call more, and what follows is shifted by it; or both call the same collective from different
    lines (`if rank == 0: … else: …`), and what follows agrees.
    """
    for first, second in _by_group(one, two):
        while first and second:
            at = next(
                (i for i, pair in enumerate(zip(first, second, strict=False)) if _differ(*pair)),
                None,
            )
            if at is None:
                break
            first, second = first[at:], second[at:]
            verdict = _judge_difference(first, second, one, two)
            if verdict is not None:
                return verdict
            first, second = first[1:], second[1:]
    return None


def _by_group(
    one: Sequence[CollectiveFacts], two: Sequence[CollectiveFacts]
) -> list[tuple[list[CollectiveFacts], list[CollectiveFacts]]]:
    """The calls of both ranks in each group, from the first number that both have."""
    pairs = []
    for group in dict.fromkeys(call.group for call in one):
        first = [call for call in one if call.group == group and call.number is not None]
        second = [call for call in two if call.group == group and call.number is not None]
        if first and second:
            start = max(first[0].number or 0, second[0].number or 0)
            pairs.append(
                (
                    [call for call in first if (call.number or 0) >= start],
                    [call for call in second if (call.number or 0) >= start],
                )
            )
    return pairs


def _differ(first: CollectiveFacts, second: CollectiveFacts) -> bool:
    return first.line != second.line


def _judge_difference(
    first: Sequence[CollectiveFacts],
    second: Sequence[CollectiveFacts],
    one: Sequence[CollectiveFacts],
    two: Sequence[CollectiveFacts],
) -> tuple[bool, CollectiveFacts] | None:
    """Both begin with different calls: whose call is extra? None: they may belong together."""
    first, second = first[:WINDOW], second[:WINDOW]
    together = _agreement(first[1:], second[1:])
    shifts = range(1, MAX_EXTRA + 1)
    extra_first = max(_agreement(first[shift:], second) for shift in shifts)
    extra_second = max(_agreement(first, second[shift:]) for shift in shifts)
    # A line that the other rank never called from, while it knows the line of this one.
    new_first = first[0].line not in {call.line for call in two}
    new_second = second[0].line not in {call.line for call in one}
    nothing_follows = len(first) == 1 or len(second) == 1
    shifted = max(extra_first, extra_second) > together
    if not shifted and first[0].kind == second[0].kind:
        if not nothing_follows or new_first == new_second:
            return None
        return new_first, first[0] if new_first else second[0]
    on_first = extra_first > extra_second if extra_first != extra_second else new_first
    return on_first, first[0] if on_first else second[0]


def _agreement(first: Sequence[CollectiveFacts], second: Sequence[CollectiveFacts]) -> int:
    """Number of equal calls before the first difference."""
    count = 0
    for mine, theirs in zip(first, second, strict=False):
        if _differ(mine, theirs):
            break
        count += 1
    return count


# Wording.


def say_place(place: Place) -> str:
    """`train.py:31`, relative to the working directory."""
    file = (place.file or "?").removeprefix(os.path.join(os.getcwd(), ""))
    return f"{file}:{place.line}"


def say_positions(positions: Sequence[RankPlace], most: int = 4) -> str:
    """What every rank is doing, with equal positions joined."""
    groups: dict[str, list[RankPlace]] = {}
    for item in positions:
        text = str(item).partition(" ")[2].partition(" ")[2]  # without the rank
        groups.setdefault(text, []).append(item)
    parts = []
    for text, items in list(groups.items())[:most]:
        if len(items) == 1:
            parts.append(str(items[0]))
        else:
            names = say_list([item.number for item in items], 6)
            parts.append(f"each of ranks {names} {text}")
    more = len(groups) - most
    return "; ".join(parts) + (f"; and {more} more positions" if more > 0 else "")
