"""Reads PyTorch's flight recorder: the latest collectives of this process.

The recorder is a ring buffer in C++ that NCCL and gloo fill. Recent versions of torch switch it on
by themselves; for others `TORCH_FR_BUFFER_SIZE` must be set before torch is imported.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headway.torch_adapters.frames import Location, find_user_location
from headway.torch_adapters.private_parts import private_part

BUFFER_SIZE = "1000"
"""Collectives that are recorded. Each rank may be this many collectives ahead of another."""
_VARIABLES = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")

_dump: Callable[[], bytes] | None = private_part(
    "torch._C._distributed_c10d._dump_fr_trace",
    None,
    without="the sequence of collectives is not known: hangs are explained from stacks alone",
)


@dataclass(frozen=True, slots=True)
class RecordedCollective:
    """One call of a collective."""

    group: str
    number: int
    """Position in the sequence of calls of its group; the same on all ranks."""
    op: str
    """`all_reduce`, without the name of the backend."""
    sizes: Sequence[Sequence[int]]
    dtypes: Sequence[str]
    place: Location | None
    """The line of the user's code that called it."""
    done: bool

    def to_dict(self) -> dict[str, Any]:
        return {
            "group": self.group,
            "number": self.number,
            "op": self.op,
            "sizes": [list(size) for size in self.sizes],
            "dtype": self.dtypes[0] if self.dtypes else None,
            "place": {} if self.place is None else self.place.to_dict(),
            "done": self.done,
        }


def request_recording() -> None:
    """Switch the recorder on, in a process that has not imported torch yet."""
    if not any(name in os.environ for name in _VARIABLES):
        os.environ[_VARIABLES[0]] = BUFFER_SIZE


def read_collectives(most: int) -> list[RecordedCollective]:
    """The last `most` collectives, oldest first; none where nothing is recorded."""
    if _dump is None:
        return []
    try:
        entries = pickle.loads(_dump()).get("entries", [])
        return [_read_entry(entry) for entry in entries[-most:]]
    except Exception:  # the layout is not promised
        return []


def _read_entry(entry: Mapping[str, Any]) -> RecordedCollective:
    group = entry.get("process_group") or ("", "")
    frames = [
        Location(frame["filename"], int(frame["line"]), frame["name"])
        for frame in entry.get("frames", ())
    ]
    direct = bool(entry.get("is_p2p"))
    return RecordedCollective(
        group=f"{group[0]} p2p" if direct else str(group[0]),
        number=int(entry["p2p_seq_id"] if direct else entry["collective_seq_id"]),
        op=str(entry["profiling_name"]).partition(":")[2] or str(entry["profiling_name"]),
        sizes=entry.get("input_sizes", ()),
        dtypes=entry.get("input_dtypes", ()),
        place=find_user_location(frames),
        done=bool(entry.get("retired")) or entry.get("state") == "completed",
    )
