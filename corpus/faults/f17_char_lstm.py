"""Next-character LSTM with gradient accumulation to reach the batch size of the paper."""

import argparse
import random
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn


@dataclass
class Config:
    seq_len: int = 24
    micro_batch: int = 8
    accumulation_steps: int = 8
    updates: int = 60
    lr: float = 0.3
    hidden: int = 48


WORDS = ["sea", "ship", "storm", "sail", "rope", "anchor", "wind", "deck", "mast", "harbour"]


def make_text(n_words: int) -> str:
    return " ".join(random.choice(WORDS) for _ in range(n_words))


class CharLSTM(nn.Module):
    def __init__(self, vocab: int, hidden: int):
        super().__init__()
        self.embed = nn.Embedding(vocab, hidden)
        self.lstm = nn.LSTM(hidden, hidden, batch_first=True)
        self.out = nn.Linear(hidden, vocab)
        self.criterion = nn.CrossEntropyLoss()

    def forward(self, tokens, targets):
        hidden, _ = self.lstm(self.embed(tokens))
        logits = self.out(hidden)
        return self.criterion(logits.flatten(0, 1), targets.flatten())


def batches(data, cfg):
    while True:
        starts = torch.randint(0, len(data) - cfg.seq_len - 1, (cfg.micro_batch,))
        rows = torch.stack([data[s : s + cfg.seq_len + 1] for s in starts.tolist()])
        yield rows[:, :-1], rows[:, 1:]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    args, _ = parser.parse_known_args()
    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)

    cfg = Config()
    text = make_text(3000)
    chars = sorted(set(text))
    data = torch.tensor([chars.index(c) for c in text])
    model = CharLSTM(len(chars), cfg.hidden)
    optimizer = torch.optim.SGD(model.parameters(), lr=cfg.lr)

    stream = batches(data, cfg)
    optimizer.zero_grad()
    for update in range(cfg.updates):
        running = 0.0
        for _ in range(cfg.accumulation_steps):
            tokens, targets = next(stream)
            loss = model(tokens, targets)
            loss.backward()
            running += loss.item() / cfg.accumulation_steps
        optimizer.step()
        optimizer.zero_grad()
        if update % 5 == 0:
            print(f"update {update:3d} loss {running:.4f}")


if __name__ == "__main__":
    main()
