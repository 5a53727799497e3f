"""A real training on pictures and words, one of which is bad."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

import headway
from headway.report import Report

BAD = 37


class Words:
    """Decodes the numbers of words."""

    def decode(self, ids: list[int]) -> str:
        return " ".join(f"word{one}" for one in ids)


class Pictures(Dataset[dict[str, Any]]):
    """Pictures of a gradient; one has a hole of NaN."""

    def __init__(self) -> None:
        self.tokenizer = Words()

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> dict[str, Any]:
        across = torch.linspace(-1, 1, 24).expand(16, 24)
        image = torch.stack([across, across.flip(1), across * index / 64])
        if index == BAD:
            image[:, 4:8, 6:9] = float("nan")
        words = torch.tensor([index, 5, 7, -100])
        caption = f"picture {index}\n<img src=x onerror='window.pwned = 4'>"
        return {"image": image, "labels": words, "caption": caption, "target": index % 2}


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 4, 3, stride=4)
        self.head = torch.nn.Linear(4, 2)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.head(self.conv(image).relu().mean((2, 3)))
        return found


def train_on_pictures(folder: Path, capture: str = "batch") -> Path:
    """The run directory."""
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    policy = headway.Policy(capture=capture)
    with headway.Guard(model, optimizer, run_dir=folder, policy=policy) as guard:
        for batch in guard(DataLoader(Pictures(), batch_size=8)):
            loss = torch.nn.functional.cross_entropy(model(batch["image"]), batch["target"])
            guard.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
    return folder


def pictured_run(folder: Path) -> Report:
    """The report on it."""
    return headway.diagnose(train_on_pictures(folder))
