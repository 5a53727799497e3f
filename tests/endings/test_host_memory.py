"""The memory of the host, of a container and of a tree of processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from headway.guard.endings import host_memory
from headway.guard.endings.host_memory import HostMemory, judge_kill


def test_this_process_is_measured() -> None:
    found = HostMemory.read()
    assert found.total is not None
    assert found.rss is not None
    assert found.tree is not None
    assert 0 < found.rss <= found.tree
    assert found.bound is not None
    assert found.bound <= found.total


def test_children_count() -> None:
    before = HostMemory.read().children
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert HostMemory.read().children == before + 1
        assert HostMemory.read(child.pid).children == 0
        child.communicate(b"\n")


def test_a_process_that_is_gone_has_no_size() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    found = HostMemory.read(child.pid)
    assert found.tree is None
    assert "tree" not in found.to_dict()


def _write(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(host_memory, "PROC", tmp_path / "proc")
    monkeypatch.setattr(host_memory, "CGROUP", tmp_path / "cgroup")
    _write(
        tmp_path / "proc",
        meminfo="MemTotal: 8000 kB\nMemFree: 10 kB\nMemAvailable: 4000 kB\n",
        vmstat="pgfault 3\noom_kill 7\n",
    )
    _write(tmp_path / "proc" / str(os.getpid()), status="Name:\tx\nVmRSS:\t 100 kB\n")
    return tmp_path


def test_version_two_of_control_groups(host: Path) -> None:
    _write(host / "proc" / str(os.getpid()), cgroup="0::/job/one\n")
    _write(
        host / "cgroup" / "job" / "one",
        memory__max="2048",
        memory__current="1024",
        memory__events="low 0\noom 1\noom_kill 2\n",
    )
    found = HostMemory.read()
    assert (found.limit, found.used, found.oom_kills) == (2048, 1024, 2)
    assert found.bound == 2048


def test_version_one_of_control_groups(host: Path) -> None:
    _write(host / "proc" / str(os.getpid()), cgroup="4:cpu:/\n9:memory:/job\n")
    _write(
        host / "cgroup" / "memory" / "job",
        memory__limit_in_bytes="4096",
        memory__usage_in_bytes="100",
        memory__oom_control="oom_kill_disable 0\nunder_oom 0\noom_kill 1\n",
    )
    found = HostMemory.read()
    assert (found.limit, found.used, found.oom_kills) == (4096, 100, 1)


def test_within_a_container_the_root_is_its_own_group(host: Path) -> None:
    _write(host / "proc" / str(os.getpid()), cgroup="0::/../elsewhere\n")
    _write(host / "cgroup", memory__max="max", memory__current="5")
    found = HostMemory.read()
    assert (found.limit, found.used) == (None, 5)
    assert found.oom_kills == 7  # the host's counter
    assert found.bound == 8000 * 1024


def test_without_control_groups(host: Path) -> None:
    found = HostMemory.read()
    assert (found.limit, found.used) == (None, None)
    assert found.available == 4000 * 1024


@pytest.mark.parametrize(
    ("before", "after", "verdict"),
    [
        (HostMemory(oom_kills=1, limit=100), HostMemory(oom_kills=2, limit=100), "certain"),
        (HostMemory(oom_kills=1, limit=100, tree=99), HostMemory(oom_kills=1, limit=100), None),
        (HostMemory(limit=100, tree=95), HostMemory(), "likely"),
        (HostMemory(total=100, available=2, tree=50), HostMemory(), "likely"),
        (HostMemory(total=100, available=60, tree=30), HostMemory(), None),
        (HostMemory(), HostMemory(), None),
    ],
)
def test_who_killed_it(before: HostMemory, after: HostMemory, verdict: str | None) -> None:
    assert judge_kill(before, after) == verdict
