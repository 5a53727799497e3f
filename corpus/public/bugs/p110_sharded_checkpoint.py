"""Continuing a pretraining from weights on disk, through a checkpoint manager."""

import os
import tempfile

import torch
from torch import nn

torch.manual_seed(0)
vocab = 16


class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.up = nn.Linear(dim, 2 * dim)
        self.down = nn.Linear(2 * dim, dim)

    def reset_parameters(self):
        for layer in (self.up, self.down):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Bigram(nn.Module):
    def __init__(self, dim=32, depth=2):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.blocks = nn.ModuleList(Block(dim) for _ in range(depth))
        self.head = nn.Linear(dim, vocab)

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def init_model_parameters(model):
    for block in model.blocks:
        block.reset_parameters()


class CheckpointManager:
    def load(self, model, path):
        model.load_state_dict(torch.load(path))
        init_model_parameters(model)
        return model


def train(model, steps, seed):
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(steps):
        ids = torch.randint(vocab, (64,), generator=generator)
        loss = nn.functional.cross_entropy(model(ids), (ids * 5 + 3) % vocab)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


path = os.path.join(tempfile.mkdtemp(), "weights.pth")
before = Bigram()
train(before, 12, seed=1)
torch.save(before.state_dict(), path)
model = CheckpointManager().load(Bigram(), path)
print(train(model, 20, seed=2))
