"""CUDA: the very first batch has a bad token, and cuBLAS is the first to notice."""

import time

import torch
from torch import nn

torch.cuda.set_per_process_memory_fraction(0.02)


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(300, 24)
        self.positions = nn.Embedding(16, 24)
        self.head = nn.Linear(24, 2)

    def forward(self, tokens):
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.words(tokens) + self.positions(places)  # HERE
        time.sleep(0.5)
        return self.head(x.mean(1))


def main():
    torch.manual_seed(0)
    model = Encoder().cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(40):
        tokens = torch.randint(0, 300, (8, 18))
        tokens = tokens.cuda()
        loss = nn.functional.cross_entropy(model(tokens), tokens[:, 0] % 2)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
