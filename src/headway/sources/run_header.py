"""What a run directory says of itself: its `run.json`."""

from __future__ import annotations

import json
import os
from pathlib import Path

from headway.core.codec import NO_RECORD, from_json
from headway.core.records import Header
from headway.errors import UnreadableInput
from headway.sources.plain_file import Opener, opened

LONGEST_HEADER = 1 << 26


def header_of(run: Path, opener: Opener = opened, *, rank: int = 0) -> Header | None:
    """None while it has not been written. Raises `UnreadableInput` where it is something else."""
    path = run / "run.json"
    try:
        with opener(path) as file:
            # As much memory is set aside as is asked for, so no more is asked for than there is.
            size = min(os.fstat(file.fileno()).st_size, LONGEST_HEADER)
            record = from_json(json.loads(file.read(size)), rank=rank)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UnreadableInput(f"cannot read {path}: {error.strerror}") from error
    except NO_RECORD as error:
        raise UnreadableInput(f"{path} is not a run header: {error}") from error
    if not isinstance(record, Header):
        raise UnreadableInput(f"{path} is not a run header")
    return record
