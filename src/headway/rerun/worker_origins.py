"""Origins of bad values in DataLoader workers, sent to the process that trains.

A forked worker inherits the trace. After each batch it appends the origins of bad values to a file,
with a fingerprint of the values, so that the training process finds those of its own batch.
"""

from __future__ import annotations

import importlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.explain.explanation import Explanation, Origin
from headway.output.notices import logger
from headway.torch_adapters.loaders.batch_fetching import watch_worker_fetches
from headway.torch_adapters.tensor_values import batch_tensors

if TYPE_CHECKING:
    from headway.explain.lasting_trace import LastingTrace

MAX_RECORDS = 200
"""Maximum number of records of one worker: all samples of a data set may be bad."""


class WorkerOrigins:
    """Sends origins from the workers to the training process, and reads them there."""

    def __init__(self, trace: LastingTrace) -> None:
        self._trace = trace
        number, path = tempfile.mkstemp(prefix="headway-", suffix=".jsonl")
        os.close(number)
        self._path = Path(path)
        self._sent = 0
        self._watch = watch_worker_fetches(self._fetch)
        self._watch.__enter__()

    def close(self) -> None:
        self._watch.__exit__(None, None, None)
        self._path.unlink(missing_ok=True)

    def find(self, batches: Sequence[Any]) -> Origin | None:
        """The origin of the bad values in one of these batches, if a worker has sent it."""
        wanted = {mark for batch in batches for mark in bad_value_marks(batch)}
        if not wanted:
            return None
        for line in reversed(self._path.read_text(encoding="utf-8").splitlines()):
            try:
                data = json.loads(line)
            except ValueError:  # a worker that was killed
                continue
            if wanted.intersection(data["marks"]):
                return Explanation.from_dict(data["explanation"]).origin
        return None

    # In a worker.

    def _fetch(self, fetch: Callable[[], Any]) -> Any:
        self._trace.next_step()
        data = fetch()
        if self._trace.suspicious and self._sent < MAX_RECORDS:
            try:
                self._send(data)
            except Exception:  # ours: the worker goes on
                logger.debug("a worker cannot send an origin", exc_info=True)
        return data

    def _send(self, data: Any) -> None:
        locate = importlib.import_module("headway.explain.locate")
        origins = locate.find_origins(self._trace, self._trace.look_at_batch(data))
        marks = list(bad_value_marks(data))
        if origins and marks and origins[0].output is not None:
            explanation = Explanation(0, "nonfinite", "deterministic", origins=origins[:1])
            record = json.dumps({"marks": marks, "explanation": explanation.to_dict()})
            self._sent += 1
            with self._path.open("a", encoding="utf-8") as file:
                file.write(record + "\n")


def merge_worker_origin(origin: Origin, made: Origin) -> Origin:
    """The origin that a worker has sent, for a batch that was bad when the step read it."""
    name = origin.inputs[0].name if origin.inputs else None
    return replace(
        made, through="batch", through_name=name, rows=origin.rows or made.rows, batch=origin.batch
    )


def bad_value_marks(batch: Any) -> Iterator[str]:
    """A fingerprint of each bad tensor of a batch."""
    for tensor in batch_tensors(batch):
        if tensor.is_floating_point():
            bad = (~tensor.isfinite()).flatten()
            if count := int(bad.sum()):
                yield f"{tuple(tensor.shape)} {count} {int(bad.int().argmax())}"
