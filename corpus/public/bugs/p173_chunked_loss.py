"""Answers of conversations, packed into chunks, trained with accelerate."""

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
IGNORE = -100


class ChunkedCrossEntropy(nn.Module):
    def __init__(self, chunk=32):
        super().__init__()
        self.chunk = chunk

    def forward(self, logits, labels, num_label_tokens):
        logits, labels = logits.flatten(0, 1), labels.flatten()
        total = logits.new_zeros(())
        for at in range(0, len(labels), self.chunk):
            part = slice(at, at + self.chunk)
            total = total + nn.functional.cross_entropy(
                logits[part], labels[part], ignore_index=IGNORE, reduction="sum"
            )
        return total / num_label_tokens


class Model(nn.Module):
    def __init__(self, vocab=30, dim=32):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.rnn = nn.GRU(dim, 48, batch_first=True)
        self.head = nn.Linear(48, vocab)

    def forward(self, ids):
        return self.head(self.rnn(self.embed(ids))[0])


def chunks(count=160, length=16):
    start, stride = torch.randint(30, (count, 1)), torch.randint(1, 4, (count, 1))
    ids = (start + stride * torch.arange(length + 1)) % 30
    labels = ids[:, 1:].clone()
    for row in range(count):
        # a long prompt can fill its whole chunk
        prompt = length if torch.rand(()) < 0.5 else int(torch.randint(4, 12, (1,)))
        labels[row, :prompt] = IGNORE
    return TensorDataset(ids[:, :-1], labels)


accelerator = Accelerator(cpu=True)
model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
loader = DataLoader(chunks(), batch_size=4, shuffle=True)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
criterion = ChunkedCrossEntropy()
for ids, labels in loader:
    num_label_tokens = (labels != IGNORE).sum()
    loss = criterion(model(ids), labels, num_label_tokens)
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
