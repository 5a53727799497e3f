"""Which of four lanes exist in a picture: multi-label head on convolution features."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
pictures = torch.randn(320, 3, 8, 8)
quarters = pictures.mean(1).reshape(320, 4, 16).mean(2)
lanes = (quarters > 0).float()


class ExistHead(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc9 = nn.Linear(8 * 64, 64)
        self.fc10 = nn.Linear(64, 4)

    def forward(self, x):
        x = torch.relu(self.fc9(x.flatten(1)))
        return torch.sigmoid(self.fc10(x))


class LaneNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU())
        self.head = ExistHead()
        self.exist_loss = nn.BCEWithLogitsLoss()

    def forward(self, image, exist):
        features = self.backbone(image)
        loss = self.exist_loss(self.head(features), exist)
        return {"loss": loss, "features": features}


model = LaneNet()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
loader = DataLoader(TensorDataset(pictures, lanes), batch_size=32, shuffle=True)
for epoch in range(5):
    for image, exist in loader:
        optimizer.zero_grad()
        model(image, exist)["loss"].backward()
        optimizer.step()
