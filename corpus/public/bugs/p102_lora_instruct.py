"""Instruction tuning of low-rank adapters with a small trainer class."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Instructions(Dataset):
    def __init__(self, size=192, length=12, vocab=24):
        torch.manual_seed(3)
        start = torch.randint(vocab, (size, 1))
        stride = torch.randint(1, 4, (size, 1))
        self.rows = (start + stride * torch.arange(length)) % vocab

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return {"input_ids": self.rows[index], "labels": self.rows[index]}


class LoRALinear(nn.Module):
    def __init__(self, base, rank=4):
        super().__init__()
        self.base = base
        for p in base.parameters():
            p.requires_grad = False
        self.down = nn.Parameter(torch.randn(rank, base.in_features) / base.in_features**0.5)
        self.up = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x):
        return self.base(x) + x @ self.down.T @ self.up.T


class TinyCausal(nn.Module):
    def __init__(self, vocab=24, dim=32):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.rnn = nn.GRU(dim, dim, batch_first=True)
        self.head = nn.Linear(dim, vocab)

    def forward(self, input_ids, labels=None):
        logits = self.head(self.rnn(self.embed(input_ids))[0])
        loss = nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        return {"loss": loss, "logits": logits}


class Trainer:
    def __init__(self, model, args):
        self.model, self.args = model, args
        trainable = [p for p in model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(trainable, lr=args.lr)
        self.loader = DataLoader(Instructions(), batch_size=args.batch_size, shuffle=True)

    def training_step(self, batch):
        outputs = self.model(**batch)
        outputs["loss"].backward()
        self.optimizer.step()
        return outputs["loss"].item()

    def train(self):
        self.model.train()
        for epoch in range(self.args.epochs):
            total = sum(self.training_step(batch) for batch in self.loader)
            print(f"epoch {epoch} loss {total / len(self.loader):.4f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=5e-3)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=3)
    args, _ = parser.parse_known_args()
    torch.manual_seed(0)
    net = TinyCausal()
    net.head = LoRALinear(net.head)
    for p in net.embed.parameters():
        p.requires_grad = False
    Trainer(net, args).train()
