"""Loop: batches are dicts, for in a function, losses collected by name.

Fault: CTC with targets that do not fit into the frames, in the forward pass; ops: ctc_loss.
"""

from collections import defaultdict

import torch
import torch.nn.functional as F
from torch import nn


def batches():
    generator = torch.Generator().manual_seed(5)
    for number in range(6):
        length = torch.full((4,), 5)
        target = torch.stack([torch.randperm(8, generator=generator)[:5] + 1 for _ in range(4)])
        if number == 4:
            target[2] = 7
        yield {
            "sound": torch.randn(4, 8, 6, generator=generator),
            "target": target,
            "length": length,
        }


class Speech(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(6, 12, batch_first=True)
        self.head = nn.Linear(12, 9)

    def forward(self, sound):
        return self.head(self.rnn(sound)[0]).log_softmax(dim=-1)


def losses_of(model, batch):
    chances = model(batch["sound"]).transpose(0, 1)
    frames = torch.full((4,), len(chances))
    ctc = F.ctc_loss(chances, batch["target"], frames, batch["length"])  # <- origin
    return {"ctc": ctc, "entropy": 0.01 * (chances.exp() * chances).sum(dim=-1).mean()}


torch.manual_seed(416)
model = Speech()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
history = defaultdict(list)
for batch in batches():
    losses = losses_of(model, batch)
    optimizer.zero_grad()
    sum(losses.values()).backward()
    optimizer.step()
    for name, value in losses.items():
        history[name].append(value.item())
