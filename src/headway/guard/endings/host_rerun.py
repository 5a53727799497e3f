"""Runs a script on the host in a fresh process, over the last batches of a run that CUDA has lost.

    python -m headway.guard.endings.host_rerun FOLDER

The folder holds `request.json` (how the script was started), `batches.pt` and `weights.pt`, as far
as they are known, and receives `result.json`.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

from headway.guard.endings.fatal_stack import write_crash_stack
from headway.torch_adapters.device_failure.host_only import FailingOp, cuda_on_host
from headway.torch_adapters.device_failure.lost_device import exit_immediately
from headway.torch_adapters.frames import Location, find_user_location
from headway.torch_adapters.live_objects import find_models, find_optimizers
from headway.torch_adapters.patching import wrap_function

REQUEST, BATCHES, WEIGHTS, RESULT = "request.json", "batches.pt", "weights.pt", "result.json"


class NotReproduced(BaseException):
    """The batches ran without an error. Not an Exception, so that scripts do not catch it."""


class _Batches:
    """Hands the recorded batches to the first loop over a DataLoader."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def wrap(self, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        if not (self._folder / BATCHES).is_file():
            return original
        return lambda loader: self._iterate()

    def _iterate(self) -> Iterator[Any]:
        # Only now: the script has defined the classes of its batches.
        batches = torch.load(self._folder / BATCHES, map_location="cpu", weights_only=False)
        _load_weights(self._folder)
        yield from batches
        raise NotReproduced


def _load_weights(folder: Path) -> None:
    """Load the weights of the last snapshot into the models that they fit."""
    with suppress(Exception):  # the initial weights serve as well
        states = torch.load(folder / WEIGHTS, map_location="cpu", weights_only=True)
        for model, state in zip(find_models(find_optimizers()), states, strict=False):
            model.load_state_dict(state)


def main(folder: Path) -> None:
    """Run the script, and write what it raised."""
    request = json.loads((folder / REQUEST).read_text())
    sys.argv = [request["file"], *request["argv"]]
    os.chdir(request["cwd"])
    failing = FailingOp()
    began = time.monotonic()
    result: dict[str, Any] = {"why_not": "the script ended without an error on the host"}
    with ExitStack() as stack:
        stack.enter_context(write_crash_stack(folder, 0))
        stack.callback(wrap_function(DataLoader, "__iter__", _Batches(folder).wrap))
        stack.enter_context(cuda_on_host())
        stack.enter_context(failing)
        try:
            _run_script(request)
        except NotReproduced:
            result = {"why_not": "the last batches ran without an error on the host"}
        except SystemExit as left:
            result = {"why_not": f"on the host the script exited with {left.code!r}"}
        except BaseException as error:
            result = _describe(error, failing)
    result["seconds"] = round(time.monotonic() - began, 3)
    (folder / RESULT).write_text(json.dumps(result))


def _run_script(request: Mapping[str, Any]) -> None:
    if request.get("module"):
        sys.path.insert(0, os.getcwd())
        runpy.run_module(request["module"], run_name="__main__", alter_sys=True)
    else:
        sys.path.insert(0, str(Path(request["file"]).parent))
        runpy.run_path(request["file"], run_name="__main__")


def _describe(error: BaseException, failing: FailingOp) -> dict[str, Any]:
    frames = traceback.extract_tb(error.__traceback__)
    stack = [Location(item.filename, item.lineno or 0, item.name) for item in reversed(frames)]
    place = find_user_location(stack)
    lines = str(error).strip().splitlines() or [""]
    bad = failing.find()
    text = f"{type(error).__name__}: {lines[0][:300]}"
    if bad is None and "CUDA" in text:  # not the error of the step: the script needs a device
        return {"why_not": f"the script does not run without a device: {text}"}
    result: dict[str, Any] = {
        "found": True,
        "host_error": text,
        "place": None if place is None else place.to_dict(),
    }
    if bad is not None:
        result |= {"op": bad.op, "count": bad.count or None}
        if bad.value is not None:
            result |= {"value": bad.value, "position": list(bad.position), "limit": bad.limit}
    return result


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    exit_immediately(0)  # the script's threads and workers need not be waited for
