"""In a notebook, a line is named by its cell, and no advice needs a script."""

from __future__ import annotations

import gc
import linecache
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from support import warm_python

import headway
from headway.torch_adapters.frames import Location

SETUP = """\
import torch, headway
torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
loader = [(torch.rand(16, 8) + 0.1, torch.randn(16, 1)) for _ in range(12)]
loader[9][0][3, 5] = 0.0
"""
LOOP = """\
guard = headway.Guard(model, optimizer, run_dir=folder)
for x, y in guard(loader):
    loss = torch.nn.functional.mse_loss(model(x.log()), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
guard.close()
"""


class Shell:
    """As much of IPython as runs cells: its compiler names each by a hash and knows its number."""

    def __init__(self) -> None:
        self.compile = self
        self.names: dict[str, int] = {}
        self.variables: dict[str, Any] = {}
        self.events = self
        self.callbacks: dict[str, list[Any]] = {"pre_run_cell": [], "post_run_cell": []}

    def register(self, event: str, function: Any) -> None:
        self.callbacks[event].append(function)

    def unregister(self, event: str, function: Any) -> None:
        self.callbacks[event].remove(function)

    def run_caught(self, text: str) -> None:
        """As a cell is run: its exception is shown and kept, and the process goes on."""
        for tell in list(self.callbacks["pre_run_cell"]):
            tell(None)
        result = SimpleNamespace(error_in_exec=None)
        try:
            self.run_cell(text)
        except BaseException as error:
            result.error_in_exec = sys.last_value = error
        for tell in list(self.callbacks["post_run_cell"]):
            tell(result)

    def format_code_name(self, name: str) -> tuple[str, str] | None:
        return ("Cell", f"In[{self.names[name]}]") if name in self.names else None

    def run_cell(self, text: str) -> None:
        number = len(self.names) + 1
        name = f"/tmp/ipykernel_1/{number}000.py"
        self.names[name] = number
        linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
        exec(compile(text, name, "exec"), self.variables)


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch) -> Shell:
    found = Shell()
    ipython = ModuleType("IPython")
    ipython.get_ipython = lambda: found  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "__main__", SimpleNamespace(__name__="__main__"))
    return found


def test_a_bad_step_in_a_notebook(
    shell: Shell, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shell.variables["folder"] = tmp_path
    shell.run_cell(SETUP)
    shell.run_cell(LOOP)
    guard = shell.variables["guard"]
    finding = guard.findings[0]
    assert (finding.where.file, finding.where.line) == ("cell [2]", 3)
    assert "at cell [2], line 3" in finding.message
    assert finding.remedies[0].text.startswith("At cell [2], line 3 write `loss = ")
    assert "headway replay" not in caplog.text
    assert "incident written to" in caplog.text
    readme = next(tmp_path.glob("incidents/*/README.md")).read_text()
    assert "headway replay" not in readme
    for html in (finding._repr_html_(), guard._repr_html_()):
        assert "cell [2], line 3" in html
        assert "mse_loss(model(x.log()), y)</pre>" not in html
        assert "&gt;    3 |     loss = torch.nn.functional.mse_loss(model(x.log()), y)" in html
    report = headway.diagnose(tmp_path)
    assert report.to_dict()["findings"][0]["where"]["file"] == "cell [2]"
    assert "cell [2], line 3" in report._repr_html_()


OPEN = "guard = headway.Guard(model, optimizer, run_dir=folder)\n"
STEPS = """\
for _ in range(4):
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
CRASH, STOP = STEPS + "{}['loss']\n", STEPS + "raise KeyboardInterrupt\n"
OTHER = "undefined\n"


@pytest.mark.parametrize(
    ("cells", "verdict"),
    [
        ([OPEN + CRASH], "failed"),
        ([OPEN, STEPS, CRASH, "print()", OTHER], "failed"),
        ([OPEN, STEPS, STOP], "interrupted"),
        ([OPEN, STEPS, STOP, OTHER], "interrupted"),
        ([OPEN, CRASH, STEPS], "healthy"),
        ([OPEN, STEPS, OTHER], "unknown"),  # too few steps to judge
    ],
)
@pytest.mark.parametrize("end", ["close", "drop"])
def test_a_cell_that_ends_with_an_exception(
    shell: Shell, tmp_path: Path, cells: list[str], verdict: str, end: str
) -> None:
    shell.variables["folder"] = tmp_path
    for text in (
        SETUP,
        *cells,
        "guard.close()" if end == "close" else "del guard, model, optimizer",
    ):
        shell.run_caught(text)
    gc.collect()
    report = headway.diagnose(tmp_path)
    assert report.verdict == verdict
    found = [(item.code, item.where.file) for item in report.findings if item.code == "HD911"]
    known = OTHER not in cells  # the shell has forgotten the first exception
    name = f"cell [{1 + len(cells)}]" if known else None
    assert found == ([("HD911", name)] if verdict == "failed" else [])
    assert shell.callbacks == {"pre_run_cell": [], "post_run_cell": []}


@pytest.mark.slow
def test_a_real_shell(tmp_path: Path) -> None:
    pytest.importorskip("IPython")
    script = tmp_path / "cells.py"
    script.write_text(
        "from IPython.core.interactiveshell import InteractiveShell\n"
        "shell = InteractiveShell.instance()\n"
        f"for text in {[SETUP, f'folder = {str(tmp_path)!r}', OPEN, CRASH]!r}:\n"
        "    shell.run_cell(text)\n"
    )
    warm_python.run([sys.executable, str(script)])
    report = headway.diagnose(tmp_path)
    assert report.verdict == "failed"
    assert [item.where.line for item in report.findings if item.code == "HD911"] == [5]


def test_a_file_keeps_its_name_in_a_notebook(shell: Shell) -> None:
    assert str(Location("/home/me/train.py", 3)) == "/home/me/train.py:3"


def test_without_a_shell_a_file_keeps_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    ipython = ModuleType("IPython")
    ipython.get_ipython = lambda: None  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    assert str(Location("/home/me/train.py", 3)) == "/home/me/train.py:3"


@pytest.mark.slow
def test_a_real_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    assert torch.__version__
    book = nbformat.v4.new_notebook()
    texts = [SETUP, f"folder = {str(tmp_path)!r}\n{LOOP}", "guard.findings[0]"]
    book.cells = [nbformat.v4.new_code_cell(text) for text in texts]
    nbclient.NotebookClient(book, timeout=120, kernel_name="python3").execute()
    logged = "".join(item.get("text", "") for item in book.cells[1].outputs)
    assert "at cell [2], line 4" in logged
    assert "headway replay" not in logged
    (shown,) = book.cells[2].outputs
    assert "cell [2], line 4" in shown["data"]["text/html"]
