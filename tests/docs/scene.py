"""What the pages' examples may take for granted: a small training, and what runs leave behind.

A page speaks of `model`, `train.py` and `runs/first` without making them each time, as its reader
has them already. Here they are made: names for Python blocks, files for commands.

    train.py          the script of docs/recipes/nan.md: one sample makes log(0)
    runs/first        the run directory of a guarded training with the same fault
    outputs/          the folder of a Hugging Face run that NaN killed
    slurm-4711.out    the console of such a run
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from dead_run import make_log, make_outputs
from fences import blocks
from running import shell

ROOT = Path(__file__).parents[2]


def script() -> str:
    """The `train.py` of the NaN recipe."""
    page = (ROOT / "docs" / "recipes" / "nan.md").read_text(encoding="utf-8")
    [found] = [block.text for block in blocks(page) if block.options.get("file") == "train.py"]
    return found


def make_folder(folder: Path) -> None:
    """Everything above."""
    text = script()
    (folder / "train.py").write_text(text, encoding="utf-8")
    made = 'guard = headway.Guard(model, optimizer, run_dir="runs/first")\nfor epoch'
    guarded = text.replace("import torch\n", "import headway, torch\n", 1)
    guarded = guarded.replace("for epoch", made, 1).replace("in loader:", "in guard(loader):", 1)
    (folder / "guarded.py").write_text(f"{guarded}guard.close()\n", encoding="utf-8")
    # A process of its own: an incident remembers the script that made it, to replay it.
    done = shell("python guarded.py", folder)
    assert done.returncode == 0, done.stdout
    make_outputs(folder / "outputs")
    make_log(folder / "slurm-4711.out")


def make_names() -> dict[str, Any]:
    """The names a block may use."""
    import torch
    from torch import nn

    import headway

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return {
        "__name__": "__main__",
        "torch": torch,
        "nn": nn,
        "headway": headway,
        "model": model,
        "optimizer": optimizer,
        "scheduler": torch.optim.lr_scheduler.ConstantLR(optimizer),
        "scaler": torch.amp.GradScaler("cpu", enabled=False),
        "ema": torch.optim.swa_utils.AveragedModel(model),
        "loader": [(torch.randn(16, 8), torch.randn(16, 1)) for _ in range(40)],
        "compute": lambda model, batch: nn.functional.mse_loss(model(batch[0]), batch[1]),
    }


def copy_folder(made: Path, folder: Path) -> None:
    """The same, to be changed by a page."""
    shutil.copytree(made, folder, dirs_exist_ok=True)
