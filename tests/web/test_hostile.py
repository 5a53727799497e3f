"""A run directory made to harm: it is shown, cut short, and does nothing."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from support.report_runs import hostile_run, sick_records, write
from support.serving import Served, serving

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")


def hostile_folder(folder: Path) -> None:
    """Names, lines and files that somebody hoped would be believed."""
    hostile_run(folder / "<script>window.pwned=1<" / "x..%2f..%2fetc\x1b[31m")
    write(folder / "good", sick_records())
    odd = {
        "binary": b"\x00\xff\xfe" * 10_000,
        "long line": b'{"seg":0,"seq":1,"step":0,"v":{"loss":' + b"1" * 20_000_000,
        "deep": b"[" * 100_000 + b"\n",
        "wrong": b'{"seg":-1,"seq":"x","step":1e99,"v":[]}\n{}\nnull\n"x"\n'
        b'{"seg":0,"seq":5,"step":5,"v":{"loss":"<b>"}}\n'
        b'{"seg":0,"seq":99999999999999999999,"step":99999999999999999999,"v":{"loss":1}}\n'
        b'{"seg":0,"seq":6,"step":6,"v":{"loss":1e999,"grad_norm":3}}\n',
        "torn": b'{"seg":0,"seq":1,"step":0,"v":{"loss":1.0}}\n{"seg":0,"seq":2,"st',
    }
    header = (folder / "good" / "run.json").read_bytes()
    for name, content in odd.items():
        path = folder / name
        path.mkdir()
        (path / "run.json").write_bytes(header)
        (path / "steps.rank0.jsonl").write_bytes(content)
        (path / "events.jsonl").write_bytes(content)
    (folder / "no header").mkdir()
    (folder / "no header" / "run.json").write_bytes(b"\xff{")
    (folder / "folder for a file" / "run.json").mkdir(parents=True)
    (folder / "circle").symlink_to(folder / "circle")
    pipe = folder / "pipe"
    pipe.mkdir()
    (pipe / "run.json").write_bytes(header)
    os.mkfifo(pipe / "steps.rank0.jsonl")
    claims = folder / "claims"
    write(claims, sick_records())
    page = claims / "incidents" / "1-step83"
    page.mkdir(parents=True)
    outside = folder.parent / "outside.md"
    outside.write_text("> 1 | root: what lies outside of the folder\n")
    (page / "README.md").symlink_to(outside)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("hostile")
    hostile_folder(folder)
    with serving(folder) as up:
        yield up


@pytest.mark.slow
def test_every_run_has_an_answer(served: Served) -> None:
    served.wait_for("good", lambda run: run["checked"] == 1)
    runs = served.runs()
    assert len(runs) >= 8
    for name, run in runs.items():
        for part in ("", "/charts", "/layers"):
            answer = served.ask(f"/api/runs/{run['id']}{part}")
            assert answer.status == 200, (name, part)
            answer.json()
            assert len(answer.body) < 3_000_000, (name, part)
            assert b"root:" not in answer.body, (name, part)
    assert runs["good"]["verdict"] == "error"


@pytest.mark.slow
def test_every_run_can_be_saved(served: Served) -> None:
    served.wait_for("claims", lambda run: run["checked"] == 1)
    for name, run in served.runs().items():
        served.ask(f"/api/runs/{run['id']}/charts")
        answer = served.ask(f"/api/runs/{run['id']}/report")
        assert answer.status in (200, 503), name
        assert b"root:" not in answer.body, name
        assert b"\x1b" not in answer.body, name
        if name in ("good", "claims"):
            assert answer.status == 200
            assert answer.headers["content-disposition"] == (
                f'attachment; filename="headway-{name}.html"'
            )
            assert b"Content-Security-Policy" in answer.body
            assert b"HD101 nonfinite-loss" in answer.body
    assert served.ask("/api/runs/nobody/report").status == 404


def test_what_is_whole_in_a_broken_file_is_shown(served: Served) -> None:
    runs = served.runs()
    drawn = served.ask(f"/api/runs/{runs['torn']['id']}/charts").json()
    assert drawn["panels"][0]["series"][0]["x"] == [0]
    drawn = served.ask(f"/api/runs/{runs['wrong']['id']}/charts").json()
    assert drawn["end"] == 6


def test_text_is_clean(served: Served) -> None:
    body = b"".join(
        served.ask(target).body
        for run in served.runs().values()
        for target in (f"/api/runs/{run['id']}", f"/api/runs/{run['id']}/charts", "/api/runs")
    )
    said = json.dumps(json.loads(served.ask("/api/runs").body), ensure_ascii=False)
    for mark in ("\x1b", "\u202e", "\u2066", "\u2028"):
        assert json.dumps(mark)[1:-1].encode() not in body
        assert mark not in said
    assert "<script>window.pwned=1<" in said  # shown as it is, and as text


@pytest.mark.slow
def test_the_server_still_stands(served: Served) -> None:
    assert served.process.poll() is None
    assert served.ask("/").status == 200
