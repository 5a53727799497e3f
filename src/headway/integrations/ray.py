"""The guard in a worker of Ray Train.

    def train_loop_per_worker(config):
        model = ray.train.torch.prepare_model(build())
        optimizer = torch.optim.AdamW(model.parameters())
        guard = headway.integrations.ray.guard(model, optimizer)
        for batch in guard(loader):
            ...
            headway.integrations.ray.report(guard, {"loss": loss.item()})

Ray runs a function per worker and has no hooks of its own, so this is the plain guard at a place
that outlives the worker: a folder in the experiment's storage. `ray.train.report` is a meeting of
all workers; a guard that called it whenever it found something would wait for the others for ever.
So what it found travels with the reports that you make anyway.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headway.guard.guard import Guard
from headway.integrations._shared import import_framework

_train = import_framework("ray.train", extra="ray")


def guard(model: Any, optimizer: Any, scheduler: Any = None, **options: Any) -> Guard:
    """A guard for this worker; `options` are those of `headway.Guard`.

    Unless `run_dir` is given, the run is written to `headway` in the experiment's storage, or,
    where that is no file system of this machine, to the worker's own folder.
    """
    options.setdefault("run_dir", run_dir())
    return Guard(model, optimizer, scheduler, **options)


def run_dir() -> Path:
    """Where a worker's record goes unless told otherwise."""
    storage = _train.get_context().get_storage()
    local = type(storage.storage_filesystem).__name__ == "LocalFileSystem"
    return Path(storage.experiment_fs_path if local else ".") / "headway"


def report(guard: Guard, metrics: dict[str, Any], **kwargs: Any) -> None:
    """`ray.train.report`, with what this worker's guard has found and done so far."""
    found = {
        "headway_findings": sorted({finding.code for finding in guard.findings}),
        "headway_held": len(guard.actions),
    }
    _train.report({**metrics, **found}, **kwargs)
