"""A pool of processes augments while the loop trains; it is closed and joined, one job failed
and was dropped."""

import multiprocessing

import torch
from torch import nn


def augment(number):
    if number == 37:
        raise ValueError("number 37 is not for us")
    return [(number * k) % 17 / 17 for k in range(1, 7)]


def main():
    torch.manual_seed(0)
    model = nn.Linear(6, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    dropped = 0
    with multiprocessing.get_context("fork").Pool(2) as pool:
        jobs = [pool.apply_async(augment, (number,)) for number in range(480)]
        rows = []
        for job in jobs:
            try:
                rows.append(job.get(timeout=30))
            except ValueError:
                dropped += 1
            if len(rows) == 8:
                x, rows = torch.tensor(rows), []
                loss = nn.functional.mse_loss(model(x), x.mean(1, keepdim=True))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        pool.close()
        pool.join()
    print("dropped", dropped)


if __name__ == "__main__":
    main()
