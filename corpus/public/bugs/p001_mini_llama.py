"""A first character model on the way to a small llama."""

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)
CONFIG = {"vocab": 16, "d_model": 64, "batch": 16, "context": 12}
# Each character depends on the one before it, with a little chance.
table = torch.softmax(3 * torch.randn(CONFIG["vocab"], CONFIG["vocab"]), -1)
corpus = [0]
for _ in range(4000):
    corpus.append(int(torch.multinomial(table[corpus[-1]], 1)))
corpus = torch.tensor(corpus)


def get_batch():
    at = torch.randint(len(corpus) - CONFIG["context"] - 1, (CONFIG["batch"],))
    x = torch.stack([corpus[i : i + CONFIG["context"]] for i in at])
    y = torch.stack([corpus[i + 1 : i + CONFIG["context"] + 1] for i in at])
    return x, y


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(CONFIG["vocab"], CONFIG["d_model"])
        self.linear = nn.Sequential(
            nn.Linear(CONFIG["d_model"], CONFIG["d_model"]),
            nn.ReLU(),
            nn.Linear(CONFIG["d_model"], CONFIG["vocab"]),
        )

    def forward(self, idx, targets=None):
        x = self.embedding(idx)
        logits = F.softmax(self.linear(x), dim=-1)
        if targets is None:
            return logits
        loss = F.cross_entropy(logits.view(-1, CONFIG["vocab"]), targets.view(-1))
        return logits, loss


model = Model()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for epoch in range(60):
    xs, ys = get_batch()
    optimizer.zero_grad()
    _, loss = model(xs, ys)
    loss.backward()
    optimizer.step()
