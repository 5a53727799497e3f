"""After each epoch all pairs are compared in numpy; the matrix of the large set does not fit."""

import numpy as np
import torch
from torch import nn


def pair_distances(embeddings, repeat):
    large = np.repeat(embeddings, repeat, axis=0)
    return np.empty((large.shape[0], large.shape[0]), dtype=np.float64)  # HERE


class Experiment:
    def __init__(self):
        torch.manual_seed(0)
        self.x = torch.randn(400, 10)
        self.net = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 4))
        self.opt = torch.optim.Adam(self.net.parameters(), lr=1e-3)

    def one_epoch(self):
        for batch in self.x.split(20):
            out = self.net(batch)
            loss = (out.sum(1) - batch.sum(1)).abs().mean()
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()

    def analyse(self, epoch):
        with torch.no_grad():
            points = self.net(self.x).numpy()
        return pair_distances(points, 10 ** (epoch + 1)).shape

    def run(self):
        for epoch in range(5):
            self.one_epoch()
            print("pairs", self.analyse(epoch))


if __name__ == "__main__":
    Experiment().run()
