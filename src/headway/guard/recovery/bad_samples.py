"""`Policy(on_bad_sample="skip")`: leaves out samples whose loading raised, and keeps the batch.

When a DataLoader raises, the samples of the failing batch are loaded once more, one by one, in this
process. Those that load become the batch; those that raise are reported with their index and line.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch.utils.data import DataLoader

from headway.core.ending_facts import LOADER_FAILED
from headway.output.notices import Notices
from headway.torch_adapters.frames import Location, find_user_location

ReportEvent = Callable[[int, str, Mapping[str, Any]], None]
MAX_REPORTED = 1000
"""Maximum number of bad samples that are reported; further ones are skipped without an event."""


class BadSamples:
    """The samples of a run that could not be loaded."""

    def __init__(
        self, report: ReportEvent, step: Callable[[], int], notices: Notices, *, ranks: bool
    ) -> None:
        """`ranks`: other ranks expect a batch for each batch of this rank."""
        self._report = report
        self._step = step
        self._notices = notices
        self._ranks = ranks
        self._known: dict[Any, str] = {}

    def rescue(self, loader: Any, indices: Any, error: Exception) -> list[Any]:
        """The batch without its bad samples, in a list; an empty list skips the whole batch.

        Raises the error where the bad samples cannot be distinguished from the others.
        """
        if not isinstance(loader, DataLoader) or indices is None:
            raise error
        batched = loader.batch_sampler is not None
        wanted: Sequence[Any] = list(indices) if batched else [indices]
        good = []
        for index in wanted:
            try:
                good.append(loader.dataset[index])
            except Exception as raised:  # whatever the data set raises
                self._note(index, raised)
        if len(good) == len(wanted):
            raise error  # each sample loads by itself: the fault is elsewhere
        if not good:
            if self._ranks:
                raise error
            return []
        return [loader.collate_fn(good) if batched else loader.collate_fn(good[0])]

    def _note(self, index: Any, error: Exception) -> None:
        text = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:300]}"
        new = index not in self._known
        if not new or len(self._known) >= MAX_REPORTED:
            return
        self._known[index] = text
        frames = traceback.extract_tb(error.__traceback__)
        stack = [Location(item.filename, item.lineno or 0, item.name) for item in reversed(frames)]
        place = find_user_location(stack)
        self._report(
            self._step(),
            LOADER_FAILED,
            {
                "error": text,
                "error_type": type(error).__name__,
                "place": {} if place is None else place.to_dict(),
                "phase": "data",
                "sample": index if isinstance(index, int) else None,
                "survived": True,
            },
        )
        self._notices.once(
            f"bad-sample-{index}",
            f"sample {index} is skipped from now on: {text}"
            + (f" at {place}" if place is not None else ""),
        )
