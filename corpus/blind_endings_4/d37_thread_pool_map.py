"""Images are decoded by a thread pool; the exception comes out of map()."""

from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Decoded(Dataset):
    def __init__(self, count):
        self.blobs = [bytes((k * j) % 251 for j in range(12)) for k in range(count)]
        self.blobs[190] = b""

    def __len__(self):
        return len(self.blobs)

    def __getitem__(self, index):
        blob = self.blobs[index]
        first = blob[0]  # HERE
        return torch.tensor([byte - first for byte in blob], dtype=torch.float32) / 251

    def __getitems__(self, indices):
        with ThreadPoolExecutor(4) as pool:
            return list(pool.map(self.__getitem__, indices))


def main():
    torch.manual_seed(0)
    loader = DataLoader(Decoded(240), batch_size=12)
    model = nn.Linear(12, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x in loader:
        loss = (model(x).squeeze(1) - x.mean(1)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
