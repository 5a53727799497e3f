"""A window data set announces more windows than its series holds; a worker reads past the end."""

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Windows(Dataset):
    def __init__(self, series, width):
        self.series, self.width = series, width
        self.starts = list(range(len(series) - width))

    def __len__(self):
        return len(self.series) - self.width + 4

    def __getitem__(self, item):
        start = self.starts[item]  # HERE
        window = self.series[start : start + self.width + 1]
        return torch.from_numpy(window[:-1]), torch.from_numpy(window[-1:])


def main():
    torch.manual_seed(0)
    series = np.sin(np.arange(620) / 9).astype(np.float32)
    loader = DataLoader(Windows(series, 20), batch_size=20, num_workers=2)
    model = nn.Sequential(nn.Linear(20, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = torch.optim.NAdam(model.parameters(), lr=2e-3)
    for window, target in loader:
        loss = nn.functional.smooth_l1_loss(model(window), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
