"""Distillation with gradient accumulation, configured by a dictionary."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

config = {"per_device_batch_size": 8, "gradient_accumulation_steps": 8, "temperature": 2.0}
torch.manual_seed(0)
x = torch.randn(512, 14)
y = (x @ torch.randn(14, 5)).argmax(1)
teacher = nn.Sequential(nn.Linear(14, 96), nn.ReLU(), nn.Linear(96, 5)).eval()
student = nn.Sequential(nn.Linear(14, 24), nn.ReLU(), nn.Linear(24, 5))
loader = DataLoader(TensorDataset(x, y), config["per_device_batch_size"], shuffle=True)
optimizer = torch.optim.SGD(student.parameters(), lr=0.05)


def distillation_loss(student_logits, teacher_logits, labels, t):
    soft = nn.functional.kl_div(
        torch.log_softmax(student_logits / t, -1),
        torch.softmax(teacher_logits / t, -1),
        reduction="batchmean",
    )
    return 0.5 * t * t * soft + 0.5 * nn.functional.cross_entropy(student_logits, labels)


for epoch in range(3):
    optimizer.zero_grad()
    for step, (inputs, labels) in enumerate(loader):
        with torch.no_grad():
            teacher_logits = teacher(inputs)
        loss = distillation_loss(student(inputs), teacher_logits, labels, config["temperature"])
        loss.backward()
        if (step + 1) % config["gradient_accumulation_steps"] == 0:
            optimizer.step()
            optimizer.zero_grad()
