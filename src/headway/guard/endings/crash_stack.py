"""Lets faulthandler write the stack of a process that crashes in native code."""

from __future__ import annotations

import faulthandler
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headway.rundir.vanished_run import stack_file


@contextmanager
def write_crash_stack(run_dir: Path | None, rank: int) -> Iterator[None]:
    """Write the stack into the run directory if the process crashes in here.

    A faulthandler that the user has enabled stays as it is.
    """
    if run_dir is None or faulthandler.is_enabled():
        yield
        return
    path = stack_file(run_dir, rank)
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        file = open(path, "w", encoding="utf-8")  # noqa: SIM115 - faulthandler keeps its number
    except OSError:
        yield
        return
    faulthandler.enable(file=file)
    try:
        yield
    finally:
        faulthandler.disable()
        file.close()
        if not path.stat().st_size:
            path.unlink()
