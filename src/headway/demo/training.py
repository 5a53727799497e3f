"""The training loop, as a user would write it: with the guard and without."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import NamedTuple

import torch

from headway import Finding, Guard, Settings
from headway.demo.alice_dataset import Alice, Batch
from headway.demo.model import CharacterModel, loss_of
from headway.explain.explanation import Explanation
from headway.policy import Action

SEED = 0
RATE = 4e-3

Watcher = Callable[[int, float], None]
"""Called with the step and its loss after every step."""


class ModelAndOptimizer(NamedTuple):
    """A model and its optimizer."""

    model: CharacterModel
    optimizer: torch.optim.AdamW

    @classmethod
    def new(cls, data: Alice) -> ModelAndOptimizer:
        """A new learner with a fixed seed."""
        torch.manual_seed(SEED)
        return cls.around(CharacterModel(len(data.alphabet)))

    @classmethod
    def around(cls, model: CharacterModel) -> ModelAndOptimizer:
        """A model with a new optimizer."""
        return cls(model, torch.optim.AdamW(model.parameters(), lr=RATE))

    def copy(self) -> ModelAndOptimizer:
        """A deep copy of model and optimizer."""
        learner = ModelAndOptimizer.around(deepcopy(self.model))
        learner.optimizer.load_state_dict(deepcopy(self.optimizer.state_dict()))
        return learner

    def fingerprint(self) -> str:
        """A hash of the weights and the optimizer state."""
        digest = hashlib.sha256()
        moments = [item for state in self.optimizer.state.values() for item in state.values()]
        for tensor in [*self.model.parameters(), *moments]:
            digest.update(torch.as_tensor(tensor).detach().contiguous().numpy().tobytes())
        return digest.hexdigest()

    def nonfinite_weights(self) -> int:
        """How many weights are NaN or infinite."""
        return sum(int((~torch.isfinite(weight)).sum()) for weight in self.model.parameters())

    @property
    def size(self) -> int:
        """How many weights there are."""
        return sum(weight.numel() for weight in self.model.parameters())


class Guarded(NamedTuple):
    """The results of a guarded run."""

    learner: ModelAndOptimizer
    losses: dict[int, float]
    findings: list[Finding]
    actions: list[Action]
    explanations: list[Explanation]
    before: ModelAndOptimizer
    """A copy of the learner before the bad step."""
    fingerprint_after: str
    """Fingerprint of the learner right after the bad step."""


def train_guarded(data: Alice, *, bad: int, run_dir: Path, notify: Watcher) -> Guarded:
    """Train under the guard; record the state before and after the bad step."""
    learner = ModelAndOptimizer.new(data)
    model, optimizer = learner
    losses: dict[int, float] = {}
    before, after = learner, ""
    # The settings of the working directory do not apply to the demo.
    with Guard(model, optimizer, run_dir=run_dir, settings=Settings()) as guard:
        for batch in guard(data):
            if batch.number == bad:
                before = learner.copy()
            loss = loss_of(model, batch)
            guard.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            losses[batch.number] = loss.item()
            if batch.number == bad:
                after = learner.fingerprint()
            if not guard.replaying:
                notify(batch.number, losses[batch.number])
    findings, explanations = guard.findings, guard.explanations
    return Guarded(learner, losses, findings, guard.actions, explanations, before, after)


def step_unguarded(learner: ModelAndOptimizer, batch: Batch) -> float:
    """One plain step; its loss."""
    loss = loss_of(learner.model, batch)
    loss.backward()
    learner.optimizer.step()
    learner.optimizer.zero_grad()
    return loss.item()


def train_clean(
    data: Alice, *, without: int, notify: Watcher
) -> tuple[ModelAndOptimizer, dict[int, float]]:
    """Train without a guard and without one of the batches."""
    learner = ModelAndOptimizer.new(data)
    losses: dict[int, float] = {}
    for batch in data:
        if batch.number != without:
            losses[batch.number] = step_unguarded(learner, batch)
            notify(batch.number, losses[batch.number])
    return learner, losses
