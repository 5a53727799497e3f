"""Loaders and batches of every kind; who the guilty sample is."""

from __future__ import annotations

import math
from collections import namedtuple
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from explain.heldout import our_losses
from explain.heldout.expected import expect
from torch import nn
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    TensorDataset,
    WeightedRandomSampler,
)

import headway

Pair = namedtuple("Pair", "x y")


@dataclass
class Sample:
    x: torch.Tensor
    y: torch.Tensor

    def to(self, device):
        return Sample(self.x.to(device), self.y.to(device))


@expect("log 0|zero", "log", samples=None, step=None, data_set=(13,))
def shuffled_data_set(run_dir):
    torch.manual_seed(0)
    xs, ys = torch.randn(24, 4), torch.rand(24, 1) + 0.1
    ys[13] = 0
    loader = DataLoader(
        TensorDataset(xs, ys),
        batch_size=4,
        shuffle=True,
        generator=torch.Generator().manual_seed(3),
    )
    net = nn.Linear(4, 1)
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)
    guard = headway.Guard(net, opt, run_dir=run_dir)
    for x, y in guard(loader):
        loss = F.mse_loss(net(x), torch.log(y))  # born here: shuffled_data_set
        opt.zero_grad()
        loss.backward()
        opt.step()
    guard.close()
    return guard


class Folder(Dataset):
    def __len__(self):
        return 20

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        x = torch.randn(4, generator=g)
        return {"pixels": x * (i != 9), "label": i % 2, "path": f"img_{i}.png"}


@expect("0/0|zero|0 divi", "div", samples=None, step=None, data_set=(9,))
def workers_and_sampler(run_dir):
    torch.manual_seed(0)
    sampler = WeightedRandomSampler(
        torch.ones(20), 20, replacement=False, generator=torch.Generator().manual_seed(1)
    )
    loader = DataLoader(Folder(), batch_size=5, sampler=sampler, num_workers=1)
    net = nn.Linear(4, 2)
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)
    guard = headway.Guard(net, opt, run_dir=run_dir)
    for batch in guard(loader):
        x = batch["pixels"]
        x = x / x.abs().amax(1, keepdim=True)  # born here: workers_and_sampler
        loss = F.cross_entropy(net(x), batch["label"])
        opt.zero_grad()
        loss = loss + 1e-3 * our_losses.causal_prior(net)
        loss.backward()
        opt.step()
    guard.close()
    return guard


class Stream(IterableDataset):
    def __iter__(self):
        g = torch.Generator().manual_seed(0)
        for i in range(16):
            yield torch.randn(4, generator=g), torch.tensor([0.0 if i == 9 else 1.0])


@expect("divi 0|zero", "div", samples=(1,))
def a_stream(run_dir):
    torch.manual_seed(0)
    net = nn.Linear(4, 1)
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)
    guard = headway.Guard(net, opt, run_dir=run_dir)
    for x, weight in guard(DataLoader(Stream(), batch_size=4)):
        loss = (net(x).square() / weight).mean()  # born here: a_stream
        opt.zero_grad()
        loss = loss + 1e-3 * our_losses.causal_prior(net)
        loss.backward()
        opt.step()
    guard.close()
    return guard


def pad(items):
    lengths = torch.tensor([len(i) for i in items])
    out = torch.zeros(len(items), max(1, int(lengths.max())), 3)
    for row, item in zip(out, items, strict=True):
        row[: len(item)] = item
    return Pair(out, lengths)


@expect("0/0|zero|0 divi", "div", samples=(0,), data_set=(8,))
def empty_sequence_in_a_padded_batch(run_dir):
    torch.manual_seed(0)
    texts = [torch.randn(1 + i % 4, 3) for i in range(16)]
    texts[8] = torch.zeros(0, 3)
    net = nn.Linear(3, 2)
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)
    guard = headway.Guard(net, opt, run_dir=run_dir)
    for batch in guard(DataLoader(texts, batch_size=4, collate_fn=pad)):
        mask = torch.arange(batch.x.shape[1]) < batch.y[:, None]
        h = (net(batch.x) * mask[..., None]).sum(1)
        pooled = h / mask.sum(1, keepdim=True)  # born here: empty_sequence_in_a_padded_batch
        loss = pooled.square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    guard.close()
    return guard


@expect("NaN|nan batch|data|input", "", module=None, samples=(2,), cure=True)
def nan_in_a_dataclass(run_dir):

    torch.manual_seed(0)
    data = [Sample(torch.randn(4, 5), torch.rand(4, 1)) for _ in range(4)]
    data[2].x[2, 1] = math.nan
    net = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 1))
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)
    guard = headway.Guard(net, opt, run_dir=run_dir)
    for sample in guard(data):
        sample = sample.to("cpu")
        pred = net(sample.x)  # born here: nan_in_a_dataclass
        loss = F.mse_loss(pred, sample.y)
        opt.zero_grad()
        loss = loss + 1e-3 * our_losses.causal_prior(net)
        loss.backward()
        opt.step()
    guard.close()
    return guard


@expect("inf batch|data|input", "", module=None, samples=(3,))
def infinite_target(run_dir):
    torch.manual_seed(0)
    data = [Pair(torch.randn(4, 5), torch.rand(4, 1)) for _ in range(4)]
    data[2].y[3] = math.inf
    net = nn.Linear(5, 1)
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)
    guard = headway.Guard(net, opt, run_dir=run_dir)
    for batch in guard(data):
        loss = (net(batch.x) - batch.y).square().mean()  # born here: infinite_target
        opt.zero_grad()
        loss.backward()
        opt.step()
    guard.close()
    return guard


@expect("log 0|zero", "log", samples=(1,))
def one_sample_at_a_time_in_the_loss(run_dir):
    # A Python loop over the samples of a batch: the op never sees the whole of it.
    torch.manual_seed(0)
    data = [(torch.randn(3, 4), torch.rand(3, 1) + 0.1) for _ in range(4)]
    data[2][1][1] = 0
    net = nn.Linear(4, 1)
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)
    guard = headway.Guard(net, opt, run_dir=run_dir)
    for x, y in guard(data):
        total = 0.0
        for xi, yi in zip(x, y, strict=True):
            # born here: one_sample_at_a_time_in_the_loss
            total = total + (net(xi) - yi.log()).square().sum()
        loss = total / len(x)
        opt.zero_grad()
        loss.backward()
        opt.step()
    guard.close()
    return guard


@expect("log 0|zero", "log", samples=())
def graph_pooling(run_dir):
    # Nodes of all graphs stand in one tensor, as in PyG: rows of the op are graphs, rows of the
    # batch are nodes, and so no row of the batch is to be named.
    torch.manual_seed(0)
    data = []
    for _ in range(4):
        nodes = torch.rand(10, 3) + 0.1
        graph = torch.tensor([0, 0, 0, 1, 1, 1, 1, 2, 2, 2])
        data.append({"nodes": nodes, "graph": graph, "y": torch.rand(3, 2)})
    data[2]["nodes"][7:] = 0.0
    net = nn.Linear(3, 2, bias=False)
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)
    guard = headway.Guard(net, opt, run_dir=run_dir)
    for b in guard(data):
        h = net(b["nodes"]).abs()
        pooled = torch.zeros(3, 2).index_add(0, b["graph"], h)
        loss = (pooled.log() - b["y"]).square().mean()  # born here: graph_pooling
        opt.zero_grad()
        loss = loss + 1e-3 * our_losses.causal_prior(net)
        loss.backward()
        opt.step()
    guard.close()
    return guard
