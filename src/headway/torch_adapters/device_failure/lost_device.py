"""After a device-side assert: remembers that CUDA is unusable, and ends the process in good order.

Every later CUDA call fails, and destructors of events and pinned memory abort the process. So at
the end all exit handlers run, and then the process leaves without destroying anything.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn

import torch
from torch import Tensor

from headway.torch_adapters.live_objects import find_instances
from headway.torch_adapters.private_parts import private_part

_TEXTS = (
    "device-side assert",
    "illegal memory access",
    "unspecified launch failure",
    "misaligned address",
)
_ADVICE = ("CUDA kernel errors might", "For debugging consider", "Compile with")
_run_exit_handlers: Callable[[], None] = private_part(
    "atexit._run_exitfuncs",
    lambda: None,
    without="after a device-side assert, exit handlers of other libraries do not run",
)
_kept: list[Any] = []
"""Tensors and events that must not be destroyed any more: the memory of pinned ones is given back
to CUDA, which aborts the process."""
_lost = False
_status = 1


def is_device_error(error: BaseException) -> bool:
    """Whether the CUDA context is unusable after this error."""
    if not isinstance(error, RuntimeError):
        return False
    # The advice below every CUDA error speaks of device-side assertions, too.
    lines = (line for line in str(error).splitlines() if not line.startswith(_ADVICE))
    return any("CUDA" in line and any(part in line for part in _TEXTS) for line in lines)


def device_is_lost() -> bool:
    """Whether CUDA must not be touched any more."""
    return _lost


def mark_device_lost() -> None:
    """From now on, nothing of ours touches CUDA; the process will leave without destructors."""
    global _lost
    if not _lost:
        _lost = True
        # Frames, and the tensors in them, are destroyed before exit handlers run.
        _kept.extend(find_instances(Tensor, torch.cuda.Event, torch.cuda.Stream))
        atexit.register(_leave)


def set_exit_status(status: int) -> None:
    """The status with which the process is to end; an uncaught exception ends it with 1."""
    global _status
    _status = status


def _leave() -> None:
    atexit.unregister(_leave)
    with suppress(Exception):
        _run_exit_handlers()
    logging.shutdown()
    exit_immediately(_status)


def exit_immediately(status: int) -> NoReturn:
    """End the process without destructors and without waiting for threads."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    os._exit(status)
