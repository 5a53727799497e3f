"""The Python blocks of docs/frameworks.md are run as they stand, with a bad sample in the data."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

import pytest
import torch

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "frameworks.md").read_text(encoding="utf-8")


def block(heading: str) -> str:
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    [found] = re.findall(r"^```python\n(.*?)^```", section, flags=re.M | re.S)
    return found


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_hugging_face(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from support.transformers_runs import Counting, InOrder, make_trainer

    made = make_trainer(folder)
    names: dict[str, Any] = {
        "model": made.model,
        "args": made.args,
        "data": Counting(200, [50]),
        "Trainer": InOrder,
    }
    exec(block("Hugging Face Trainer"), names)
    assert "HD501" in capsys.readouterr().out
    assert (folder / "runs" / "first" / "run.json").exists()


@pytest.mark.filterwarnings("ignore:.*does not have many workers:UserWarning")
@pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec.. is dep:FutureWarning")
@pytest.mark.filterwarnings("ignore:The number of training batches:UserWarning")
def test_lightning(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import lightning.pytorch as pl
    from support.bad_samples import loader
    from support.lightning_runs import Regression

    quiet = {"logger": False, "enable_progress_bar": False, "enable_checkpointing": False}
    names = {
        "Trainer": functools.partial(pl.Trainer, **quiet),
        "module": Regression(),
        "loader": loader(160, [50]),
    }
    exec(block("Lightning"), names)
    assert "HD501" in capsys.readouterr().out


def test_accelerate(folder: Path) -> None:
    import accelerate
    from support.bad_samples import loader
    from support.trainings import make_net

    model = make_net()
    names: dict[str, Any] = {
        "torch": torch,
        "accelerator": accelerate.Accelerator(cpu=True),
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.01),
        "loader": loader(160, [50]),
    }
    exec(block("Accelerate"), names)
    assert "HD501" in {finding.code for finding in names["watching"].findings}


def test_every_link_leads_somewhere() -> None:
    for link in re.findall(r"\]\(([^)#]+)\)", PAGE):
        assert (DOCS / link).exists(), link
    headings = {
        re.sub(r"[^\w -]", "", title).lower().replace(" ", "-")
        for title in re.findall(r"^## (.+)$", PAGE, flags=re.M)
    }
    for anchor in re.findall(r"\]\(#([^)]+)\)", PAGE):
        assert anchor in headings, anchor
