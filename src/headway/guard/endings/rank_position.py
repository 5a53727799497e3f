"""Describes where this process is: the line, what it waits for, its latest collectives."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from headway.core.hang_facts import (
    ELSEWHERE,
    FUTURE,
    LOCK,
    QUEUE,
    WAITING,
    WAITS_FOR_THREAD,
    WORKER,
)
from headway.guard.endings.exit_hooks import failed_threads
from headway.torch_adapters.frames import Location
from headway.torch_adapters.process_state.flight_recorder import (
    RecordedCollective,
    read_collectives,
)
from headway.torch_adapters.process_state.thread_stacks import (
    ThreadStack,
    is_library_frame,
    read_stacks,
)

MAX_CALLS = 400
"""Latest collectives of a rank that are compared with those of the others."""
SHOWN_FRAMES = 24
_WAITS = (
    ("torch/utils/data/dataloader.py", WORKER),
    ("subprocess.py", "a subprocess"),
    ("multiprocessing/", "another process"),
    ("concurrent/futures/", FUTURE),
    ("asyncio/streams.py", "the network"),
    ("asyncio/", "another task"),
    ("queue.py", QUEUE),
    ("threading.py", LOCK),
    ("socket.py", "the network"),
    ("ssl.py", "the network"),
)
"""What a frame of these files waits for. The one nearest to the user's line counts: a future waits
for a lock, and a DataLoader for another process."""
_COLLECTIVES = "torch/distributed/distributed_c10d.py"
_BACKWARD = "torch/autograd/graph.py"
_WRAPPERS = ("wrapper", "_object_to_tensor", "_tensor_to_object")
_BLOCKS = re.compile(r"\.(acquire|get|put|join|wait|result)\(|^with\b")
_WAITS_FOR_WORK = re.compile(r"\.(wait|synchronize|item|cpu|tolist|numpy)\(|\bfloat\(|\bprint\(")


def describe_position(
    rank: int, step: int, idle_s: float, ident: int, *, several: bool
) -> dict[str, Any]:
    """The facts of `RankPosition` about this process, and its latest `calls`.

    `ident` is the thread that trains; `several`: it is one of several ranks.
    """
    stacks = read_stacks()
    stack = next((item for item in stacks if item.ident == ident), ThreadStack(ident, "", ()))
    calls = read_collectives(MAX_CALLS) if several else []
    place = stack.place
    pending = _pending(calls)
    within = find_wait(stack.frames)
    state = ELSEWHERE
    if several and _in_collective(within, pending, place):
        state = WAITING
    return {
        "rank": rank,
        "state": state,
        "step": step,
        "idle_s": round(idle_s, 1),
        "place": {} if place is None else place.to_dict(),
        "line_text": place.source[:120] if place is not None else None,
        "within": within,
        "collective": pending.to_dict() if pending is not None and state == WAITING else {},
        "stack": stack.describe()[:SHOWN_FRAMES],
        "threads": [f"{item.name}: {item.describe()[0]}" for item in stacks if item is not stack][
            :SHOWN_FRAMES
        ],
        "failed_threads": list(failed_threads) if _waits_for_thread(within, place) else [],
        "calls": [call.to_dict() for call in calls],
    }


def find_wait(frames: Sequence[Location]) -> str | None:
    """What the library code between the innermost frame and the user's line waits for."""
    found: str | None = None
    for frame in frames:
        if not is_library_frame(frame):
            break
        path = frame.file.replace("\\", "/")
        if path.endswith(_COLLECTIVES) and frame.function not in _WRAPPERS:
            found = frame.function  # the outermost of them is what the user called
        elif path.endswith(_BACKWARD):
            return "backward"
        else:
            found = next((what for part, what in _WAITS if part in path), found)
    return found


def _waits_for_thread(within: str | None, place: Location | None) -> bool:
    """Whether another thread has to do something. A lock itself is no frame of Python."""
    if within is None and place is not None:
        return bool(_BLOCKS.search(place.source))
    return within in WAITS_FOR_THREAD


def is_collective(within: str | None) -> bool:
    """Whether a wait that `find_wait` has named is one of a collective."""
    return within is not None and (within == "backward" or " " not in within)


def _in_collective(
    within: str | None, pending: RecordedCollective | None, place: Location | None
) -> bool:
    if is_collective(within):
        return True
    if pending is None or within is not None or place is None:
        return False
    called_here = pending.place is not None and (
        (pending.place.file, pending.place.line) == (place.file, place.line)
    )
    return called_here or bool(_WAITS_FOR_WORK.search(place.source))


def _pending(calls: Sequence[RecordedCollective]) -> RecordedCollective | None:
    """The first of the latest calls that have not completed."""
    found = None
    for call in reversed(calls):
        if call.done:
            break
        found = call
    return found
