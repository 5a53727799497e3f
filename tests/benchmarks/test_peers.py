"""The comparison with peers: how answers are judged, and that the page holds what was measured."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.corpus_runs import Entry, entries

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import peers  # noqa: E402
from peer_tools import page  # noqa: E402

from headway import registry  # noqa: E402

TOOLS = {name: page.tool_of(name)() for name in page.ORDER}


def entry(start: str) -> Entry:
    [found] = [item for item in entries() if item.file.startswith(start)]
    return found


def said(*alarms: tuple[str, list[int]], **more: Any) -> dict[str, Any]:
    told = [{"rule": rule, "message": "", "lines": lines} for rule, lines in alarms]
    return {"state": "ran", "alarms": told, **more}


@pytest.mark.parametrize("name", TOOLS)
def test_what_rules_mean_is_said_in_codes_there_are(name: str) -> None:
    known = {check.code for check in registry.all_checks()}
    for rule, means in TOOLS[name].means.items():
        assert means, rule
        assert means <= known, rule


def test_a_rule_that_means_the_fault_names_it() -> None:
    fault = entry("faults/f01_")
    line = fault.line_number()
    assert line is not None
    tool = TOOLS["mldoct"]
    right = peers.judged(fault, tool, said(("missing_zero_grad", [line])))
    assert (right["spoke"], right["cause"], right["line"]) == (True, True, True)
    other = peers.judged(fault, tool, said(("double_softmax", [line + 1])))
    assert (other["spoke"], other["cause"], other["line"]) == (True, False, False)
    quiet = peers.judged(fault, tool, said())
    assert (quiet["spoke"], quiet["cause"], quiet["line"]) == (False, False, False)


def test_headway_is_judged_by_its_first_cause() -> None:
    fault = entry("faults/f01_")
    answer = said(("HD206", []), ("HD104", []), first="HD104")
    judged = peers.judged(fault, TOOLS["headway"], answer)
    assert judged["spoke"]
    assert not judged["cause"]


def test_an_alarm_on_a_healthy_script_names_nothing() -> None:
    judged = peers.judged(entry("healthy/h05_"), TOOLS["trainpulse"], said(("plateau", [])))
    assert judged["healthy"]
    assert judged["spoke"]
    assert not judged["cause"]


def test_the_lines_of_a_broken_off_run_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "book.jsonl"
    book = peers.Book(path)
    row = {"part": "corpus", "tool": "anomaly", "file": "a.py", "rules": []}
    book.write({**row, "state": "ran"})
    book.write({**row, "file": "b.py", "state": "too slow"})
    assert [item["file"] for item in peers.Book(path).rows] == ["a.py"]


def test_the_page_holds_what_was_measured() -> None:
    record = page.latest(peers.RESULTS)
    text = (ROOT / "docs" / "peers.md").read_text(encoding="utf-8")
    assert f"{page.BEGIN}\n\n{page.tables(record)}\n{page.END}" in text


def test_no_row_is_lost_on_the_page() -> None:
    record = page.latest(peers.RESULTS)
    tables = page.tables(record)
    for tool in {row["tool"] for row in record["rows"] if row["part"] == "corpus"}:
        assert TOOLS[tool].name in tables
    assert all(row["words"] in tables for row in record["rows"] if row["part"] == "overhead")


SCRIPT = """
import torch
weight = torch.nn.Parameter(torch.zeros(3))
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(5):
    optimizer.zero_grad()
    inside = model(torch.ones(2, 3)) * 0
    loss = torch.sqrt(inside).sum() * 0
    loss.backward()
    optimizer.step()
"""


@pytest.mark.slow
def test_a_script_under_a_tool(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    job = {"script": str(script), "steps": 3, "arguments": [], "limit": 120}
    under = ROOT / "benchmarks" / "peer_tools" / "under.py"
    done = subprocess.run(
        [sys.executable, str(under), "anomaly"],
        input=json.dumps(job) + "\n",
        capture_output=True,
        text=True,
        timeout=200,
        check=True,
    )
    answer = json.loads(done.stdout)
    assert answer["state"] == "ran", answer
    [alarm] = answer["alarms"]
    assert alarm["rule"] == "nan"
    line = SCRIPT.splitlines().index("    loss = torch.sqrt(inside).sum() * 0") + 1
    assert line in alarm["lines"]


def test_rates_are_never_of_nothing() -> None:
    assert page._of(0, 0) == "-"
    assert page._of(1, 4) == "1 of 4 (25 %)"
