"""The guard in a worker of Ray Train.

    def train_loop_per_worker(config):
        model = ray.train.torch.prepare_model(build())
        optimizer = torch.optim.AdamW(model.parameters())
        guard = headway.integrations.ray.guard(model, optimizer)
        for batch in guard(loader):
            ...
            headway.integrations.ray.report(guard, {"loss": loss.item()})

Ray runs one function per worker and has no hooks, so this is the plain guard with a run directory
that outlives the worker: a folder in the experiment's storage. `ray.train.report` waits for all
workers, so the guard must not call it by itself: its findings travel with your own reports.
"""

from __future__ import annotations

from headway.integrations import _needs_torch  # noqa: F401

# isort: split

from pathlib import Path
from typing import Any

from headway.guard.guard import Guard
from headway.integrations._shared import import_framework

_train = import_framework("ray.train", extra="ray")


def guard(model: Any, optimizer: Any, scheduler: Any = None, **options: Any) -> Guard:
    """A guard for this worker; `options` are those of `headway.Guard`.

    Unless `run_dir` is given, the run is written to `headway` in the experiment's storage; if that
    is not a local file system, to the worker's own folder.
    """
    options.setdefault("run_dir", run_dir())
    return Guard(model, optimizer, scheduler, **options)


def run_dir() -> Path:
    """The default run directory of a worker."""
    storage = _train.get_context().get_storage()
    local = type(storage.storage_filesystem).__name__ == "LocalFileSystem"
    return Path(storage.experiment_fs_path if local else ".") / "headway"


def report(guard: Guard, metrics: dict[str, Any], **kwargs: Any) -> None:
    """`ray.train.report`, with the findings and skipped updates of this worker's guard."""
    found = {
        "headway_findings": sorted({finding.code for finding in guard.findings}),
        "headway_skipped": len(guard.actions),
    }
    _train.report({**metrics, **found}, **kwargs)
