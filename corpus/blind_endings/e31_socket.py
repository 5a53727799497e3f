"""A metrics service does not answer, and the client has no timeout."""

import socket
import time

import torch
from torch import nn

server = socket.create_server(("127.0.0.1", 0))


def report(value):
    with socket.create_connection(server.getsockname()) as client:
        client.sendall(f"{value}\n".encode())
        print("hangs now", flush=True)
        return client.recv(16)  # HERE


torch.manual_seed(0)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(400):
    x = torch.randn(16, 8)
    loss = (model(x) - x.mean(1, keepdim=True)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.01)
    if step == 200:
        report(loss.item())
