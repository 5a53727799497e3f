"""Fine-tune a small network on ants and bees."""

import torch
from torch import nn, optim
from torch.optim import lr_scheduler

torch.manual_seed(0)
data = torch.randn(320, 24)
target = (data[:, :6].sum(1) > 0).long()
datasets = {"train": torch.arange(256), "val": torch.arange(256, 320)}


def train_model(model, criterion, optimizer, scheduler, num_epochs):
    for epoch in range(num_epochs):
        for phase in ["train", "val"]:
            model.train(phase == "train")
            rows = datasets[phase]
            running = 0.0
            for at in rows[torch.randperm(len(rows))].split(32):
                optimizer.zero_grad()
                with torch.set_grad_enabled(phase == "train"):
                    loss = criterion(model(data[at]), target[at])
                if phase == "train":
                    loss.backward()
                    optimizer.step()
                    scheduler.step()
                running += loss.item() * len(at)
            epoch_loss = running / len(rows)
            print(f"{epoch} {phase} loss {epoch_loss:.4f}")


net = nn.Sequential(nn.Linear(24, 32), nn.ReLU(), nn.Linear(32, 2))
sgd = optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
step_lr = lr_scheduler.StepLR(sgd, step_size=7, gamma=0.1)
train_model(net, nn.CrossEntropyLoss(), sgd, step_lr, num_epochs=10)
