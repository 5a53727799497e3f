"""Explains a CUDA device-side assert: runs the step again on the host, in a fresh process.

After such an error every CUDA call fails, those in destructors abort the process. So nothing here
touches the device: only references to batches on the host, and weights that had been copied to the
host before.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from headway.core.ending_facts import DEVICE_ASSERT
from headway.guard.endings import host_rerun
from headway.guard.endings.failure import Failure, Recognised, read_code_frame, read_line
from headway.rerun.in_script import HOST_RERUN
from headway.rundir.vanished_run import CrashStack
from headway.torch_adapters.device_failure.lost_device import is_device_error, mark_device_lost
from headway.torch_adapters.frames import Location
from headway.torch_adapters.tensor_values import is_on_host

MAX_SECONDS = 180.0
"""Time that the run on the host may take."""
HIDDEN = {
    "CUDA_VISIBLE_DEVICES": "",
    "TORCHDYNAMO_DISABLE": "1",
    "WANDB_MODE": "disabled",
    HOST_RERUN: "1",
}
"""Environment of the process: no CUDA, no compiled code, no tracker."""
LAUNCH_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True, slots=True)
class HostInputs:
    """The state from which a run on the host starts; all of it is on the host already."""

    script: Mapping[str, Any] | None
    """How the script was started: `file`, `module`, `argv`, `cwd`; None: in a notebook."""
    batches: Sequence[Any] = ()
    """The last batches, oldest first."""
    weights: Callable[[], Sequence[Mapping[str, Any]] | None] = lambda: None
    """The state dicts of the models in the last snapshot, if there is one."""


def recognise_device_assert(failure: Failure) -> Recognised | None:
    """The event of an exception after which the device is lost; None for any other."""
    if not is_device_error(failure.error):
        return None
    mark_device_lost()
    facts = failure.facts()
    found = run_on_host(failure.moment.host_inputs)
    place = found.pop("place", None)
    if place:
        true = Location(str(place["file"]), int(place["line"]), place.get("function"))
        facts |= {
            "at": facts["place"],
            "place": true.to_dict(),
            "line_text": read_line(true),
            "frame": read_code_frame(true),
        }
    position = found.get("position")
    if position:
        facts["sample"] = position[0]
    return DEVICE_ASSERT, {**facts, **found}


def run_on_host(inputs: HostInputs | None) -> dict[str, Any]:
    """What the last batches raise on the host, or `why_not`."""
    if inputs is None or inputs.script is None:
        return {"why_not": "there is no script: the code runs in a notebook or a shell"}
    if int(os.environ.get("WORLD_SIZE") or 1) > 1:
        return {"why_not": "with several ranks the step is not run again"}
    folder = Path(tempfile.mkdtemp(prefix="headway-host-"))
    try:
        _write_request(folder, inputs)
        return _run(folder)
    except (OSError, ValueError, RuntimeError, TypeError, AttributeError) as error:
        return {"why_not": f"the run on the host failed: {type(error).__name__}: {error}"}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _describe_crash(folder: Path, status: int) -> dict[str, Any] | None:
    """A wild access to memory ends the process on the host, too: the line that faulthandler wrote.

    None if it ended otherwise, or in code that is not the user's.
    """
    frame = CrashStack.read(folder, 0).user_frame()
    if status >= 0 or frame is None:
        return None
    place = dict(zip(("file", "line", "function"), frame, strict=True))
    return {"found": True, "host_error": _name_signal(-status), "place": place}


def _name_signal(number: int) -> str:
    name = signal.Signals(number).name
    return f"{name}, an access outside of its memory" if name in ("SIGSEGV", "SIGBUS") else name


def _write_request(folder: Path, inputs: HostInputs) -> None:
    (folder / host_rerun.REQUEST).write_text(json.dumps(dict(inputs.script or {})))
    batches = [batch for batch in inputs.batches if is_on_host(batch)]
    if batches:
        with suppress(Exception):  # a class that cannot be pickled: the script loads its own
            torch.save(batches, folder / host_rerun.BATCHES)
    weights = inputs.weights()
    if weights:
        torch.save(list(weights), folder / host_rerun.WEIGHTS)


def _run(folder: Path) -> dict[str, Any]:
    environment = {k: v for k, v in os.environ.items() if k not in LAUNCH_VARIABLES} | HIDDEN
    # PYTHONPATH may be what makes this package importable.
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    command = [sys.executable, "-m", host_rerun.__name__, str(folder)]
    try:
        done = subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=MAX_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"why_not": f"the run on the host took longer than {MAX_SECONDS:.0f} s"}
    try:
        result: dict[str, Any] = json.loads((folder / host_rerun.RESULT).read_text())
    except (OSError, ValueError):
        if crashed := _describe_crash(folder, done.returncode):
            return crashed
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or ["no message"]
        return {"why_not": f"the run on the host ended with {done.returncode}: {last[0][:200]}"}
    return result
