"""Adapters in a frozen language model; activations are recomputed to save memory."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader

torch.manual_seed(0)
VOCAB, LENGTH, DIM = 40, 16, 32


class AdapterLinear(nn.Linear):
    def __init__(self, inputs, outputs, rank=4):
        super().__init__(inputs, outputs)
        self.weight.requires_grad_(False)
        self.bias.requires_grad_(False)
        self.lora_A = nn.Parameter(torch.randn(rank, inputs) * 0.1)
        self.lora_B = nn.Parameter(torch.zeros(outputs, rank))

    def forward(self, x):
        return super().forward(x) + x @ self.lora_A.T @ self.lora_B.T


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.qkv, self.out = AdapterLinear(DIM, 3 * DIM), AdapterLinear(DIM, DIM)
        self.up, self.down = AdapterLinear(DIM, 2 * DIM), AdapterLinear(2 * DIM, DIM)
        for norm in (self.norm1, self.norm2):
            norm.requires_grad_(False)

    def forward(self, x):
        q, k, v = self.qkv(self.norm1(x)).chunk(3, dim=-1)
        x = x + self.out(nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True))
        return x + self.down(torch.relu(self.up(self.norm2(x))))


class Model(nn.Module):
    def __init__(self, gradient_checkpointing=True):
        super().__init__()
        self.gradient_checkpointing = gradient_checkpointing
        self.tokens = nn.Embedding(VOCAB, DIM).requires_grad_(False)
        self.places = nn.Embedding(LENGTH, DIM).requires_grad_(False)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.lm_head = AdapterLinear(DIM, VOCAB)

    def forward(self, ids):
        x = self.tokens(ids) + self.places.weight[: ids.shape[1]]
        for block in self.blocks:
            if self.gradient_checkpointing:
                x = checkpoint(block, x, use_reentrant=True)
            else:
                x = block(x)
        return self.lm_head(x)


start, stride = torch.randint(VOCAB, (256, 1)), torch.randint(1, 4, (256, 1))
texts = (start + stride * torch.arange(LENGTH + 1)) % VOCAB
loader = DataLoader(texts, batch_size=16, shuffle=True)
model = Model()
trainable = [p for p in model.parameters() if p.requires_grad]
optimizer = torch.optim.AdamW(trainable, lr=5e-3)
model.train()
for epoch in range(2):
    for ids in loader:
        logits = model(ids[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
