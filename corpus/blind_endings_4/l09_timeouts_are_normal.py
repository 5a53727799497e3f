"""Records come from a slow thread; waiting ends in a timeout now and then, which is caught."""

import time
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout

import torch
from torch import nn


def fetch(number):
    time.sleep(0.3 if number % 15 == 0 else 0.005)
    return torch.full((16, 6), number / 100)


def main():
    torch.manual_seed(0)
    model = nn.Linear(6, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    late = 0
    with ThreadPoolExecutor(2) as pool:
        for number in range(100):
            future = pool.submit(fetch, number)
            while True:
                try:
                    x = future.result(timeout=0.1)
                    break
                except FutureTimeout:
                    late += 1
            loss = (model(x).squeeze(1) - x.sum(1)).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    print("late", late)


if __name__ == "__main__":
    main()
