"""Transformer language model built from nn.TransformerEncoder."""

import argparse
import math

import numpy as np
import torch
import torch.nn as nn


class PositionalEncoding(nn.Module):
    def __init__(self, d, max_len=64):
        super().__init__()
        pos = torch.arange(max_len).unsqueeze(1)
        div = torch.exp(torch.arange(0, d, 2) * (-math.log(10000.0) / d))
        pe = torch.zeros(max_len, d)
        pe[:, 0::2], pe[:, 1::2] = torch.sin(pos * div), torch.cos(pos * div)
        self.register_buffer("pe", pe)

    def forward(self, x):
        return x + self.pe[: x.size(1)]


class TransformerLM(nn.Module):
    def __init__(self, ntoken=12, d=64, nhead=2, nlayers=1):
        super().__init__()
        self.embedding = nn.Embedding(ntoken, d)
        self.pos = PositionalEncoding(d)
        layer = nn.TransformerEncoderLayer(d, nhead, 128, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, nlayers)
        self.decoder = nn.Linear(d, ntoken)

    def forward(self, src):
        h = self.encoder(self.pos(self.embedding(src)))
        return self.decoder(h)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    args, _ = parser.parse_known_args()
    torch.manual_seed(args.seed)
    rng = np.random.default_rng(args.seed)
    trans = rng.dirichlet(np.ones(12) * 0.8, size=12)
    seq = [0]
    for _ in range(20000):
        seq.append(int(rng.choice(12, p=trans[seq[-1]])))
    data = torch.tensor(seq)

    model = TransformerLM()
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    bptt = 12
    for step in range(220):
        ix = torch.randint(0, len(data) - bptt - 1, (64,))
        src = torch.stack([data[i : i + bptt] for i in ix])
        tgt = torch.stack([data[i + 1 : i + 1 + bptt] for i in ix])
        loss = criterion(model(src).view(-1, 12), tgt.view(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            print(f"step {step} loss {loss.item():.3f} ppl {math.exp(loss.item()):.2f}")


if __name__ == "__main__":
    main()
