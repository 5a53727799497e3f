"""Sequence-to-sequence GRU that reverses short strings."""

import argparse
import random

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

PAD, SOS, EOS = 0, 1, 2
VOCAB, MAX_LEN = 20, 40


class Reverse(Dataset):
    def __init__(self, n):
        self.items = []
        for _ in range(n):
            s = [random.randint(3, VOCAB - 1) for _ in range(random.randint(2, 6))]
            self.items.append((self.pad(s), self.pad(s[::-1] + [EOS])))

    @staticmethod
    def pad(seq):
        return torch.tensor(seq + [PAD] * (MAX_LEN - len(seq)))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


class Seq2Seq(nn.Module):
    def __init__(self, d=32):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, d, padding_idx=PAD)
        self.encoder = nn.GRU(d, d, batch_first=True)
        self.decoder = nn.GRU(d, d, batch_first=True)
        self.out = nn.Linear(d, VOCAB)

    def forward(self, src, tgt):
        _, h = self.encoder(self.emb(src))
        sos = torch.full_like(tgt[:, :1], SOS)
        dec, _ = self.decoder(self.emb(torch.cat([sos, tgt[:, :-1]], 1)), h)
        return self.out(dec)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    args, _ = parser.parse_known_args()
    random.seed(args.seed)
    torch.manual_seed(args.seed)
    loader = DataLoader(Reverse(1000), batch_size=25, shuffle=True)
    model = Seq2Seq()
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for epoch in range(3):
        for i, (src, tgt) in enumerate(loader):
            logits = model(src, tgt)
            loss = criterion(logits.reshape(-1, VOCAB), tgt.reshape(-1))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if i % 10 == 0:
                real = tgt != PAD
                acc = (logits.argmax(-1)[real] == tgt[real]).float().mean()
                print(f"epoch {epoch} it {i} loss {loss.item():.4f} token acc {acc:.3f}")


if __name__ == "__main__":
    main()
