"""A training of a few seconds for the pictures: one image of the data set has a hole of NaN.

python train_pictures.py RUN_DIR
"""

import sys
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from headway import Guard

WORDS = "a hill at dawn behind two trees and the sea below it under red clouds with small boats"


class Tokenizer:
    """Words by their numbers."""

    words = tuple(WORDS.split())

    def decode(self, ids: list[int]) -> str:
        return " ".join(self.words[one] for one in ids)


class Landscapes(Dataset[dict[str, Any]]):
    """Waves of colour, each with a caption of twelve tokens."""

    def __init__(self) -> None:
        self.tokenizer = Tokenizer()

    def __len__(self) -> int:
        return 640

    def __getitem__(self, at: int) -> dict[str, Any]:
        y, x = torch.meshgrid(torch.linspace(0, 1, 48), torch.linspace(0, 1, 72), indexing="ij")
        hills = (y > 0.6 + 0.15 * torch.sin(5 * x + at)).float()
        image = torch.stack([1 - y * 0.6, 0.5 + 0.3 * y, y]) * (1 - hills) + hills * 0.25
        if at == 401:
            image[:, 12:20, 30:44] = float("nan")
        start = at % 4
        caption = torch.arange(start, start + 12)
        return {"image": image, "input_ids": caption, "label": at % 4}


class Captioned(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.look = torch.nn.Conv2d(3, 8, 5, stride=4)
        self.read = torch.nn.Embedding(20, 8)
        self.head = torch.nn.Linear(8, 4)

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        seen = self.look(batch["image"]).relu().mean((2, 3))
        found: torch.Tensor = self.head(seen + self.read(batch["input_ids"]).mean(1))
        return found


torch.manual_seed(0)
model = Captioned()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
loader = DataLoader(Landscapes(), batch_size=16)
with Guard(model, optimizer, run_dir=sys.argv[1]) as guard:
    for _ in range(2):
        for batch in guard(loader):
            loss = torch.nn.functional.cross_entropy(model(batch), batch["label"])
            guard.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
