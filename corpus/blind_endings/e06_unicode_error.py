"""A text file with one byte that is not UTF-8."""

import pathlib
import tempfile

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

folder = pathlib.Path(tempfile.mkdtemp())
for number in range(240):
    text = f"document {number}: the value is {number % 7}".encode()
    if number == 170:
        text = text.replace(b"value", b"v\xe4lue")
    (folder / f"{number:04d}.txt").write_bytes(text)


class Documents(Dataset):
    def __init__(self, root):
        self.paths = sorted(root.glob("*.txt"))

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        return self.encode(index)

    def encode(self, index):
        text = self.paths[index].read_text(encoding="utf-8")  # HERE
        features = torch.zeros(128)
        for character in text:
            features[ord(character)] += 0.1
        return features, int(text[-1])


if __name__ == "__main__":
    torch.manual_seed(0)
    model = nn.Linear(128, 7)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for x, y in DataLoader(Documents(folder), batch_size=8, num_workers=1):
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
