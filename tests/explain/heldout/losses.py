"""Loss functions written by hand, as they stand in a thousand repositories."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from explain.heldout import our_losses
from explain.heldout.expected import expect
from torch import nn

import headway


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 8))
        self.decoder = nn.Sequential(nn.Linear(4, 12), nn.ReLU(), nn.Linear(12, 6))

    def reparameterise(self, mu, logvar):
        std = torch.exp(0.5 * logvar)  # born here: vae_logvar
        return mu + std * torch.randn_like(std)

    def forward(self, x):
        mu, logvar = self.encoder(x).chunk(2, dim=-1)
        z = self.reparameterise(mu, logvar)
        return self.decoder(z), mu, logvar


def vae_loss(recon, x, mu, logvar):
    mse = F.mse_loss(recon, x)
    kld = -0.5 * torch.mean(1 + logvar - mu.pow(2) - logvar.exp())
    return mse + kld


@expect("exp overflow", "exp", samples=(3,))
def vae_logvar(run_dir):
    torch.manual_seed(0)
    model = VAE()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loader = [torch.randn(8, 6) for _ in range(4)]
    loader[2][3] *= 1e4
    guard = headway.Guard(model, optimizer, run_dir=run_dir)
    for x in guard(loader):
        optimizer.zero_grad()
        recon, mu, logvar = model(x)
        loss = vae_loss(recon, x, mu, logvar)
        loss.backward()
        optimizer.step()
    guard.close()
    return guard


@expect("log 0|zero", "log", samples=(5,))
def policy_gradient_illegal_action(run_dir):
    # Legal actions are masked with -inf, which is right; one stored action was illegal.
    torch.manual_seed(0)
    policy = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 3))
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
    rollouts = []
    for _ in range(4):
        obs = torch.randn(8, 4)
        legal = torch.ones(8, 3, dtype=torch.bool)
        legal[:, 2] = False
        rollouts.append((obs, legal, torch.randint(0, 2, (8,)), torch.randn(8)))
    rollouts[2][2][5] = 2
    guard = headway.Guard(policy, optimizer, run_dir=run_dir)
    for obs, legal, action, returns in guard(rollouts):
        logits = policy(obs).masked_fill(~legal, -math.inf)
        probs = torch.softmax(logits, dim=-1)
        chosen = probs.gather(1, action[:, None]).squeeze(1)
        log_prob = torch.log(chosen)  # born here: policy_gradient_illegal_action
        loss = -(log_prob * returns).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    guard.close()
    return guard


@expect("exp overflow", "exp", samples=(2,))
def ppo_ratio(run_dir):
    torch.manual_seed(0)
    actor = nn.Linear(4, 3)
    optimizer = torch.optim.Adam(actor.parameters(), lr=1e-3)
    memory = [
        dict(
            obs=torch.randn(6, 4),
            act=torch.randint(0, 3, (6,)),
            old=torch.full((6,), -1.1),
            adv=torch.randn(6),
        )
        for _ in range(4)
    ]
    memory[2]["old"][2] = -200.0
    memory[2]["adv"][2] = -1.0
    guard = headway.Guard(actor, optimizer, run_dir=run_dir)
    for mb in guard(memory):
        logp = F.log_softmax(actor(mb["obs"]), -1)
        logp = logp[torch.arange(6), mb["act"]]
        ratio = (logp - mb["old"]).exp()  # born here: ppo_ratio
        s1 = ratio * mb["adv"]
        s2 = ratio.clamp(0.8, 1.2) * mb["adv"]
        loss = -torch.min(s1, s2).mean()
        optimizer.zero_grad()
        loss = loss + 1e-3 * our_losses.causal_prior(actor)
        loss.backward()
        optimizer.step()
    guard.close()
    return guard


@expect("exp overflow", "exp", samples=(2,))
def ppo_ratio_hidden_by_the_clip(run_dir):
    # The advantage is positive: min() takes the clipped ratio; only the gradient is not finite.
    torch.manual_seed(0)
    actor = nn.Linear(4, 3)
    optimizer = torch.optim.Adam(actor.parameters(), lr=1e-3)
    memory = [
        (torch.randn(6, 4), torch.randint(0, 3, (6,)), torch.full((6,), -1.1), torch.rand(6))
        for _ in range(4)
    ]
    memory[2][2][2] = -200.0
    guard = headway.Guard(actor, optimizer, run_dir=run_dir)
    for obs, act, old, adv in guard(memory):
        logp = F.log_softmax(actor(obs), -1).gather(1, act.unsqueeze(1))[:, 0]
        ratio = torch.exp(logp - old)  # born here: ppo_ratio_hidden_by_the_clip
        loss = -torch.min(ratio * adv, ratio.clamp(0.8, 1.2) * adv).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    guard.close()
    return guard


class MeanVariance(nn.Module):
    def __init__(self):
        super().__init__()
        self.mu = nn.Linear(5, 1)
        self.sigma = nn.Linear(5, 1, bias=False)

    def forward(self, x):
        return self.mu(x), self.sigma(x).square()


@expect("divi 0|zero", "div", samples=(1,))
def gaussian_nll_by_hand(run_dir):
    torch.manual_seed(0)
    net = MeanVariance()
    opt = torch.optim.SGD(net.parameters(), lr=1e-4)
    data = [(torch.randn(4, 5), torch.randn(4, 1)) for _ in range(4)]
    data[2][0][1] = 0.0
    guard = headway.Guard(net, opt, run_dir=run_dir)
    for x, y in guard(data):
        mu, var = net(x)
        nll = 0.5 * (
            (y - mu) ** 2 / var  # born here: gaussian_nll_by_hand
            + torch.log(var)
        )
        loss = nll.mean()
        opt.zero_grad()
        loss = loss + 1e-3 * our_losses.causal_prior(net)
        loss.backward()
        opt.step()
    guard.close()
    return guard


@expect("log 0|zero", "log|mul", samples=(4,))
def kl_with_zero_target(run_dir):
    torch.manual_seed(0)
    student = nn.Linear(6, 4)
    opt = torch.optim.SGD(student.parameters(), lr=0.1)
    data = [(torch.randn(8, 6), torch.rand(8, 4).softmax(-1)) for _ in range(4)]
    data[2][1][4] = torch.tensor([0.0, 0.5, 0.25, 0.25])
    guard = headway.Guard(student, opt, run_dir=run_dir)
    for x, p in guard(data):
        logq = F.log_softmax(student(x), dim=1)
        kl = p * (p.log() - logq)  # born here: kl_with_zero_target
        loss = kl.sum(1).mean()
        opt.zero_grad()
        loss = loss + 1e-3 * our_losses.causal_prior(student)
        loss.backward()
        opt.step()
    guard.close()
    return guard


@expect("log 0|zero", "log", samples=(3,))
def gumbel_noise_of_one(run_dir):
    # u == 0 gives -inf, which softmax bears; u == 1 gives +inf, which it does not.
    torch.manual_seed(0)
    net = nn.Linear(6, 4)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    data = [(torch.randn(5, 6), torch.rand(5, 4), torch.randint(0, 3, (5,))) for _ in range(4)]
    data[2][1][1, 3] = 0.0
    data[2][1][3, 0] = 1.0
    guard = headway.Guard(net, opt, run_dir=run_dir)
    for x, u, y in guard(data):
        gumbel = -torch.log(-torch.log(u))  # born here: gumbel_noise_of_one
        soft = F.softmax((net(x) + gumbel) / 0.5, dim=-1)
        loss = F.mse_loss(soft, F.one_hot(y, 4).float())
        opt.zero_grad()
        loss.backward()
        opt.step()
    guard.close()
    return guard


@expect("ctc|align", "ctc_loss", samples=(3,), module=None)
def ctc_too_short(run_dir):
    torch.manual_seed(0)
    net = nn.GRU(5, 7, batch_first=True)
    criterion = nn.CTCLoss(blank=0)
    opt = torch.optim.Adam(net.parameters())
    data = [
        (
            torch.randn(4, 12, 5),
            torch.randint(1, 7, (4, 5)),
            torch.full((4,), 12),
            torch.full((4,), 5),
        )
        for _ in range(4)
    ]
    data[2][2][3] = 3
    guard = headway.Guard(net, opt, run_dir=run_dir)
    for audio, text, n_audio, n_text in guard(data):
        opt.zero_grad()
        log_probs = net(audio)[0].log_softmax(-1).transpose(0, 1)
        loss = criterion(log_probs, text, n_audio, n_text)  # born here: ctc_too_short
        loss = loss + 1e-3 * our_losses.causal_prior(net)
        loss.backward()
        opt.step()
    guard.close()
    return guard


def pairwise(a, b):
    return (a - b).pow(2).sum(-1).sqrt()  # born here: triplet_same_image


@expect("sqrt 0|zero", "sqrt", samples=(6,))
def triplet_same_image(run_dir):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    opt = torch.optim.Adam(net.parameters())
    data = [tuple(torch.randn(8, 8) for _ in range(3)) for _ in range(4)]
    data[2][1][6] = data[2][0][6]
    guard = headway.Guard(net, opt, run_dir=run_dir)
    for anchor, positive, negative in guard(data):
        a, p, n = net(anchor), net(positive), net(negative)
        loss = (pairwise(a, p) - pairwise(a, n) + 1.0).clamp(min=0).mean()
        opt.zero_grad()
        loss = loss + 1e-3 * our_losses.causal_prior(net)
        loss.backward()
        opt.step()
    guard.close()
    return guard


@expect("0/0|zero|0 divi", "div", samples=(0,))
def iou_of_nothing(run_dir):
    torch.manual_seed(0)
    net = nn.Linear(6, 2, bias=False)
    opt = torch.optim.SGD(net.parameters(), lr=0.01)
    data = [(torch.randn(5, 6), torch.rand(5, 2) + 0.1) for _ in range(4)]
    data[2][0][0] = 0
    data[2][1][0] = 0
    guard = headway.Guard(net, opt, run_dir=run_dir)
    for x, box in guard(data):
        size = net(x).abs()
        inter = torch.minimum(size, box).prod(-1)
        union = size.prod(-1) + box.prod(-1) - inter
        iou = inter / union  # born here: iou_of_nothing
        loss = (1 - iou).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    guard.close()
    return guard


@expect("0/0|zero|0 divi", "div", samples=(2,))
def dice_of_empty_masks(run_dir):
    torch.manual_seed(0)
    net = nn.Conv2d(1, 1, 3, padding=1, bias=False)
    opt = torch.optim.SGD(net.parameters(), lr=0.01)
    data = [{"image": torch.rand(4, 1, 6, 6), "mask": torch.ones(4, 1, 6, 6)} for _ in range(4)]
    data[2]["image"][2] = 0
    data[2]["mask"][2] = 0
    guard = headway.Guard(net, opt, run_dir=run_dir)
    for batch in guard(data):
        pred = net(batch["image"]).abs()
        dims = (1, 2, 3)
        inter = (pred * batch["mask"]).sum(dims)
        total = pred.sum(dims) + batch["mask"].sum(dims)
        dice = 2 * inter / total  # born here: dice_of_empty_masks
        loss = 1 - dice.mean()
        opt.zero_grad(set_to_none=False)
        loss = loss + 1e-3 * our_losses.causal_prior(net)
        loss.backward()
        opt.step()
    guard.close()
    return guard


@expect("log 0|zero", "log", samples=(7,))
def bce_by_hand(run_dir):
    torch.manual_seed(0)
    net = nn.Linear(3, 1)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    xs = torch.randn(32, 3)
    ys = (xs[:, 0] > 0).float()
    with torch.no_grad():
        net.weight.copy_(torch.tensor([[1.0, 0.0, 0.0]]))
    xs[23] = torch.tensor([60.0, 0.0, 0.0])
    ys[23] = 1.0
    guard = headway.Guard(net, opt, run_dir=run_dir)
    for x, y in guard(list(zip(xs.split(8), ys.split(8), strict=True))):
        p = torch.sigmoid(net(x)).squeeze(-1)
        loss = -(
            y * torch.log(p) + (1 - y) * torch.log(1 - p)  # born here: bce_by_hand
        ).mean()
        opt.zero_grad()
        loss = loss + 1e-3 * our_losses.causal_prior(net)
        loss.backward()
        opt.step()
    guard.close()
    return guard


@expect("log 0|zero", "log", samples=(1,))
def log_of_sigmoid(run_dir):
    torch.manual_seed(0)
    net = nn.Linear(3, 1)
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)
    loader = [torch.randn(8, 3) for _ in range(4)]
    with torch.no_grad():
        net.weight.copy_(torch.tensor([[1.0, 1.0, 1.0]]))
    loader[2][1] = -100.0
    guard = headway.Guard(net, opt, run_dir=run_dir)
    for x in guard(loader):
        loss = -torch.log(torch.sigmoid(net(x))).mean()  # born here: log_of_sigmoid
        opt.zero_grad()
        loss.backward()
        opt.step()
    guard.close()
    return guard


def focal_loss(p, y, gamma=0.5):
    pt = torch.where(y == 1, p, 1 - p)
    weight = (1 - pt) ** gamma  # born here: focal_gamma_below_one
    return -(weight * pt.clamp(min=1e-7).log()).mean()


@expect("pow|power|root|** 0|zero", "pow|sqrt", samples=(2,))
def focal_gamma_below_one(run_dir):
    torch.manual_seed(0)
    net = nn.Linear(3, 1)
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)
    with torch.no_grad():
        net.weight.copy_(torch.tensor([[1.0, 1.0, 1.0]]))
    data = [(torch.randn(8, 3), torch.ones(8, 1)) for _ in range(4)]
    data[2][0][2] = 30.0
    guard = headway.Guard(net, opt, run_dir=run_dir)
    for x, y in guard(data):
        loss = focal_loss(net(x).sigmoid(), y)
        opt.zero_grad()
        loss = loss + 1e-3 * our_losses.causal_prior(net)
        loss.backward()
        opt.step()
    guard.close()
    return guard


@expect("mean empty|no|nothing", "mean")
def mean_of_no_pixels(run_dir):
    # The -inf stands where there is no ground truth; the selection leaves it out.
    torch.manual_seed(0)
    net = nn.Linear(5, 5)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    data = [(torch.randn(4, 5), torch.rand(4, 5)) for _ in range(4)]
    for _, depth in data:
        depth[:, 0] = -math.inf
    data[2][1][:] = -math.inf
    guard = headway.Guard(net, opt, run_dir=run_dir)
    for x, depth in guard(data):
        valid = torch.isfinite(depth)
        error = (net(x)[valid] - depth[valid]).abs()
        loss = error.mean()  # born here: mean_of_no_pixels
        opt.zero_grad()
        loss.backward()
        opt.step()
    guard.close()
    return guard


@expect("std|deviation one|single|1", "std|var")
def std_of_the_last_batch(run_dir):
    torch.manual_seed(0)
    net = nn.Linear(5, 3)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    xs = torch.randn(9, 5)
    guard = headway.Guard(net, opt, run_dir=run_dir)
    for x in guard(xs.split(4)):
        z = net(x)
        spread = z.std(dim=0)  # born here: std_of_the_last_batch
        loss = torch.relu(1 - spread).mean() + z.mean().square()
        opt.zero_grad()
        loss.backward()
        opt.step()
    guard.close()
    return guard


@expect("0/0|zero|0 divi", "div")
def no_positives(run_dir):
    torch.manual_seed(0)
    net = nn.Linear(5, 3)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    data = [(torch.randn(4, 5), (torch.rand(4, 3) > 0.3).float()) for _ in range(4)]
    data[2][1].zero_()
    guard = headway.Guard(net, opt, run_dir=run_dir)
    for x, positive in guard(data):
        per_anchor = F.softplus(-net(x))
        loss = (per_anchor * positive).sum() / positive.sum()  # born here: no_positives
        opt.zero_grad()
        loss = loss + 1e-3 * our_losses.causal_prior(net)
        loss.backward()
        opt.step()
    guard.close()
    return guard


def softplus(x):
    return torch.log(1 + torch.exp(x))  # born here: softplus_by_hand


@expect("exp overflow", "exp", samples=(0,))
def softplus_by_hand(run_dir):
    torch.manual_seed(0)
    net = nn.Linear(3, 2)
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)
    loader = [torch.randn(8, 3) for _ in range(4)]
    loader[2][0] = 1000.0 * net.weight[0].detach().sign()
    guard = headway.Guard(net, opt, run_dir=run_dir)
    for x in guard(loader):
        opt.zero_grad()
        loss = softplus(net(x)).mean()
        loss.backward()
        opt.step()
    guard.close()
    return guard


class CRF(nn.Module):
    def __init__(self, tags=3):
        super().__init__()
        self.emit = nn.Linear(5, tags)
        self.trans = nn.Parameter(torch.zeros(tags, tags))
        self.register_buffer("forbidden", torch.full((tags, tags), -math.inf).triu(1))

    def forward(self, x, allowed):
        scores = self.emit(x)
        alpha = scores[:, 0]
        for t in range(1, x.shape[1]):
            step = alpha[:, :, None] + self.trans + self.forbidden
            alpha = torch.logsumexp(step, dim=1) + scores[:, t]
        end = alpha.masked_fill(~allowed, -math.inf)
        return torch.logsumexp(end, dim=-1)  # born here: crf_without_a_path


@expect("logsumexp|inf", "logsumexp", samples=(1,), cure=False)
def crf_without_a_path(run_dir):
    # Forbidden transitions are -inf, and fine; in one sample no last tag at all is allowed.
    torch.manual_seed(0)
    crf = CRF()
    opt = torch.optim.SGD(crf.parameters(), lr=0.01)
    data = [(torch.randn(4, 6, 5), torch.ones(4, 3, dtype=torch.bool)) for _ in range(4)]
    data[2][1][1] = False
    guard = headway.Guard(crf, opt, run_dir=run_dir)
    for x, allowed in guard(data):
        loss = crf(x, allowed).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    guard.close()
    return guard
