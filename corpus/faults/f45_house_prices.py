"""Predict house prices from size, rooms, age and place."""

import argparse
import random
from collections import namedtuple

import numpy as np
import torch
from torch import nn

Houses = namedtuple("Houses", "features price")


def make_houses(n):
    size = np.random.gamma(9.0, 14.0, n)
    rooms = np.clip(np.round(size / 28 + np.random.randn(n)), 1, 9)
    age = np.random.uniform(0, 90, n)
    distance = np.random.exponential(6.0, n)
    price = 2600 * size + 9000 * rooms - 900 * age - 4000 * distance + 60000
    price = price + 15000 * np.random.randn(n)
    table = np.stack([size, rooms, age, distance], axis=1)
    table = (table - table.mean(0)) / table.std(0)
    return Houses(
        torch.tensor(table, dtype=torch.float32),
        torch.tensor(price, dtype=torch.float32).unsqueeze(1),
    )


def make_model():
    return nn.Sequential(
        nn.Linear(4, 64),
        nn.ReLU(),
        nn.Linear(64, 32),
        nn.ReLU(),
        nn.Linear(32, 1),
    )


def iterate(houses, batch_size):
    order = torch.randperm(len(houses.price))
    for start in range(0, len(order), batch_size):
        rows = order[start : start + batch_size]
        yield houses.features[rows], houses.price[rows]


def train(model, houses, epochs=8, batch_size=64):
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loss_fn = nn.MSELoss()
    for epoch in range(1, epochs + 1):
        squared = []
        for features, price in iterate(houses, batch_size):
            optimizer.zero_grad()
            loss = loss_fn(model(features), price)
            loss.backward()
            optimizer.step()
            squared.append(loss.item())
        print(f"epoch {epoch}: rmse {np.mean(squared) ** 0.5:,.0f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_known_args()[0]
    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)
    train(make_model(), make_houses(1280))
