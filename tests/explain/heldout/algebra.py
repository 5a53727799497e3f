"""torch.linalg at its singular points, and recurrences that explode."""

from __future__ import annotations

import math

import torch
from explain.heldout import our_losses
from explain.heldout.expected import expect
from torch import nn

import headway


def covariance(x):
    x = x - x.mean(-1, keepdim=True)
    return x @ x.mT / x.shape[-1]


@expect(
    "singular determinant log",
    "logdet|slogdet|linalg_slogdet|_linalg_slogdet|log|_linalg_det",
    samples=(3,),
)
def logdet_of_a_singular_matrix(run_dir):
    torch.manual_seed(0)
    net = nn.Linear(10, 10, bias=False)
    opt = torch.optim.SGD(net.parameters(), lr=1e-4)
    loader = [torch.randn(5, 3, 10) for _ in range(4)]
    loader[2][3] = 0.0
    guard = headway.Guard(net, opt, run_dir=run_dir)
    for x in guard(loader):
        cov = covariance(net(x))
        loss = -torch.logdet(cov).mean()  # born here: logdet_of_a_singular_matrix
        loss.backward()
        opt.step()
        opt.zero_grad()
    guard.close()
    return guard


@expect("eigen|eigh", "linalg_eigh|_linalg_eigh|eigh", samples=(1,))
def eigh_of_equal_eigenvalues(run_dir):
    torch.manual_seed(0)
    net = nn.Linear(3, 3, bias=False)
    with torch.no_grad():
        net.weight.copy_(torch.eye(3))
    opt = torch.optim.SGD(net.parameters(), lr=0.0)
    loader = [torch.randn(4, 3, 3) for _ in range(4)]
    loader[2][1] = torch.eye(3)
    guard = headway.Guard(net, opt, run_dir=run_dir)
    for x in guard(loader):
        m = net(x)
        m = m @ m.mT
        values, vectors = torch.linalg.eigh(m)  # born here: eigh_of_equal_eigenvalues
        loss = (vectors[..., -1] * torch.arange(3.0)).sum(-1).square().mean() + values.mean()
        loss = loss + 1e-3 * our_losses.causal_prior(net)
        loss.backward()
        opt.step()
        opt.zero_grad()
    guard.close()
    return guard


@expect("svd|singular", "linalg_svd|_linalg_svd|svd", samples=(0,))
def svd_of_a_rotation(run_dir):
    # Nearest rotation by SVD; a sample that already is one has equal singular values.
    torch.manual_seed(0)
    net = nn.Linear(3, 3, bias=False)
    with torch.no_grad():
        net.weight.copy_(torch.eye(3))
    opt = torch.optim.SGD(net.parameters(), lr=0.0)
    data = [(torch.randn(4, 3, 3), torch.randn(4, 3, 3)) for _ in range(4)]
    data[2][0][0] = torch.eye(3)
    guard = headway.Guard(net, opt, run_dir=run_dir)
    for x, target in guard(data):
        u, _, vh = torch.linalg.svd(net(x))  # born here: svd_of_a_rotation
        loss = (u @ torch.diag(torch.tensor([1.0, 1.0, -1.0])) @ vh - target).square().mean()
        loss = loss + 1e-3 * our_losses.causal_prior(net)
        loss.backward()
        opt.step()
        opt.zero_grad()
    guard.close()
    return guard


class VanillaRNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.ih = nn.Linear(2, 4)
        self.hh = nn.Linear(4, 4, bias=False)
        self.out = nn.Linear(4, 1)

    def forward(self, x):
        h = x.new_zeros(x.shape[0], 4)
        for t in range(x.shape[1]):
            h = torch.relu(self.ih(x[:, t]) + self.hh(h))  # born here: recurrence_explodes
        return self.out(h)


@expect("overflow", "mm|linear|addmm|matmul", "hh", cure=False)
def recurrence_explodes(run_dir):
    # Only the third batch is long enough.
    torch.manual_seed(0)
    model = VanillaRNN()
    with torch.no_grad():
        model.hh.weight.fill_(3.0)
        model.ih.bias.fill_(1.0)
    opt = torch.optim.SGD(model.parameters(), lr=0.0)
    loader = [torch.rand(3, length, 2) for length in (3, 4, 60, 3)]
    guard = headway.Guard(model, opt, run_dir=run_dir)
    for seq in guard(loader):
        loss = model(seq).abs().log1p().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    guard.close()
    return guard


class Tagger(nn.Module):
    def __init__(self, vectors):
        super().__init__()
        self.register_buffer("vectors", vectors)
        self.lstm = nn.LSTM(6, 5, batch_first=True)
        self.tag = nn.Linear(5, 3)

    def forward(self, ids):
        x = nn.functional.embedding(ids, self.vectors)  # born here: pretrained_vectors_with_a_hole
        out, _ = self.lstm(x)
        return self.tag(out)


@expect("vectors NaN|nan", "embedding", samples=(1,), cure=False)
def pretrained_vectors_with_a_hole(run_dir):
    torch.manual_seed(0)
    vectors = torch.randn(12, 6)
    vectors[11] = math.nan  # no word vector was found for it
    model = Tagger(vectors)
    opt = torch.optim.Adam(model.parameters())
    data = [(torch.randint(0, 11, (4, 5)), torch.randint(0, 3, (4, 5))) for _ in range(4)]
    data[2][0][1, 3] = 11
    guard = headway.Guard(model, opt, run_dir=run_dir)
    for ids, tags in guard(data):
        loss = nn.functional.cross_entropy(model(ids).flatten(0, 1), tags.flatten())
        opt.zero_grad()
        loss = loss + 1e-3 * our_losses.causal_prior(model)
        loss.backward()
        opt.step()
    guard.close()
    return guard


@expect("0/0|zero|0 divi", "div|inv|linalg_inv_ex|reciprocal|linalg_det", samples=(2,))
def inverse_by_hand(run_dir):
    torch.manual_seed(0)
    net = nn.Linear(4, 4)
    opt = torch.optim.SGD(net.parameters(), lr=1e-5)
    loader = [torch.randn(4, 2, 2) for _ in range(4)]
    loader[2][2] = 1.0
    guard = headway.Guard(net, opt, run_dir=run_dir)
    for m in guard(loader):
        det = m[:, 0, 0] * m[:, 1, 1] - m[:, 0, 1] * m[:, 1, 0]
        scale = 1.0 / det  # born here: inverse_by_hand
        inverse = scale[:, None, None] * torch.stack(
            [
                torch.stack([m[:, 1, 1], -m[:, 0, 1]], -1),
                torch.stack([-m[:, 1, 0], m[:, 0, 0]], -1),
            ],
            dim=1,
        )
        loss = net(inverse.flatten(1)).square().mean()
        opt.zero_grad()
        loss = loss + 1e-3 * our_losses.causal_prior(net)
        loss.backward()
        opt.step()
    guard.close()
    return guard
