"""Loop: for over map(prepare, loader).

Fault: cross entropy of a batch whose labels are all ignored, in the forward pass; ops: nll_loss.
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

IGNORE = -100
torch.manual_seed(424)
tokens = torch.randint(0, 20, (32, 6))
labels = torch.where(torch.rand(32, 6) < 0.4, tokens, torch.full_like(tokens, IGNORE))
labels[:, 0] = tokens[:, 0]
labels[12:16] = IGNORE
embed = nn.Embedding(20, 12)
head = nn.Linear(12, 20)
optimizer = torch.optim.AdamW([*embed.parameters(), *head.parameters()], lr=1e-3)


def prepare(batch):
    return {"tokens": batch[0], "labels": batch[1]}


for batch in map(prepare, DataLoader(TensorDataset(tokens, labels), batch_size=4)):
    logits = head(embed(batch["tokens"]).relu())
    loss = nn.functional.cross_entropy(  # <- origin
        logits.flatten(0, 1), batch["labels"].flatten(), ignore_index=IGNORE
    )
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
