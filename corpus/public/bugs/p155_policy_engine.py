"""An engine that fine-tunes a language model in 16 bits."""

from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.data import DataLoader


@dataclass
class EngineConfig:
    dtype: torch.dtype = torch.bfloat16
    lr: float = 1e-4
    batch_size: int = 16
    vocab: int = 32
    dim: int = 64


class Policy(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.embed = nn.Embedding(config.vocab, config.dim)
        self.mix = nn.Linear(2 * config.dim, config.dim)
        self.head = nn.Linear(config.dim, config.vocab)

    def forward(self, ids):
        x = self.embed(ids)
        before = torch.cat([torch.zeros_like(x[:, :1]), x[:, :-1]], 1)
        return self.head(torch.relu(self.mix(torch.cat([x, before], -1))))


class TrainEngine:
    def __init__(self, config):
        self.config = config
        self.model = Policy(config).to(config.dtype)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=config.lr, weight_decay=0.0)

    def train_batch(self, ids):
        self.optimizer.zero_grad()
        with torch.autocast("cpu", dtype=self.config.dtype):
            logits = self.model(ids[:, :-1])
        loss = nn.functional.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        self.optimizer.step()
        return loss.item()


def main():
    torch.manual_seed(0)
    config = EngineConfig()
    start = torch.randint(config.vocab, (512, 1))
    stride = torch.randint(1, 4, (512, 1))
    rows = (start + stride * torch.arange(12)) % config.vocab
    engine = TrainEngine(config)
    for ids in DataLoader(rows, batch_size=config.batch_size, shuffle=True):
        engine.train_batch(ids)


if __name__ == "__main__":
    main()
