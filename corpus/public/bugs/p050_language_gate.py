"""Let language features into visual ones through a gate that begins closed."""

import torch
from torch import nn

torch.manual_seed(0)
visual, words = torch.randn(320, 16), torch.randn(320, 16)
label = ((visual[:, :4] + words[:, :4]).sum(1) > 0).long()


class GatedFusion(nn.Module):
    def __init__(self):
        super().__init__()
        self.vision = nn.Sequential(nn.Linear(16, 32), nn.ReLU())
        self.language = nn.Sequential(nn.Linear(16, 32), nn.ReLU())
        self.gate = nn.Sequential(
            nn.Linear(32, 32, bias=False), nn.ReLU(), nn.Linear(32, 32, bias=False), nn.Tanh()
        )
        nn.init.zeros_(self.gate[0].weight)
        nn.init.zeros_(self.gate[2].weight)
        self.head = nn.Linear(32, 2)

    def forward(self, v, w):
        v = self.vision(v)
        return self.head(v + self.gate(self.language(w)))


model = GatedFusion()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for epoch in range(5):
    for rows in torch.randperm(320).split(32):
        loss = nn.functional.cross_entropy(model(visual[rows], words[rows]), label[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
