"""Recognises the error of a rank that lost another one, and says which rank that is and why.

A process that dies closes its connections, so the collectives of the other ranks raise at once, at
lines that are not at fault. torch names an address at best.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import Any

from headway.core.ending_facts import COLLECTIVE_MISMATCH, RANK_LOST
from headway.core.hang_facts import DEAD, ENDED, WAITING
from headway.errors import RankLost
from headway.guard.endings.failure import Failure, describe_error
from headway.guard.endings.rank_board import RankBoard
from headway.guard.endings.rank_position import MAX_CALLS, find_wait, is_collective
from headway.guard.endings.watchdog import Watchdog, watchdogs
from headway.torch_adapters.process_groups.local_gradients import LOST_IN_BACKWARD
from headway.torch_adapters.process_state.flight_recorder import read_collectives

_CLOSED = re.compile(
    r"closed by peer|reset by peer|broken pipe|pair closure|socket closed|remote process exited"
    r"|connection was likely closed|communicator was aborted",
    re.IGNORECASE,
)
_BACKENDS = re.compile(r"gloo|nccl|\bucc\b|c10d|process ?group", re.IGNORECASE)
GONE_S = 3.0
"""Seconds within which the process of a lost rank must have ended."""


def is_lost_connection(error: BaseException) -> bool:
    """Whether an error says that the connection to another rank was closed."""
    if isinstance(error, RankLost):
        error = error.__cause__ or error
    text = str(error)
    return (
        isinstance(error, (RuntimeError, RankLost))
        and bool(_CLOSED.search(text))
        and (LOST_IN_BACKWARD in text or bool(_BACKENDS.search(text)))
    )


def recognise_lost_rank(failure: Failure) -> tuple[str, dict[str, Any]] | None:
    """The facts about the rank that this one has lost; None if it failed by itself."""
    watchdog = next((item for item in watchdogs if item.board is not None), None)
    if watchdog is None or watchdog.board is None:
        return None
    watchdog.why = f"crashed ({describe_error(failure.error)})"
    if not is_lost_connection(failure.error):
        return None
    lost = _wait_for_lost(watchdog.board)
    if not lost:
        return None
    watchdog.why, watchdog.victim = "lost another rank", True
    _report_mismatch(watchdog, failure, lost)
    return RANK_LOST, {**failure.facts(), "lost": lost}


def _wait_for_lost(board: RankBoard) -> list[dict[str, Any]]:
    """The ranks whose processes have ended; those that lost another rank themselves come last."""
    deadline = time.monotonic() + GONE_S
    while True:
        others = [board.look_at(rank) for rank in range(board.size) if rank != board.rank]
        gone = [item for item in others if item.get("state") in (DEAD, ENDED)]
        first = [item for item in gone if not item.get("victim")]
        if first or time.monotonic() > deadline:
            return first or gone
        time.sleep(0.1)


def _report_mismatch(watchdog: Watchdog, failure: Failure, lost: list[dict[str, Any]]) -> None:
    """A rank that was aborted within a collective called another one than this rank did."""
    aborted = next((item for item in lost if item.get("within_collective")), None)
    place = failure.place
    if aborted is None or place is None:
        return
    calls = [call.to_dict() for call in read_collectives(MAX_CALLS)]
    pending: dict[str, Any] = calls[-1] if calls else {}
    within = find_wait(failure.stack)
    own = {
        "rank": watchdog.rank,
        "state": WAITING,
        "step": failure.step,
        "place": place.to_dict(),
        "within": within if is_collective(within) else failure.phase,
        "collective": pending if pending.get("place") == place.to_dict() else {},
    }
    # A line from which this rank has not called a collective before is the one that does not
    # belong. If both lines are usual ones, the call of the aborted rank has another shape.
    known = {_line_of(call) for call in calls}
    before = {_line_of(call) for call in (calls[:-1] if own["collective"] else calls)}
    theirs = _line_of(aborted) not in known or _line_of(own) in before
    odd = aborted["rank"] if theirs else watchdog.rank
    positions = sorted([own, {**aborted, "state": WAITING}], key=lambda item: int(item["rank"]))
    watchdog.record(COLLECTIVE_MISMATCH, {"rank": odd, "ranks": positions})


def _line_of(position: Mapping[str, Any]) -> tuple[Any, Any]:
    place = position["place"]
    return place.get("file"), place.get("line")
