"""The data set asks a server for every sample over a socket; the server stops to answer."""

import socket
import threading
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


def serve(listener, limit):
    def answer(connection):
        for count in range(limit):
            connection.recv(16)
            connection.sendall(f"{count / limit:.3f}".ljust(16).encode())
        print("hangs now", flush=True)
        time.sleep(10_000)

    while True:
        threading.Thread(target=answer, args=listener.accept()[:1], daemon=True).start()


class Remote(Dataset):
    def __init__(self, port):
        self.port, self.connection = port, None

    def __len__(self):
        return 20_000

    def __getitem__(self, number):
        if self.connection is None:
            self.connection = socket.create_connection(("127.0.0.1", self.port))
        self.connection.sendall(f"{number}".ljust(16).encode())
        return torch.tensor([float(self.connection.recv(16)), 1.0])  # HERE


def main():
    torch.manual_seed(0)
    listener = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=serve, args=(listener, 900), daemon=True).start()
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x in DataLoader(Remote(listener.getsockname()[1]), batch_size=10, num_workers=1):  # HERE
        loss = (model(x) - x[:, :1]).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.01)


if __name__ == "__main__":
    main()
