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
from headway.output.notices import logger

_train = import_framework("ray.train", extra="ray")


_SCHEMES = {"s3": "s3", "gcs": "gs"}
"""By the name of a file system of pyarrow: how fsspec calls it."""


def guard(model: Any, optimizer: Any, scheduler: Any = None, **options: Any) -> Guard:
    """A guard for this worker; `options` are those of `headway.Guard`.

    Unless `run_dir` is given, the run is written to `headway` in the experiment's storage.
    """
    if "run_dir" not in options:
        options["run_dir"] = run_dir()
    return Guard(model, optimizer, scheduler, **options)


def run_dir() -> Path | str:
    """The default run directory of a worker: a folder, or the URL of one in S3 or GCS.

    Other stores are not known: then it is the worker's own folder, and a warning says so.
    """
    storage = _train.get_context().get_storage()
    kind = getattr(storage.storage_filesystem, "type_name", "local")
    if kind == "local":
        return Path(storage.experiment_fs_path) / "headway"
    if kind in _SCHEMES:
        return f"{_SCHEMES[kind]}://{storage.experiment_fs_path}/headway"
    logger.warning(
        "headway: the experiment's storage is a file system (%s) that headway cannot write to, so "
        "the run is written to %s of this worker, where a new worker does not find it. Pass a "
        "run_dir that every worker can reach",
        kind,
        Path("headway").absolute(),
    )
    return Path("headway")


def report(guard: Guard, metrics: dict[str, Any], **kwargs: Any) -> None:
    """`ray.train.report`, with the findings and skipped updates of this worker's guard."""
    found = {
        "headway_findings": sorted({finding.code for finding in guard.findings}),
        "headway_skipped": len(guard.actions),
    }
    _train.report({**metrics, **found}, **kwargs)
