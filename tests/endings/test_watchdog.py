"""The watchdog reports a standstill, and nothing that only looks like one."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from concurrent.futures import _base
from dataclasses import dataclass, field
from multiprocessing import connection
from pathlib import Path
from typing import Any

import pytest
import torch
from support.paired_trainings import events_of
from support.trainings import nothing_else_trains
from torch import nn
from torch.distributed import distributed_c10d
from torch.utils.data import dataloader

import headway
from headway.config import Settings
from headway.core.hang_facts import Comparison
from headway.guard.endings import process_activity, rank_position, watchdog
from headway.guard.endings.exit_hooks import failed_threads
from headway.guard.endings.rank_board import RankBoard
from headway.guard.endings.rank_position import find_wait
from headway.guard.endings.watchdog import LEAST_S, LOOK_S, Watchdog, WatchedProgress, watchdogs
from headway.guard.recovery.preemption import PreemptionSignals
from headway.guard.script.guarded_run import run_guarded
from headway.output.notices import Notices
from headway.rundir.heartbeat import read_heartbeat
from headway.rundir.vanished_run import CrashStack, stack_file
from headway.torch_adapters.frames import Location
from headway.torch_adapters.process_state.thread_stacks import read_stack_of


@dataclass
class Clockwork:
    """A run whose progress and clock the test moves by hand."""

    token: Hashable = 0
    steps: int = 100
    first: int = 100
    looping: bool = True
    busy: bool = False
    now: float = 1000.0
    events: list[tuple[str, Mapping[str, Any]]] = field(default_factory=list)

    def watch(self, **more: Any) -> Watchdog:
        run = WatchedProgress(
            progress=lambda: self.token,
            step=lambda: self.steps,
            made=lambda: self.steps - self.first,
            in_loop=lambda: self.looping,
            event=lambda step, kind, data: self.events.append((kind, data)),
            end=lambda status: self.events.append(("end", {"exit": status})),
        )
        found = Watchdog(run, notices=Notices(), **more)
        for _ in range(5):
            self.progress(found)
        return found

    def progress(self, dog: Watchdog) -> None:
        self.steps += 1
        self.token = self.steps
        self.pass_time(dog, LOOK_S)

    def pass_time(self, dog: Watchdog, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            self.now += LOOK_S
            assert dog.look()

    @property
    def kinds(self) -> list[str]:
        return [kind for kind, _ in self.events]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Clockwork:
    made = Clockwork()
    monkeypatch.setattr(watchdog.time, "monotonic", lambda: made.now)
    monkeypatch.setattr(process_activity.ProcessActivity, "look", lambda self: made.busy)
    return made


@pytest.fixture
def standing() -> Iterator[Callable[[], int]]:
    """Starts a thread that waits in code of the user's; returns its ident."""
    release = threading.Event()
    started: list[threading.Thread] = []

    def start() -> int:
        thread = threading.Thread(target=lambda: release.wait(), daemon=True)
        thread.start()
        started.append(thread)
        assert thread.ident is not None
        return thread.ident

    yield start
    release.set()
    for thread in started:
        thread.join()


def watched(run: Clockwork, ident: int, **more: Any) -> Watchdog:
    dog = run.watch(**more)
    dog.follow(ident)
    return dog


def test_a_standstill_is_reported_once_with_its_line(
    run: Clockwork, standing: Callable[[], int]
) -> None:
    dog = watched(run, standing())
    run.pass_time(dog, LEAST_S - 1)
    assert run.kinds == []
    run.pass_time(dog, 60)
    assert run.kinds == ["hang"]
    facts = run.events[0][1]
    (rank,) = facts["ranks"]
    assert rank["place"]["file"] == __file__
    assert rank["within"] == "a lock or a thread"
    assert facts["idle_s"] <= 3 * facts["usual_s"] + 10


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_died_is_named_with_its_exception(
    run: Clockwork, standing: Callable[[], int]
) -> None:
    failed_threads.clear()
    guard = headway.Guard(model := nn.Linear(2, 1), torch.optim.SGD(model.parameters(), lr=0.1))

    def fill() -> None:
        raise KeyError(180)

    with guard:
        thread = threading.Thread(target=fill, name="filler")
        thread.start()
        thread.join()
    dog = watched(run, standing())
    run.pass_time(dog, 60)
    (rank,) = run.events[0][1]["ranks"]
    (failed,) = rank["failed_threads"]
    assert (failed["name"], failed["error"]) == ("filler", "KeyError: 180")
    assert failed["place"]["function"] == "fill"
    failed_threads.clear()


def test_progress_after_it_takes_it_back(run: Clockwork, standing: Callable[[], int]) -> None:
    dog = watched(run, standing())
    run.pass_time(dog, 20)
    run.progress(dog)
    assert [data.get("over", False) for _, data in run.events] == [False, True]
    run.pass_time(dog, 40)  # the limit is now three times the pause of 20 seconds
    assert len(run.events) == 2
    run.pass_time(dog, 40)
    assert len(run.events) == 3


def test_another_guard_that_takes_over_takes_it_back(
    run: Clockwork, standing: Callable[[], int]
) -> None:
    dog = watched(run, standing())
    run.pass_time(dog, 20)
    dog.continued()
    assert [data.get("over", False) for _, data in run.events] == [False, True]
    assert not dog.hangs
    quiet = watched(run, standing())
    quiet.continued()
    assert len(run.events) == 2


def two_phases(pause: Callable[[], None]) -> None:
    model = nn.Linear(2, 1)
    for _ in range(2):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(20):
            model(torch.randn(4, 2)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        pause()


def test_a_pause_between_two_optimizers_is_no_hang(tmp_path: Path) -> None:
    def report_once() -> None:
        for dog in list(watchdogs):
            dog._report(dog._describe([dog._position()], Comparison("same")))

    pauses = iter([report_once, lambda: None])
    with nothing_else_trains():
        done = run_guarded(
            lambda: two_phases(lambda: next(pauses)()), settings=Settings(), run_dir=tmp_path
        )
    kinds = [event.data.get("over", False) for event in events_of(tmp_path, "hang")]
    assert kinds == [False, True]
    assert [item.code for item in done.report.findings if item.code == "HD914"] == []


def test_activity_is_progress(run: Clockwork, standing: Callable[[], int]) -> None:
    dog = watched(run, standing())
    run.busy = True
    run.pass_time(dog, 600)
    assert run.kinds == []
    run.busy = False
    run.pass_time(dog, LEAST_S + 1)
    assert run.kinds == ["hang"]


def test_the_time_of_a_suspended_process_does_not_count(
    run: Clockwork, standing: Callable[[], int]
) -> None:
    dog = watched(run, standing())
    run.now += 3600
    dog.look()
    assert run.kinds == []


def test_before_the_third_step_there_is_no_usual_pause(
    run: Clockwork, standing: Callable[[], int]
) -> None:
    dog = watched(run, standing())
    run.first = run.steps - 2  # resumed two steps ago
    run.pass_time(dog, 200)
    assert run.kinds == []
    run.pass_time(dog, 200)
    assert run.kinds == ["hang"]


def test_after_the_loop_only_a_collective_can_hang(
    run: Clockwork, standing: Callable[[], int]
) -> None:
    dog = watched(run, standing())
    run.looping = False
    run.pass_time(dog, 600)
    assert run.kinds == []


def test_a_thread_without_code_of_the_user_is_idle(run: Clockwork) -> None:
    idle = threading.Thread(target=threading.Event().wait, daemon=True)  # as a notebook's kernel
    idle.start()
    assert idle.ident is not None
    dog = watched(run, idle.ident)
    run.pass_time(dog, 600)
    assert run.kinds == []


def test_hang_timeout_ends_the_process(
    run: Clockwork, standing: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    left: list[int] = []
    monkeypatch.setattr(watchdog.os, "_exit", left.append)
    dog = watched(run, standing(), hang_timeout=30.0)
    run.pass_time(dog, 29)
    assert left == []
    run.pass_time(dog, 2)
    assert left[0] == watchdog.HUNG_STATUS
    assert run.kinds[:3] == ["hang", "hang", "end"]
    assert run.events[1][1]["timed_out"] is True


def test_a_rank_that_works_excuses_the_one_that_waits(
    run: Clockwork, standing: Callable[[], int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RankBoard, "wait_for_answers", _answer("active"))
    dog = watched(run, standing(), size=2, board=RankBoard(tmp_path, 0, 0, 2))
    run.pass_time(dog, 300)
    assert run.kinds == []
    monkeypatch.setattr(RankBoard, "wait_for_answers", _answer("stopped"))
    run.pass_time(dog, 300)
    assert run.kinds == []


def test_ranks_that_cannot_be_heard_get_more_time(
    run: Clockwork, standing: Callable[[], int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RankBoard, "wait_for_answers", _answer("silent"))
    dog = watched(run, standing(), size=2, board=RankBoard(tmp_path, 0, 0, 2))
    run.pass_time(dog, watchdog.UNHEARD_S - 2)
    assert run.kinds == []
    run.pass_time(dog, 4)
    assert run.kinds[0] == "hang"
    assert run.events[0][1]["unheard"] == ["not there"]


def _answer(state: str) -> Any:
    other = {"rank": 1, "state": state, "why": "not there"}
    return lambda self, asked, seconds: {1: other}


def test_a_rank_that_died_is_named(
    run: Clockwork, standing: Callable[[], int], tmp_path: Path
) -> None:
    other = RankBoard(tmp_path, 0, 1, 2)
    other._who.update(pid=2**22 + 1, started=5)  # no process has this number
    other.announce()
    os.utime(tmp_path / "watch" / "segment0" / "rank1.json", (1, 1))
    board = RankBoard(tmp_path, 0, 0, 2)
    dog = watched(run, standing(), size=2, board=board)
    run.pass_time(dog, 10)
    assert run.kinds == ["hang", "rank-lost"]
    (lost,) = run.events[1][1]["lost"]
    assert (lost["rank"], lost["state"]) == (1, "dead")


def test_a_board_of_another_start_is_not_read(tmp_path: Path) -> None:
    RankBoard(tmp_path, 0, 1, 2).announce("ended", why="ended in good order")
    assert RankBoard(tmp_path, 1, 0, 2).look_at(1)["state"] == "silent"
    assert RankBoard(tmp_path, 0, 0, 2).look_at(1)["state"] == "ended"


ABORTED = f"""Fatal Python error: Aborted

Thread 0x01 (most recent call first):
  File "{threading.__file__}", line 320 in wait
  File "{threading.__file__}", line 1002 in _bootstrap

Thread 0x02 (most recent call first):
  File "{distributed_c10d.__file__}", line 9 in all_gather
  File "/home/me/train.py", line 14 in gather
  File "/home/me/train.py", line 30 in <module>
"""


def test_a_rank_that_native_code_aborted_has_the_line_of_its_script(tmp_path: Path) -> None:
    stack_file(tmp_path, 1).write_text(ABORTED)
    found = CrashStack.read(tmp_path, 1)
    assert found.signal == signal.SIGABRT
    assert found.user_frame() == ("/home/me/train.py", 14, "gather")
    RankBoard(tmp_path, 0, 1, 2).announce()
    file = tmp_path / "watch" / "segment0" / "rank1.json"
    file.write_text(file.read_text().replace('"started": ', '"started": 1'))  # another process
    seen = RankBoard(tmp_path, 0, 0, 2).look_at(1)
    assert (seen["state"], seen["within"], seen["place"]["line"]) == ("dead", "all_gather", 14)


def test_a_loop_of_asyncio_waits_at_the_line_of_its_task() -> None:
    async def trains(never: asyncio.Event) -> None:
        await never.wait()  # the line

    async def sleeps() -> None:
        await asyncio.sleep(60)

    async def main() -> None:
        never = asyncio.Event()
        asyncio.get_running_loop().call_later(0.2, began.set)
        await asyncio.wait_for(asyncio.gather(sleeps(), trains(never)), 1.5)

    def work() -> None:
        with contextlib.suppress(asyncio.TimeoutError):
            asyncio.run(main())

    began = threading.Event()
    thread = threading.Thread(target=work)
    thread.start()
    assert began.wait(10)
    time.sleep(0.2)  # until the loop is idle again
    stack = read_stack_of(thread.ident or 0)
    thread.join()
    assert stack is not None
    assert stack.place is not None
    assert (stack.place.function, "# the line" in stack.place.source) == ("trains", True)
    assert find_wait(stack.frames) == "another task"


def test_the_call_of_the_user_says_what_is_waited_for() -> None:
    frames = [
        Location(connection.__file__, 1, "wait"),
        Location(dataloader.__file__, 2, "__next__"),
        Location("/home/me/train.py", 3, "main"),
    ]
    assert find_wait(frames) == "a DataLoader worker"
    frames[:2] = [Location(threading.__file__, 1, "wait"), Location(_base.__file__, 2, "result")]
    assert find_wait(frames) == "a future"


@pytest.mark.parametrize("dropped", [False, True], ids=["another guard", "one that is gone"])
def test_a_signal_does_not_wait_for_the_end_of_a_step_that_hangs(
    run: Clockwork, standing: Callable[[], int], monkeypatch: pytest.MonkeyPatch, dropped: bool
) -> None:
    earlier = signal.signal(signal.SIGUSR1, signal.SIG_DFL)
    forgotten, signals = PreemptionSignals(), PreemptionSignals()
    if dropped:
        del forgotten
        gc.collect()
    try:
        dog = watched(run, standing())
        monkeypatch.setattr(watchdog, "watchdogs", {dog})
        signal.raise_signal(signal.SIGUSR1)
        assert signals.asked == signal.SIGUSR1, "the step will end"
        signals.asked = None
        run.pass_time(dog, 60)
        with pytest.raises(SystemExit, match=str(128 + signal.SIGUSR1)):
            signal.raise_signal(signal.SIGUSR1)
    finally:
        signals.close()
        signal.signal(signal.SIGUSR1, earlier)


@pytest.mark.parametrize(
    ("within", "line", "waits"),
    [
        ("a queue", "x = batches.get()", True),
        (None, "lock.acquire()", True),
        (None, "with lock:", True),
        (None, "time.sleep(3600)", False),
        ("all_reduce", "dist.all_reduce(x)", False),
    ],
)
def test_what_another_thread_has_to_provide(within: str | None, line: str, waits: bool) -> None:
    place = Location("train.py", 3, "main", line)
    assert rank_position._waits_for_thread(within, place) is waits


def test_a_process_that_computes_is_active() -> None:
    activity = process_activity.ProcessActivity(threading.get_ident())
    assert not activity.look()
    until = time.monotonic() + 0.3
    while time.monotonic() < until:
        sum(range(1000))
    assert activity.look()


def test_a_guard_writes_the_line_to_the_heartbeat_and_leaves_no_thread(tmp_path: Path) -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard = headway.Guard(model, optimizer, run_dir=tmp_path)
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        known = read_heartbeat(tmp_path, 0)
        if known is not None and known.sample:
            break
        time.sleep(0.05)
    assert known is not None
    assert (known.sample["file"], known.pid) == (__file__, os.getpid())
    assert known.sample["rss_bytes"] > 0
    guard.close()
    while _watchdogs() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _watchdogs()


def test_a_guard_that_was_dropped_is_not_kept_alive_by_its_watchdog() -> None:
    model = nn.Linear(2, 1)
    guard = headway.Guard(model, torch.optim.SGD(model.parameters(), lr=0.1))
    dog = guard._session.watchdog
    del guard
    gc.collect()
    deadline = time.monotonic() + 30
    while dog._thread.is_alive() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not dog._thread.is_alive()


def _watchdogs() -> list[str]:
    return [item.name for item in threading.enumerate() if item.name == "headway-watchdog"]
