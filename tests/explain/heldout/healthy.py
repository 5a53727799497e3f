"""Look-alikes: infinities and NaN that are meant, and steps in which nothing is wrong."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from explain.heldout.expected import healthy
from torch import nn

import headway


@healthy
def double_where(run_dir):
    torch.manual_seed(0)
    net = nn.Linear(4, 3, bias=False)
    opt = torch.optim.SGD(net.parameters(), lr=1e-2)
    loader = [torch.randn(4, 4) for _ in range(4)]
    loader[2][1] = 0
    guard = headway.Guard(net, opt, run_dir=run_dir)
    for x in guard(loader):
        p = net(x).abs()
        safe = torch.where(p > 0, p, torch.ones_like(p))
        loss = torch.where(p > 0, safe.log(), torch.zeros_like(p)).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    guard.close()
    return guard


@healthy
def log_of_zero_not_selected(run_dir):
    # No gradient flows through the logarithm, so that one where is enough.
    torch.manual_seed(0)
    net = nn.Linear(4, 1)
    opt = torch.optim.SGD(net.parameters(), lr=1e-2)
    loader = [torch.rand(4, 4) for _ in range(4)]
    loader[2][1] = 0
    guard = headway.Guard(net, opt, run_dir=run_dir)
    for x in guard(loader):
        logs = torch.log(x)
        x = torch.where(torch.isinf(logs), torch.zeros_like(logs), logs)
        loss = net(x).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    guard.close()
    return guard


@healthy
def causal_attention(run_dir):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.1)
    model = nn.TransformerEncoder(layer, 2)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    mask = nn.Transformer.generate_square_subsequent_mask(5)
    loader = [torch.randn(3, 5, 8) for _ in range(4)]
    guard = headway.Guard(model, opt, run_dir=run_dir)
    for x in guard(loader):
        loss = model(x, mask=mask, is_causal=True).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    guard.close()
    return guard


@healthy
def ratio_mended(run_dir):
    torch.manual_seed(0)
    net = nn.Linear(4, 1)
    opt = torch.optim.SGD(net.parameters(), lr=1e-2)
    data = [(torch.rand(4, 4), torch.rand(4, 4)) for _ in range(4)]
    data[2][0][1] = 0
    data[2][1][1] = 0
    guard = headway.Guard(net, opt, run_dir=run_dir)
    for a, b in guard(data):
        x = torch.nan_to_num(a / b, nan=0.0, posinf=0.0)
        loss = net(x).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    guard.close()
    return guard


@healthy
def banned_tokens(run_dir):
    torch.manual_seed(0)
    net = nn.Linear(4, 10)
    opt = torch.optim.SGD(net.parameters(), lr=1e-2)
    data = [(torch.randn(4, 4), torch.randint(0, 6, (4,))) for _ in range(4)]
    guard = headway.Guard(net, opt, run_dir=run_dir)
    for x, y in guard(data):
        logits = net(x)
        logits[:, 6:] = float("-inf")
        loss = F.cross_entropy(logits, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
    guard.close()
    return guard


@healthy
def running_maximum(run_dir):
    torch.manual_seed(0)
    net = nn.Linear(4, 4)
    opt = torch.optim.SGD(net.parameters(), lr=1e-2)
    guard = headway.Guard(net, opt, run_dir=run_dir)
    best = torch.tensor(math.inf)
    for x in guard([torch.randn(3, 5, 4) for _ in range(4)]):
        top = torch.full((3, 4), -math.inf)
        for t in range(5):
            top = torch.maximum(top, net(x[:, t]))
        loss = top.square().mean()
        best = torch.minimum(best, loss.detach())
        opt.zero_grad()
        loss.backward()
        opt.step()
    guard.close()
    return guard


@healthy
def norms_and_products_of_zero(run_dir):
    torch.manual_seed(0)
    net = nn.Linear(4, 4, bias=False)
    opt = torch.optim.SGD(net.parameters(), lr=1e-2)
    loader = [torch.randn(3, 4) for _ in range(4)]
    loader[2][0] = 0
    guard = headway.Guard(net, opt, run_dir=run_dir)
    for x in guard(loader):
        h = net(x)
        loss = h.norm(dim=-1).mean() + h.prod(-1).mean() + h.cumprod(-1).mean() + h.abs().mean()
        loss = loss + F.cosine_similarity(h, x, dim=-1).mean() + F.normalize(h, dim=-1).mean()
        loss = loss + torch.xlogy(x.abs(), x.abs()).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    guard.close()
    return guard


@healthy
def atan2_at_the_origin(run_dir):
    # torch gives the origin a slope of 0.
    torch.manual_seed(0)
    net = nn.Linear(3, 2, bias=False)
    opt = torch.optim.SGD(net.parameters(), lr=0.01)
    loader = [torch.randn(6, 3) for _ in range(4)]
    loader[2][2] = 0.0
    guard = headway.Guard(net, opt, run_dir=run_dir)
    for x in guard(loader):
        sin, cos = net(x).unbind(1)
        yaw = torch.atan2(sin, cos)
        loss = yaw.square().mean() + yaw.mean()
        loss.backward()
        opt.step()
        opt.zero_grad()
    guard.close()
    return guard


@healthy
def padded_row_of_sdpa(run_dir):
    torch.manual_seed(0)
    net = nn.Linear(4, 12)
    opt = torch.optim.SGD(net.parameters(), lr=1e-2)
    data = [(torch.randn(2, 5, 4), torch.ones(2, 5, dtype=torch.bool)) for _ in range(4)]
    data[2][1][1] = False
    guard = headway.Guard(net, opt, run_dir=run_dir)
    for x, keep in guard(data):
        q, k, v = net(x).chunk(3, -1)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=keep[:, None, :])
        loss = out.square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    guard.close()
    return guard


@healthy
def beam_of_log_probabilities(run_dir):
    torch.manual_seed(0)
    net = nn.Linear(4, 6)
    opt = torch.optim.SGD(net.parameters(), lr=1e-2)
    data = [(torch.randn(4, 4), torch.randint(0, 2, (4,))) for _ in range(4)]
    guard = headway.Guard(net, opt, run_dir=run_dir)
    for x, y in guard(data):
        logits = net(x)
        kept = logits.topk(3).values[:, -1:]
        logp = logits.masked_fill(logits < kept, -math.inf).log_softmax(-1)
        loss = -torch.logsumexp(logp, -1).mean() + F.cross_entropy(logits, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
    guard.close()
    return guard


@healthy
def ignored_nan_targets(run_dir):
    torch.manual_seed(0)
    net = nn.Linear(4, 3)
    opt = torch.optim.SGD(net.parameters(), lr=1e-2)
    data = [(torch.randn(4, 4), torch.randn(4, 3)) for _ in range(4)]
    data[2][1][1, 2] = math.nan
    guard = headway.Guard(net, opt, run_dir=run_dir)
    for x, y in guard(data):
        known = ~torch.isnan(y)
        loss = F.mse_loss(net(x)[known], y[known])
        opt.zero_grad()
        loss.backward()
        opt.step()
    guard.close()
    return guard


@healthy
def scaler_finds_its_scale(run_dir):
    # The first scale of a GradScaler is too high by design; it skips and halves by itself.
    torch.manual_seed(0)
    net = nn.Linear(8, 8)
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**22)
    guard = headway.Guard(net, opt, run_dir=run_dir)
    for x in guard([torch.randn(16, 8) for _ in range(12)]):
        with torch.autocast("cpu", dtype=torch.float16):
            loss = net(x).float().square().mean()
        opt.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
    guard.close()
    return guard


@healthy
def infinite_distances(run_dir):
    # No edge is an infinite distance; exp(-d) is 0 there, forward and backward.
    torch.manual_seed(0)
    net = nn.Linear(3, 3)
    opt = torch.optim.SGD(net.parameters(), lr=1e-2)
    data = [(torch.randn(2, 4, 3), torch.rand(2, 4, 4)) for _ in range(4)]
    for _, distance in data:
        distance[:, 0, 2] = math.inf
    guard = headway.Guard(net, opt, run_dir=run_dir)
    for x, distance in guard(data):
        loss = (torch.exp(-distance) @ net(x)).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    guard.close()
    return guard
