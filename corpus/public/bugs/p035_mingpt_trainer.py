"""A trainer class with mixed precision and gradient clipping."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
tokens = torch.randint(0, 12, (400, 1)) + torch.arange(9)
tokens = tokens % 12


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(12, 32), nn.Embedding(8, 32)
        self.block = nn.TransformerEncoderLayer(32, 2, 64, dropout=0.0, batch_first=True)
        self.head = nn.Linear(32, 12)

    def forward(self, idx, targets):
        mask = nn.Transformer.generate_square_subsequent_mask(idx.shape[1])
        h = self.block(self.wte(idx) + self.wpe(torch.arange(idx.shape[1])), src_mask=mask)
        logits = self.head(h)
        return logits, nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


class Trainer:
    def __init__(self, model, data, grad_norm_clip=1.0):
        self.model = model
        self.grad_norm_clip = grad_norm_clip
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        self.loader = DataLoader(data, batch_size=20, shuffle=True)

    def train(self, epochs):
        for epoch in range(epochs):
            for x, y in self.loader:
                with torch.amp.autocast("cpu", dtype=torch.bfloat16):
                    _, loss = self.model(x, y)
                self.optimizer.zero_grad(set_to_none=True)
                self.scaler.scale(loss).backward()
                torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.grad_norm_clip)
                self.scaler.step(self.optimizer)
                self.scaler.update()


Trainer(GPT(), TensorDataset(tokens[:, :-1], tokens[:, 1:])).train(3)
