"""A recurrent autoencoder of animal motion, with a scheduler that can be switched off."""

import torch
from torch import nn

torch.manual_seed(0)


class MotionVAE(nn.Module):
    def __init__(self, joints=6, latent=8):
        super().__init__()
        self.encoder = nn.GRU(joints, 32, batch_first=True)
        self.to_latent = nn.Linear(32, latent)
        self.expand = nn.Linear(latent, 32)
        self.decoder = nn.GRU(32, joints * 2, batch_first=True)
        self.out = nn.Linear(joints * 2, joints)

    def forward(self, x):
        _, h = self.encoder(x)
        z = self.expand(self.to_latent(h[-1]))
        return self.out(self.decoder(z.unsqueeze(1).expand(-1, x.shape[1], -1))[0])


def motion(count=32):
    t = torch.linspace(0, 4, 16).view(1, -1, 1)
    speed, shift = 1 + torch.rand(count, 1, 1), torch.rand(count, 1, 6) * 6.28
    return torch.sin(t * speed + shift)


config = {"optimizer_scheduler": False, "scheduler_step_size": 3, "max_epochs": 9}
model = MotionVAE()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
step_size = config["scheduler_step_size"]
if config["optimizer_scheduler"]:
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=step_size, gamma=0.2)
else:
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=step_size, gamma=0)

for epoch in range(config["max_epochs"]):
    for _ in range(8):
        x = motion()
        loss = nn.functional.mse_loss(model(x), x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    scheduler.step()
    print(epoch, loss.item())
