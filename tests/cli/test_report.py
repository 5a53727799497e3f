"""`headway report` writes the page, says where, and leaves the exit code to those who ask."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import headway

Invoke = Callable[..., Any]


def test_a_run(invoke: Invoke, sick: Path, tmp_path: Path) -> None:
    done = invoke("report", sick, "-o", tmp_path / "page.html")
    assert done.exit_code == 0
    first, second, *_, last = done.output.splitlines()
    assert first.startswith("headway: 1 error; most likely cause: HD101")
    assert "page.html" in second
    assert last.startswith("Next: ")
    assert "HD101 nonfinite-loss" in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_the_exit_code_tells_of_findings_where_asked(invoke: Invoke, sick: Path) -> None:
    assert invoke("report", sick, "--fail-on", "error").exit_code == 1
    assert Path("headway-report.html").is_file()


def test_a_foreign_log(invoke: Invoke, tmp_path: Path) -> None:
    rows = ["step,loss,grad_norm", *(f"{at},{2 - at / 50},1.0" for at in range(40)), "40,nan,nan"]
    (tmp_path / "log.csv").write_text("\n".join(rows))
    assert invoke("report", tmp_path / "log.csv", "-o", "page.html").exit_code == 0
    page = Path("page.html").read_text(encoding="utf-8")
    assert '"gaps":[["NaN",40,40,1]]' in page


def test_a_folder_of_them(invoke: Invoke, tmp_path: Path) -> None:
    folder = tmp_path / "first"
    folder.mkdir()
    rows = ["step,loss", *(f"{at},{2 - at / 50}" for at in range(40))]
    (folder / "log.csv").write_text("\n".join(rows))
    assert invoke("report", folder, "-o", "page.html").exit_code == 0


def test_a_checkpoint(invoke: Invoke, tmp_path: Path) -> None:
    np.savez(tmp_path / "weights.npz", a=np.array([1.0, np.nan], np.float32))
    done = invoke("report", tmp_path / "weights.npz", "-o", "page.html")
    assert done.exit_code == 0, done.output
    page = Path("page.html").read_text(encoding="utf-8")
    assert "✗ not clean" in page
    assert "nothing to draw" in page


def test_nothing_there(invoke: Invoke, tmp_path: Path) -> None:
    done = invoke("report", tmp_path / "nowhere", "-o", "page.html")
    assert done.exit_code == 2
    assert not Path("page.html").exists()


def test_nowhere_to_write(invoke: Invoke, sick: Path) -> None:
    done = invoke("report", sick, "-o", "no/such/folder/page.html")
    assert done.exit_code == 2


def test_from_python(sick: Path, tmp_path: Path) -> None:
    headway.diagnose(sick).to_html(tmp_path / "page.html")
    assert (tmp_path / "page.html").stat().st_size < 1_000_000
