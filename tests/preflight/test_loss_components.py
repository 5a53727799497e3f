"""The parts of a loss, found without being told, in the styles people write them in."""

from __future__ import annotations

import gc
import linecache
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headway.core.findings import Finding, Severity
from headway.preflight.runner import CheckResult, run_check

Body = Callable[["Net", Tensor, Tensor, Tensor, int], Any]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Linear(8, 16)
        self.classes = nn.Linear(16, 3)
        self.boxes = nn.Linear(16, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.tanh(self.trunk(x))
        return self.classes(h), self.boxes(h)


def train(body: Body, steps: int = 6) -> CheckResult:
    """A flat loop around the body; it calls backward itself."""

    def work() -> None:
        torch.manual_seed(0)
        model = Net()
        optimizer = torch.optim.Adam(model.parameters(), 1e-2)
        for step in range(steps):
            x = torch.randn(32, 8)
            y = (x[:, 0] > 0).long() + (x[:, 1] > 0).long()
            optimizer.zero_grad()
            body(model, x, y, x[:, 2:3] - x[:, 3:4], step)
            optimizer.step()

    gc.collect()  # optimizers of tests before
    return run_check(work, max_steps=None)


def loud(checked: CheckResult) -> list[tuple[str, str]]:
    assert checked.error is None
    assert list(checked.report.notes) == []
    return [
        (item.code, item.subject)
        for item in checked.report.findings
        if item.severity >= Severity.WARNING
    ]


def components(body: Body) -> set[str]:
    """The names the components got."""
    from headway.preflight.observers.loss.loss_components import LossComponents

    seen: set[str] = set()

    class Listening(LossComponents):
        def finished(self) -> None:
            seen.update(self._parts)

    def work() -> None:
        torch.manual_seed(0)
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), 1e-3)
        for step in range(3):
            x = torch.randn(16, 8)
            optimizer.zero_grad()
            body(model, x, torch.randint(0, 3, (16,)), x[:, 2:3], step)
            optimizer.step()

    gc.collect()
    assert run_check(work, max_steps=None, observers=[Listening]).error is None
    return seen


# --- names -----------------------------------------------------------------------------------


def test_locals_give_the_names() -> None:
    def body(model: Net, x: Tensor, y: Tensor, z: Tensor, step: int) -> None:
        a, b = model(x)
        cpe_loss = F.cross_entropy(a, y)
        dfl_loss = F.mse_loss(b, z)
        loss = (cpe_loss + 0.5 * dfl_loss) / 4
        loss.backward()

    assert components(body) == {"cpe_loss", "dfl_loss"}


def test_keys_of_a_dict_that_is_summed() -> None:
    def body(model: Net, x: Tensor, y: Tensor, z: Tensor, step: int) -> None:
        a, b = model(x)
        losses = {"cls": F.cross_entropy(a, y)}
        losses["box"] = (b - z).abs().mean()
        sum(losses.values()).backward()  # type: ignore[union-attr]

    assert components(body) == {"cls", "box"}


def test_made_in_functions_that_have_returned() -> None:
    def dice(a: Tensor, y: Tensor) -> Tensor:
        p = a.softmax(1)[:, 1]
        t = (y == 1).float()
        overlap = (p * t).sum()
        loss = 2 * overlap / (p.sum() + t.sum() + 1e-6)
        return 1 - loss

    def criterion(a: Tensor, b: Tensor, y: Tensor, z: Tensor, model: Net) -> Tensor:
        penalty = sum(p.pow(2).sum() for p in model.parameters())
        return torch.stack([dice(a, y), nn.MSELoss()(b, z), 1e-3 * penalty]).sum()

    def body(model: Net, x: Tensor, y: Tensor, z: Tensor, step: int) -> None:
        criterion(*model(x), y, z, model).backward()

    assert components(body) == {"dice", "mse_loss", "penalty"}


def test_one_loss_alone_has_no_parts() -> None:
    def body(model: Net, x: Tensor, y: Tensor, z: Tensor, step: int) -> None:
        loss = F.cross_entropy(model(x)[0], y)
        (loss / 2).backward()

    assert components(body) == set()


# --- dead ------------------------------------------------------------------------------------


def test_a_value_without_its_graph() -> None:
    def body(model: Net, x: Tensor, y: Tensor, z: Tensor, step: int) -> None:
        a, b = model(x)
        cls_loss = F.cross_entropy(a, y)
        box_loss = F.mse_loss(b, z)
        (cls_loss + 0.5 * box_loss.detach()).backward()

    checked = train(body)
    assert ("HD106", "box_loss") in loud(checked)
    assert checked.report.causes[0].code == "HD106"


def test_a_value_without_its_graph_that_trains_nothing_of_its_own() -> None:
    def body(model: Net, x: Tensor, y: Tensor, z: Tensor, step: int) -> None:
        a, b = model(x)
        total = F.cross_entropy(a, y) + F.mse_loss(b, z)
        with torch.no_grad():
            consistency = F.mse_loss(model(x + 0.1)[0], a)
        (total + 2.0 * consistency.item()).backward()

    assert ("HD106", "consistency") in loud(train(body, 3))


def test_the_sum_is_thrown_away() -> None:
    def compute(model: Net, x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, float]:
        a, b = model(x)
        loss = F.cross_entropy(a, y)
        aux = ((b - z) ** 2).mean()
        loss.add(0.1 * aux)
        return loss, aux.item()

    def body(model: Net, x: Tensor, y: Tensor, z: Tensor, step: int) -> None:
        compute(model, x, y, z)[0].backward()

    checked = train(body, 3)
    assert ("HD106", "aux") in loud(checked)
    assert checked.report.causes[0].code == "HD106"


def test_backward_of_the_wrong_variable() -> None:
    def body(model: Net, x: Tensor, y: Tensor, z: Tensor, step: int) -> None:
        a, b = model(x)
        loss = F.cross_entropy(a, y) + F.mse_loss(b, z)
        smooth = (a[1:] - a[:-1]).pow(2).mean()
        total = loss + 0.1 * smooth
        loss.backward()
        float(total.detach())

    assert ("HD106", "smooth") in loud(train(body, 3))


def test_a_weight_of_zero() -> None:
    weights = {"cls": 1.0, "box": 0.0}

    def body(model: Net, x: Tensor, y: Tensor, z: Tensor, step: int) -> None:
        a, b = model(x)
        losses = {"cls": F.cross_entropy(a, y), "box": F.mse_loss(b, z)}
        (weights["cls"] * losses["cls"] + weights["box"] * losses["box"]).backward()

    assert ("HD106", "box") in loud(train(body, 3))


# --- alive -----------------------------------------------------------------------------------


def test_a_weight_that_is_annealed_from_zero() -> None:
    def vae_loss(a: Tensor, b: Tensor, y: Tensor, z: Tensor, beta: float) -> Tensor:
        reconstruction = F.mse_loss(b, z) + F.cross_entropy(a, y)
        kl = 0.5 * a.pow(2).mean()
        return reconstruction + beta * kl

    def body(model: Net, x: Tensor, y: Tensor, z: Tensor, step: int) -> None:
        beta = min(1.0, (step // 50) / 10)  # 0 all through the first epoch
        vae_loss(*model(x), y, z, beta).backward()

    assert loud(train(body, 20)) == []


def test_metrics_logged_copies_and_totals() -> None:
    history: list[float] = []

    def body(model: Net, x: Tensor, y: Tensor, z: Tensor, step: int) -> None:
        a, b = model(x)
        ce = F.cross_entropy(a, y)
        box = F.mse_loss(b, z)
        mae = F.l1_loss(b, z)
        plain_mse_loss = F.mse_loss(b, z)
        loss = ce + box
        total = loss
        history.extend([mae.item(), plain_mse_loss.item(), ce.detach().item(), total.item()])
        accuracy = (a.argmax(1) == y).float().mean()
        history.append(accuracy.item())
        loss.backward()

    assert loud(train(body)) == []


def test_two_optimizers_each_with_its_loss() -> None:
    def work() -> None:
        torch.manual_seed(0)
        made = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
        judge = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 1))
        make_opt = torch.optim.Adam(made.parameters(), 1e-3)
        judge_opt = torch.optim.Adam(judge.parameters(), 1e-3)
        for _ in range(8):
            real, fake = torch.randn(16, 2) + 2, made(torch.randn(16, 4))
            ones, zeros = torch.ones(16, 1), torch.zeros(16, 1)
            loss_fake = F.binary_cross_entropy_with_logits(judge(fake.detach()), zeros)
            loss_real = F.binary_cross_entropy_with_logits(judge(real), ones)
            judge_opt.zero_grad()
            d_loss = loss_real + loss_fake
            d_loss.backward()
            judge_opt.step()
            make_opt.zero_grad()
            g_loss = F.binary_cross_entropy_with_logits(judge(fake), ones)
            g_loss.backward()
            make_opt.step()

    gc.collect()
    assert loud(run_check(work, max_steps=None)) == []


def test_small_regularisers_and_learned_weights() -> None:
    def work() -> None:
        torch.manual_seed(0)
        model = Net()
        log_vars = nn.Parameter(torch.zeros(2))
        optimizer = torch.optim.Adam([*model.parameters(), log_vars], 1e-2)
        for _ in range(60):
            x = torch.randn(32, 8)
            a, b = model(x)
            ce = F.cross_entropy(a, (x[:, 0] > 0).long())
            mse = F.mse_loss(b, x[:, 2:3])
            entropy = -(a.softmax(1) * a.log_softmax(1)).sum(1).mean()
            l2 = sum((p**2).sum() for p in model.parameters())
            loss = torch.exp(-log_vars[0]) * ce + torch.exp(-log_vars[1]) * mse + log_vars.sum()
            loss = loss - 1e-4 * entropy + 1e-6 * l2
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    gc.collect()
    assert loud(run_check(work, max_steps=None)) == []


def test_one_component_decides_alone() -> None:
    def body(model: Net, x: Tensor, y: Tensor, z: Tensor, step: int) -> None:
        a, b = model(x)
        cls = F.cross_entropy(a, y)
        box = F.mse_loss(100 * b, 1000 * z + 5000)  # pixels
        (cls + box).backward()

    assert ("HD107", "box") in loud(train(body, 3))


def test_a_part_without_a_name_is_called_by_its_expression_and_not_by_an_op() -> None:
    def body(model: Net, x: Tensor, y: Tensor, z: Tensor, step: int) -> None:
        a, b = model(x)
        (F.cross_entropy(a, y) + (b - z).abs().mean()).backward()

    assert components(body) == {"cross_entropy", "(b - z).abs().mean()"}


WRONG_STEP = """
import torch
from torch import nn
import torch.nn.functional as F
torch.manual_seed(0)
make, judge = nn.Linear(4, 3), nn.Linear(3, 1)
makers = torch.optim.Adam(make.parameters())
judges = torch.optim.Adam(judge.parameters())
for step in range(15):
    real, fake = torch.rand(16, 3), make(torch.randn(16, 4))
    judges.zero_grad()
    (F.softplus(-judge(real)) + F.softplus(judge(fake.detach()))).mean().backward()
    judges.step()
    makers.zero_grad()
    adversary = F.softplus(-judge(fake)).mean()
    adversary.backward()
    judges.step()  # the wrong one
"""


def adversarial(how: str, *, steps: int = 8, critic: int = 1) -> CheckResult:
    """A GAN with a reconstruction term; `how` says what is wrong with the generator's turn."""

    def work() -> None:
        torch.manual_seed(0)
        make = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3))
        judge = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 1))
        maker = torch.optim.Adam(make.parameters())
        judges = torch.optim.Adam(judge.parameters())
        for step in range(steps * critic):
            real, fake = torch.rand(16, 3), make(torch.randn(16, 4))
            judges.zero_grad()
            (F.softplus(-judge(real)) + F.softplus(judge(fake.detach()))).mean().backward()
            judges.step()
            shown = fake.detach() if how == "detached" else fake
            if how == "frozen":
                judge.requires_grad_(False)
            adversary = F.softplus(-judge(shown)).mean()
            maker.zero_grad()
            (adversary + (fake - real).abs().mean()).backward()
            if how != "unstepped" and how != "frozen" and step % critic == critic - 1:
                maker.step()
            if how == "frozen":
                judges.step()
            judge.requires_grad_(True)

    gc.collect()
    done = run_check(work, max_steps=None)
    assert done.error is None
    assert list(done.report.notes) == []
    return done


def test_a_generator_that_is_judged_by_a_detached_sample() -> None:
    cause = adversarial("detached").report.causes[0]
    assert cause.code == "HD106"
    assert "adversary sends its gradient only to parameters that the next step()" in cause.message
    assert cause.root.where.line is not None


def test_the_wrong_optimizer_steps() -> None:
    found = adversarial("frozen", steps=16).report.findings
    assert "HD106" in {item.code for item in found}  # and HD409: momentum moves what is frozen


def test_an_optimizer_that_never_steps(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(WRONG_STEP)

    def checked(text: str) -> list[Finding]:
        script.write_text(text)
        linecache.checkcache(str(script))
        gc.collect()
        done = run_check(lambda: runpy.run_path(str(script)), max_steps=None)
        return [item for item in done.report.findings if item.code == "HD106"]

    [finding] = checked(WRONG_STEP)
    assert "an optimizer whose step() is never called" in finding.message
    assert WRONG_STEP.splitlines()[(finding.where.line or 1) - 1].endswith("# the wrong one")
    assert checked(WRONG_STEP.replace("judges.step()  #", "makers.step()  #")) == []
    # It may begin later.
    assert checked(WRONG_STEP + "    if step > 500:\n        makers.step()\n") == []


def test_adversarial_trainings_that_are_right() -> None:
    for done in (adversarial("right"), adversarial("right", critic=5)):
        assert [item for item in done.report.findings if item.severity >= Severity.WARNING] == []


def test_parameters_of_two_optimizers() -> None:
    """InfoGAN: a third optimizer holds generator and discriminator, and steps for its own loss."""

    def work() -> None:
        torch.manual_seed(0)
        make = nn.Linear(4, 3)
        judge = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
        makers = torch.optim.Adam(make.parameters())
        judges = torch.optim.Adam(judge.parameters())
        both = torch.optim.Adam([*make.parameters(), *judge.parameters()])
        for _ in range(8):
            real, fake = torch.rand(16, 3), make(torch.randn(16, 4))
            makers.zero_grad()
            maker_loss = F.softplus(-judge(fake)[:, 0]).mean()
            maker_loss.backward()
            makers.step()
            judges.zero_grad()
            judge_loss = F.softplus(judge(fake.detach())[:, 0] - judge(real)[:, 0]).mean()
            judge_loss.backward()
            judges.step()
            both.zero_grad()
            code = torch.randn(16, 4)
            code_loss = F.mse_loss(judge(make(code))[:, 1], code[:, 0])
            code_loss.backward()
            both.step()

    gc.collect()
    done = run_check(work, max_steps=None)
    assert done.error is None
    assert [item for item in done.report.findings if item.code == "HD106"] == []


def test_a_perturbed_pass_of_sam_is_used() -> None:
    """The first gradients only move the weights away and are cleared; two optimizers share them."""

    def work() -> None:
        torch.manual_seed(0)
        body, head = nn.Linear(6, 16), nn.Linear(16, 1)
        both = [torch.optim.Adam(item.parameters(), 1e-2) for item in (body, head)]
        for _ in range(8):
            x = torch.randn(16, 6)
            F.mse_loss(head(body(x).tanh()), x[:, :1]).backward()
            weights = [*body.parameters(), *head.parameters()]
            moves = [0.01 * p.grad for p in weights if p.grad is not None]
            with torch.no_grad():
                for p, move in zip(weights, moves, strict=True):
                    p.add_(move)
            for optimizer in both:
                optimizer.zero_grad()
            F.mse_loss(head(body(x).tanh()), x[:, :1]).backward()
            with torch.no_grad():
                for p, move in zip(weights, moves, strict=True):
                    p.sub_(move)
            for optimizer in both:
                optimizer.step()
                optimizer.zero_grad()

    gc.collect()
    found = run_check(work, max_steps=None).report.findings
    assert [item for item in found if item.code == "HD106"] == []
