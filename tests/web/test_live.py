"""What the page is told while runs are written, resumed, replaced, torn, and appear."""

from __future__ import annotations

import json
import math
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.report_runs import BAD, sick_records, write
from support.serving import Served, serving

from headway.core.records import EventRecord, Header, Record, StepRecord
from headway.core.signals import Signal

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")


def steps(first: int, last: int, *, segment: int = 0, seq: int = 1) -> list[Record]:
    """Plain steps, numbered on from `seq`."""
    return [
        StepRecord(segment, seq + at, step, {"loss": 2.0 + step / 1000, "grad_norm": 1.0})
        for at, step in enumerate(range(first, last))
    ]


def header(segment: int = 0, seq: int = 0) -> Header:
    described = {"loss": Signal(), "grad_norm": Signal()}
    return Header("headway", described, {}, {}, segment=segment, seq=seq)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def served(folder: Path) -> Iterator[Served]:
    with serving(folder) as up:
        yield up


def charts(served: Served, run: dict[str, Any], query: str = "") -> dict[str, Any]:
    answer = served.ask(f"/api/runs/{run['id']}/charts{query}")
    assert answer.status == 200
    found: dict[str, Any] = answer.json()
    return found


def loss(drawn: dict[str, Any]) -> dict[str, Any]:
    panel = next(panel for panel in drawn["panels"] if panel["id"] == "loss")
    series: dict[str, Any] = panel["series"][0]
    return series


def until(work: Any, wanted: Any) -> Any:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        found = work()
        if wanted(found):
            return found
        time.sleep(0.1)
    raise AssertionError(found)


@pytest.mark.slow
def test_a_run_that_appears_later_appears(served: Served, folder: Path) -> None:
    assert "later" not in served.runs()
    write(folder / "group" / "later", sick_records())
    # The server may look while the record is still being written.
    run = served.wait_for("group/later", lambda run: run["checked"] == 1 and run["step"] == 119)
    run = served.wait_for("group/later", lambda run: run["verdict"] == "error")
    assert run["findings"]["error"] >= 1
    assert run["step"] == 119
    assert run["ladder"] == f"skipped at step {BAD}"
    details = served.ask(f"/api/runs/{run['id']}").json()
    assert details["causes"][0]["incident"] == 0
    assert details["incidents"][0]["origins"][0]["place"]["line"] == "178"
    cured = [trial for trial in details["incidents"][0]["trials"] if trial["outcome"] == "cured"]
    assert cured[0]["text"] == "At losses.py:178 clamp `p`"
    drawn = charts(served, run)
    assert ["NaN", BAD, BAD, 1] in loss(drawn)["gaps"]
    maps = served.ask(f"/api/runs/{run['id']}/layers").json()["maps"]
    assert {item["id"] for item in maps} == {
        "param-grad_norm",
        "param-update_ratio",
        "param-nonfinite_share",
    }


@pytest.mark.slow
def test_new_steps_come_and_a_torn_line_waits(served: Served, folder: Path) -> None:
    path = write(folder / "grows", [header(), *steps(0, 50)])
    run = served.wait_for("grows", lambda run: run["step"] == 49)
    assert charts(served, run)["end"] == 49
    line = json.dumps({"seg": 0, "seq": 51, "step": 50, "v": {"loss": "NaN", "grad_norm": 1.0}})
    with open(path / "steps.rank0.jsonl", "a", encoding="utf-8") as file:
        file.write(line[:20])
        file.flush()
        time.sleep(1.2)
        assert charts(served, run)["end"] == 49
        assert served.runs()["grows"]["checked"] == 1  # half a line is not waited for
        file.write(line[20:] + "\n")
    drawn = until(lambda: charts(served, run), lambda drawn: drawn["end"] == 50)
    assert ["NaN", 50, 50, 1] in loss(drawn)["gaps"]
    served.wait_for("grows", lambda run: run["loss"] == "NaN" and run["verdict"] == "error")


def test_a_run_that_goes_back_goes_on(served: Served, folder: Path) -> None:
    again = [header(1, 0), *steps(30, 60, segment=1)]
    write(folder / "back", [header(), *steps(0, 50), *again])
    run = served.wait_for("back", lambda run: run["checked"] == 1 and run["step"] == 59)
    drawn = until(lambda: charts(served, run), lambda drawn: drawn["jumps"])
    assert drawn["jumps"] == [[50, 20]]
    assert loss(drawn)["x"] == list(range(80))


@pytest.mark.slow
def test_another_run_in_the_same_place(served: Served, folder: Path) -> None:
    path = write(folder / "replaced", [header(), *steps(0, 80)])
    run = served.wait_for("replaced", lambda run: run["step"] == 79 and run["checked"] == 1)
    assert charts(served, run)["end"] == 79
    for name in ("steps.rank0.jsonl", "events.jsonl", "run.json"):
        (path / name).unlink(missing_ok=True)
    bad = StepRecord(0, 10, 9, {"loss": math.nan, "grad_norm": 1.0})
    write(path, [header(), *steps(0, 9), bad])
    drawn = until(lambda: charts(served, run), lambda drawn: drawn["end"] == 9)
    assert loss(drawn)["x"] == list(range(9))
    served.wait_for("replaced", lambda run: run["step"] == 9 and run["verdict"] == "error")


@pytest.mark.slow
def test_an_end_and_a_resume(served: Served, folder: Path) -> None:
    end = EventRecord(0, 41, 40, "end", {"steps": 40})
    path = write(folder / "resumed", [header(), *steps(0, 40), end])
    served.wait_for("resumed", lambda run: run["state"] == "ended")
    write(path, [header(1, 0), *steps(40, 60, segment=1)])
    run = served.wait_for("resumed", lambda run: run["state"] == "running")
    assert run["step"] == 59
    served.wait_for("resumed", lambda run: run["checked"] == 1)


@pytest.mark.slow
def test_a_part_of_the_run_is_drawn_in_detail(served: Served, folder: Path) -> None:
    stream: list[Record] = [header()]
    for step in range(30_000):
        value = math.inf if step == 20_001 else 500.0 if step == 12_345 else 2.0 + step % 7
        stream.append(StepRecord(0, step + 1, step, {"loss": value, "grad_norm": 1.0}))
    write(folder / "long", stream)
    run = served.wait_for("long", lambda run: run["step"] == 29_999)
    drawn = until(lambda: charts(served, run, "?points=200"), lambda drawn: drawn["drawn"] == 1)
    whole = loss(drawn)
    assert len(whole["x"]) <= 400
    assert (12_345, 500.0) in zip(whole["x"], whole["y"], strict=True)
    assert ["Infinity", 20_001, 20_001, 1] in whole["gaps"]
    part = loss(charts(served, run, "?from=12300&to=12400&points=200"))
    assert part["x"] == list(range(12_300, 12_401))
    nowhere = charts(served, run, "?from=9999999999999999&to=8888888888888888")
    assert nowhere["panels"] == []
    assert nowhere["end"] == 29_999


@pytest.mark.parametrize(
    "query", ["?from=-1&to=x", "?points=%F0", "?from=1e9", "?to=5", "?points=0"]
)
def test_nonsense_is_taken_for_nothing(served: Served, folder: Path, query: str) -> None:
    write(folder / "plain", [header(), *steps(0, 50)])
    run = served.wait_for("plain", lambda run: run["step"] == 49)
    assert loss(charts(served, run, query))["x"]


@pytest.mark.slow
def test_runs_are_compared(served: Served, folder: Path) -> None:
    again = [header(1, 0), *steps(30, 60, segment=1)]
    write(folder / "one", [header(), *steps(0, 50)])
    write(folder / "repeats", [header(), *steps(0, 50), *again])
    ends = {"one": 49, "repeats": 59}
    runs = {
        name: served.wait_for(name, lambda run, end=end: run["step"] == end)
        for name, end in ends.items()
    }
    keys = [run["id"] for run in runs.values()]
    asked = "&".join(f"run={key}" for key in [*keys, "nobody", keys[0]])
    drawn = served.ask(f"/api/compare?{asked}").json()
    panel = next(panel for panel in drawn["panels"] if panel["id"] == "loss")
    assert [series["label"] for series in panel["series"]] == ["one", "repeats"]
    assert [series["colour"] for series in panel["series"]] == [0, 1]
    assert drawn["repeated"] == ["repeats"]
    assert drawn["unknown"] == 1


@pytest.mark.slow
def test_logs_of_other_tools_are_listed(tmp_path: Path) -> None:
    for saved in (50, 100):
        state = tmp_path / "hf" / f"checkpoint-{saved}" / "trainer_state.json"
        state.parent.mkdir(parents=True)
        rows = [
            {
                "step": at,
                "loss": 2.0 - at / 200,
                "grad_norm": 1.0,
                "learning_rate": 1e-4,
                "epoch": 1,
            }
            for at in range(1, saved + 1)
        ]
        state.write_text(json.dumps({"log_history": rows, "global_step": saved, "max_steps": 100}))
    with serving(tmp_path) as up:
        run = up.wait_for("hf/checkpoint-100/trainer_state.json", lambda run: run["checked"] == 1)
        assert len(up.runs()) == 1
        assert run["source"] == "hf-trainer"
        assert run["step"] == 100
        assert loss(charts(up, run))["x"][-1] == 100


def events(served: Served) -> socket.socket:
    """Somebody who listens."""
    served.runs()
    link = socket.create_connection(("127.0.0.1", served.port), timeout=60)
    link.sendall(
        f"GET /api/events HTTP/1.1\r\nHost: 127.0.0.1:{served.port}\r\n"
        f"Cookie: {served.cookie}\r\n\r\n".encode()
    )
    return link


def test_changes_are_told(served: Served, folder: Path) -> None:
    with events(served) as link:
        link.recv(4096)
        write(folder / "told", [header(), *steps(0, 5)])
        key, got = "", b""
        end = time.monotonic() + 60
        while time.monotonic() < end and (not key or key.encode() not in got):
            got += link.recv(65536)
            key = served.runs().get("told", {}).get("id", "")
        assert b"event: runs" in got


@pytest.mark.slow
def test_slow_listeners_hold_nobody_up(served: Served, folder: Path) -> None:
    """Forty that never read, while a run is written: the page answers as before."""
    links = [events(served) for _ in range(40)]
    try:
        for at in range(6):
            write(folder / f"many-{at}", [header(), *steps(0, 20)])
        served.wait_for("many-5", lambda run: run["checked"] == 1)
        assert served.ask("/").status == 200
    finally:
        for link in links:
            link.close()
