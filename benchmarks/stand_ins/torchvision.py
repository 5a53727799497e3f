"""The part of torchvision that small public scripts use, where torchvision is not installed.

It reads the files that torchvision itself would read: `ROOT/MNIST/raw/*-ubyte` and
`ROOT/cifar-10-batches-py`. Pictures are arrays where torchvision has those of PIL.
"""

from __future__ import annotations

import pickle
import random
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import torch

__path__: list[str] = []  # so that `import torchvision.transforms` finds what is registered below


class MNIST(torch.utils.data.Dataset[Any]):
    def __init__(
        self,
        root: str,
        train: bool = True,
        transform: Any = None,
        target_transform: Any = None,
        download: bool = False,
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


class CIFAR10(torch.utils.data.Dataset[Any]):
    classes = tuple(f"class{number}" for number in range(10))

    def __init__(
        self, root: str, train: bool = True, transform: Any = None, download: bool = False
    ) -> None:
        names = [f"data_batch_{number}" for number in range(1, 6)] if train else ["test_batch"]
        place = Path(root) / "cifar-10-batches-py"
        held = [pickle.loads((place / name).read_bytes()) for name in names]
        pixels = np.concatenate([one[b"data"] for one in held]).reshape(-1, 3, 32, 32)
        self.data = pixels.transpose(0, 2, 3, 1).copy()
        self.targets = [label for one in held for label in one[b"labels"]]
        self.transform = transform

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        picture: Any = self.data[index]
        return (self.transform(picture) if self.transform else picture), self.targets[index]


class Compose:
    def __init__(self, transforms: list[Any]) -> None:
        self.transforms = transforms

    def __call__(self, picture: Any) -> Any:
        for transform in self.transforms:
            picture = transform(picture)
        return picture


class ToTensor:
    def __call__(self, picture: Any) -> torch.Tensor:
        pixels = torch.from_numpy(np.ascontiguousarray(picture))
        pixels = pixels.unsqueeze(0) if pixels.ndim == 2 else pixels.permute(2, 0, 1)
        return pixels.float() / 255


class Resize:
    """By the nearest pixel."""

    def __init__(self, size: Any, **kwargs: object) -> None:
        self.size = size if isinstance(size, (tuple, list)) else (size, size)

    def __call__(self, picture: Any) -> Any:
        rows, columns = (
            np.arange(new) * old // new for new, old in zip(self.size, picture.shape, strict=False)
        )
        return picture[rows][:, columns]


class Pad:
    def __init__(self, padding: int) -> None:
        self.padding = padding

    def __call__(self, picture: Any) -> Any:
        around = [(self.padding, self.padding)] * 2 + [(0, 0)] * (picture.ndim - 2)
        return np.pad(picture, around)


class RandomCrop:
    def __init__(self, size: Any, padding: int = 0) -> None:
        self.size = size if isinstance(size, int) else size[0]
        self.pad = Pad(padding)

    def __call__(self, picture: Any) -> Any:
        picture = self.pad(picture)
        row, column = (random.randint(0, side - self.size) for side in picture.shape[:2])
        return picture[row : row + self.size, column : column + self.size]


class RandomHorizontalFlip:
    def __call__(self, picture: Any) -> Any:
        return picture[:, ::-1] if random.random() < 0.5 else picture


class Lambda:
    def __init__(self, function: Any) -> None:
        self.function = function

    def __call__(self, picture: Any) -> Any:
        return self.function(picture)


class Normalize:
    def __init__(self, mean: Any, std: Any) -> None:
        self.mean = torch.tensor(mean).view(-1, 1, 1)
        self.std = torch.tensor(std).view(-1, 1, 1)

    def __call__(self, picture: torch.Tensor) -> torch.Tensor:
        return (picture - self.mean) / self.std


def make_grid(pictures: torch.Tensor, *args: object, **kwargs: object) -> torch.Tensor:
    return pictures[0]


def save_image(*args: object, **kwargs: object) -> None:
    """Pictures are not looked at."""


for _name, _contents in {
    "datasets": {"MNIST": MNIST, "CIFAR10": CIFAR10},
    "transforms": {
        kind.__name__: kind
        for kind in (
            Compose,
            ToTensor,
            Lambda,
            Normalize,
            Resize,
            Pad,
            RandomCrop,
            RandomHorizontalFlip,
        )
    },
    "transforms.functional": {},
    "utils": {"save_image": save_image, "make_grid": make_grid},
}.items():
    _module = types.ModuleType(f"torchvision.{_name}")
    _module.__dict__.update(_contents, __path__=[])
    sys.modules[_module.__name__] = globals()[_name] = _module
