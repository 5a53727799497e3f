"""The trackers that a guard shows its run to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from headway.live import rehearsal
from headway.live.notices import Notices
from headway.live.recorder import Recorder
from headway.sinks.trackers.choose import open_all
from headway.sinks.trackers.queue import Trackers

if TYPE_CHECKING:
    from headway.live.ranks import Ranks


def attach(
    given: Sequence[Any], recorder: Recorder, ranks: Ranks | None, notices: Notices
) -> Trackers:
    """Show a recorder's stream to these trackers.

    Of ranks that write one run together, the first shows it. A rehearsal is no run.
    """
    writer = recorder.writer
    folder = None if writer is None or writer.broken else writer.path
    if (ranks is not None and ranks.rank != 0) or rehearsal.demanded():
        given = ()
    trackers = open_all(given, run_dir=folder, told=notices.once)
    recorder.listeners += [queue.record for queue in trackers.queues]
    recorder.finding_listeners += [queue.finding for queue in trackers.queues]
    return trackers
