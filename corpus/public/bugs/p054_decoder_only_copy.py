"""A decoder-only language model that computes its own loss from labels."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

torch.manual_seed(0)
step = torch.randint(1, 4, (480, 1))
texts = (torch.randint(0, 18, (480, 1)) + step * torch.arange(10)) % 18


class ForCausalLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(18, 32)
        self.place = nn.Embedding(10, 32)
        self.layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        self.lm_head = nn.Linear(32, 18)

    def forward(self, input_ids, labels):
        length = input_ids.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        h = self.embed(input_ids) + self.place(torch.arange(length))
        logits = self.lm_head(self.layer(h, src_mask=mask))
        loss = F.cross_entropy(logits.view(-1, 18), labels.view(-1))
        return loss, logits


model = ForCausalLM()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
for epoch in range(4):
    for ids in DataLoader(texts, batch_size=32, shuffle=True):
        loss, _ = model(input_ids=ids, labels=ids)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
