"""A tagger with attention, trained in sixteen bits."""

import torch
from torch import nn

torch.manual_seed(0)


class Attention(nn.Module):
    def __init__(self, dim=32, heads=4):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x, head_mask):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-2, -1) / k.shape[-1] ** 0.5
        scores = scores.masked_fill(head_mask[:, None, None] == 0, -1e10)
        return self.out((scores.softmax(-1).to(v.dtype) @ v).transpose(1, 2).flatten(2))


class Tagger(nn.Module):
    def __init__(self, words=40, dim=32, tags=5):
        super().__init__()
        self.embed = nn.Embedding(words, dim)
        self.attention, self.norm = Attention(dim), nn.LayerNorm(dim)
        self.tag = nn.Linear(dim, tags)

    def forward(self, ids, mask):
        x = self.embed(ids)
        return self.tag(self.norm(x + self.attention(x, mask)))


model = Tagger()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
for step in range(20):
    ids = torch.randint(40, (16, 10))
    mask = torch.arange(10) < torch.randint(4, 11, (16, 1))
    with torch.autocast("cpu", dtype=torch.float16):
        logits = model(ids, mask)
    loss = nn.functional.cross_entropy(logits.float()[mask], (ids % 5)[mask])
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
