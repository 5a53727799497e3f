"""Supervised contrastive learning of embeddings, one view for each sample."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)


class SupConLoss(nn.Module):
    def __init__(self, temperature=0.5):
        super().__init__()
        self.temperature = temperature

    def forward(self, features, labels):
        mask = (labels[:, None] == labels[None]).float()
        logits = features @ features.T / self.temperature
        logits = logits - logits.max(dim=1, keepdim=True).values.detach()
        others = 1 - torch.eye(len(features))
        mask = mask * others
        exp_logits = torch.exp(logits) * others
        log_prob = logits - torch.log(exp_logits.sum(1, keepdim=True))
        mask_pos_pairs = mask.sum(1)
        mean_log_prob_pos = (mask * log_prob).sum(1) / mask_pos_pairs
        return -mean_log_prob_pos.mean()


class Embedder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU())
        self.head = nn.Linear(32, 16)

    def forward(self, x):
        return F.normalize(self.head(self.encoder(x)), dim=1)


centres = torch.randn(20, 16)
labels = torch.randint(20, (640,))
data = TensorDataset(centres[labels] + 0.7 * torch.randn(640, 16), labels)
model, criterion = Embedder(), SupConLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for epoch in range(2):
    for x, y in DataLoader(data, batch_size=32, shuffle=True):
        loss = criterion(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
