"""Connects the watchdog with the parts of a guarded run, without keeping them alive."""

from __future__ import annotations

import weakref
from collections.abc import Hashable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from headway.guard.endings.rank_board import RankBoard
from headway.guard.endings.watchdog import Watchdog, WatchedProgress, watchdogs
from headway.guard.measure.sampling import host_rss_bytes
from headway.guard.measure.system_sampler import SystemSampler
from headway.output.notices import Notices
from headway.rerun import in_script
from headway.rundir.heartbeat import HeartbeatWriter
from headway.torch_adapters.process_groups import rank_group
from headway.torch_adapters.process_state.thread_stacks import ThreadStack

if TYPE_CHECKING:
    from headway.guard.session import Session


def watch_session(session: Session, notices: Notices) -> Watchdog:
    """A watchdog for a session, started unless a captured incident is being replayed."""
    here = weakref.ref(session)

    def progress() -> Hashable:
        known = here()
        return None if known is None else known.machine.progress

    def step() -> int:
        known = here()
        return 0 if known is None else known.steps

    def made() -> int:
        known = here()
        return 0 if known is None else known.counter.made - known.counter.first

    def in_loop() -> bool:
        known = here()
        return known is not None and known.recovery.data_position.in_pass

    def event(at: int, kind: str, data: Mapping[str, Any]) -> None:
        known = here()
        if known is not None:
            known.recorder.from_thread(partial(known.recorder.event, at, kind, data))

    def end(exit_status: int) -> None:
        known = here()
        if known is not None:
            known.recorder.ending.status, known.recorder.ending.exit = "failed", exit_status
            known.recorder.from_thread(partial(known.recorder.end, known.steps))

    ranks, folder = session.ranks, session.run_dir
    rank = rank_group.own_rank() if ranks is None else ranks.rank
    size = rank_group.world_size() if ranks is None else ranks.size
    board = None
    if folder is not None and size > 1:
        board = RankBoard(folder, session.recorder.segment, rank, size)
    found = Watchdog(
        WatchedProgress(progress, step, made, in_loop, event, end),
        notices=notices,
        rank=rank,
        size=size,
        board=board,
        hang_timeout=session.policy.hang_timeout or None,
        sampled=partial(_write_sample, session.recorder.heartbeat, session.system),
    )
    if not in_script.is_requested():
        found.start()
        watchdogs.add(found)
        session.recorder.end_listeners.append(found.ended)
    return found


def _write_sample(
    heartbeat: HeartbeatWriter, system: SystemSampler | None, stack: ThreadStack | None
) -> None:
    """Write the user's line and the memory to the heartbeat; read how busy the machine is."""
    place = stack.place if stack is not None else None
    line = {} if place is None else place.to_dict()
    heartbeat.sample({**line, "rss_bytes": host_rss_bytes()})
    if system is not None:
        system.sample()
