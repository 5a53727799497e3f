"""Runs the scripts of `tests/data/hangs` as ranks, until their watchdogs report or they end."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import headway

SCRIPTS = Path(__file__).parents[1] / "data" / "hangs"
PATIENCE = 120.0
"""Seconds after which a script that does what it shall counts as broken."""
_EXPECTED = re.compile(r"^# (HD\d+) rank (\d+) of (\d+)(?: (\w+))?$")


@dataclass(frozen=True)
class Expected:
    """What the first line of a script promises."""

    code: str
    rank: int
    size: int
    op: str | None
    line: int | None
    """The line that is marked with `# here`."""

    @classmethod
    def of(cls, script: Path) -> Expected:
        lines = script.read_text().splitlines()
        match = _EXPECTED.match(lines[0])
        assert match is not None, script
        here = [number for number, line in enumerate(lines, 1) if line.endswith("# here")]
        code, rank, size, op = match.groups()
        return cls(code, int(rank), int(size), op, here[0] if here else None)


class RankProcesses:
    """The processes of one script."""

    def __init__(self, script: Path, run_dir: Path, size: int, **environment: str) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.run_dir = run_dir
        common = {
            **os.environ,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "WORLD_SIZE": str(size),
            "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": "1",
            **environment,
        }
        self.ranks = [
            subprocess.Popen(
                [sys.executable, str(script), str(run_dir)],
                env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,  # workers outlive a rank that is killed: see __exit__
            )
            for rank in range(size)
        ]

    def __enter__(self) -> RankProcesses:
        return self

    def __exit__(self, *_: object) -> None:
        for rank in self.ranks:
            with suppress(ProcessLookupError):
                os.killpg(rank.pid, signal.SIGKILL)
        for rank in self.ranks:
            rank.communicate()

    def wait_until(self, done: Callable[[], bool], patience: float = PATIENCE) -> None:
        deadline = time.monotonic() + patience
        while not done():
            assert time.monotonic() < deadline, "nothing was reported"
            time.sleep(0.1)

    def events(self, kind: str) -> list[dict[str, Any]]:
        """The data of the events of this kind, of all ranks."""
        files = sorted(self.run_dir.glob("events*.jsonl"))
        lines = [line for file in files for line in file.read_text().splitlines()]
        return [json.loads(line)["data"] for line in lines if f'"event":"{kind}"' in line]

    def wait(self) -> list[int]:
        """The exit status of every rank."""
        return [rank.wait(PATIENCE) for rank in self.ranks]


def diagnose_loss(script: Path, run_dir: Path, **environment: str) -> tuple[Any, list[str]]:
    """(the report on a script whose ranks end by themselves, the output of each)."""
    with RankProcesses(script, run_dir, Expected.of(script).size, **environment) as ranks:
        output = [rank.communicate(timeout=PATIENCE)[0] for rank in ranks.ranks]
    return headway.diagnose(run_dir), output


def diagnose_hang(script: Path, run_dir: Path, **environment: str) -> tuple[Any, dict[str, Any]]:
    """(the report on a script after its hang was reported and it was killed, the hang event)."""
    expected = Expected.of(script)
    with RankProcesses(script, run_dir, expected.size, **environment) as ranks:
        ranks.wait_until(lambda: bool(ranks.events("hang")))
        event = ranks.events("hang")[0]
        if expected.code == "HD607":
            ranks.wait_until(lambda: bool(ranks.events("collective-mismatch")), 5)
    return headway.diagnose(run_dir), event
