"""A surrogate of a flow solver, trained on two ranks."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler  # noqa: F401


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    fields = torch.randn(400, 16)
    answers = torch.tanh(fields @ torch.randn(16, 6) / 3)
    data = TensorDataset(fields, answers)
    loader = DataLoader(data, batch_size=20, shuffle=True)
    net = nn.Sequential(nn.Linear(16, 48), nn.GELU(), nn.Linear(48, 6))
    model = DistributedDataParallel(net)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(2):
        for field, answer in loader:
            loss = nn.functional.mse_loss(model(field), answer)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    dist.destroy_process_group()


main()
