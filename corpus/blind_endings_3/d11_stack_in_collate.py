"""A collate function stacks the labels of a detection set: not all images have three boxes."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Boxes(Dataset):
    def __len__(self):
        return 320

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        image = torch.randn(16, generator=generator)
        count = 2 if index == 217 else 3
        boxes = image[: count * 4].reshape(count, 4)
        return {"image": image, "boxes": boxes}


def collate(samples):
    images = torch.stack([sample["image"] for sample in samples])
    boxes = torch.stack([sample["boxes"] for sample in samples])  # HERE
    return images, boxes


def main():
    torch.manual_seed(0)
    loader = DataLoader(Boxes(), batch_size=16, num_workers=2, collate_fn=collate, drop_last=True)
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 12))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _epoch in range(2):
        for images, boxes in loader:
            predicted = model(images).view(-1, 3, 4)
            loss = nn.functional.smooth_l1_loss(predicted, boxes)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


if __name__ == "__main__":
    main()
