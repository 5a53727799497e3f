"""As much of torchvision as tutorials on MNIST use, where torchvision is not installed.

It reads the files that torchvision itself would read: `ROOT/MNIST/raw/*-ubyte`.
"""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import torch

__path__: list[str] = []  # so that `import torchvision.transforms` finds what is registered below


class MNIST(torch.utils.data.Dataset[Any]):
    def __init__(
        self, root: str, train: bool = True, transform: Any = None, download: bool = False
    ) -> None:
        start = "train" if train else "t10k"
        raw = Path(root) / "MNIST" / "raw"
        pixels = np.fromfile(raw / f"{start}-images-idx3-ubyte", dtype=np.uint8)[16:]
        labels = np.fromfile(raw / f"{start}-labels-idx1-ubyte", dtype=np.uint8)[8:]
        self.data = torch.from_numpy(pixels.reshape(-1, 28, 28).copy())
        self.targets = torch.from_numpy(labels.astype(np.int64))
        self.transform = transform

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        picture: Any = self.data[index].numpy()
        return (self.transform(picture) if self.transform else picture), int(self.targets[index])


class Compose:
    def __init__(self, transforms: list[Any]) -> None:
        self.transforms = transforms

    def __call__(self, picture: Any) -> Any:
        for transform in self.transforms:
            picture = transform(picture)
        return picture


class ToTensor:
    def __call__(self, picture: Any) -> torch.Tensor:
        return torch.from_numpy(picture).unsqueeze(0).float() / 255


class Normalize:
    def __init__(self, mean: Any, std: Any) -> None:
        self.mean = torch.tensor(mean).view(-1, 1, 1)
        self.std = torch.tensor(std).view(-1, 1, 1)

    def __call__(self, picture: torch.Tensor) -> torch.Tensor:
        return (picture - self.mean) / self.std


def save_image(*args: object, **kwargs: object) -> None:
    """Pictures are not looked at."""


for _name, _contents in {
    "datasets": {"MNIST": MNIST},
    "transforms": {"Compose": Compose, "ToTensor": ToTensor, "Normalize": Normalize},
    "utils": {"save_image": save_image},
}.items():
    _module = types.ModuleType(f"torchvision.{_name}")
    _module.__dict__.update(_contents)
    sys.modules[_module.__name__] = globals()[_name] = _module
