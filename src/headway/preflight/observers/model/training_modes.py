"""Which layers are in training mode while the model trains, and while it is evaluated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from headway.preflight.observer import Observer, TorchCall
from headway.preflight.observers.model.mode_layers import ModeLayer, ModeSwitches, find_mode_layers
from headway.torch_adapters.compat import Dropout, base_tensor, find_aliases
from headway.torch_adapters.nested_state import find_tensors
from headway.torch_adapters.op_schema import REDUCTION_POSITION

DROPOUTS = find_aliases("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout")
ATTENTION = find_aliases("scaled_dot_product_attention")
LOSSES = find_aliases(*REDUCTION_POSITION, "multi_margin_loss", "hinge_embedding_loss", "ctc_loss")
COMPARES = find_aliases("eq", "__eq__", "ne")
DIFFERENCES = find_aliases("sub", "__sub__", "__rsub__", "rsub", "subtract")
CHOICES = find_aliases("argmax")
TAKEN_AWAY = find_aliases("numpy", "tolist", "cpu")
"""Classes that leave torch are compared with labels elsewhere …"""
FEWEST_CHOICES = 4
"""… unless they are so few that an agent may be acting."""
LASTS = 2
"""Number of steps that a state must last to be reported."""
SAMPLED = 2
"""A pass repeated so often on the very same input draws samples: dropout is wanted there."""
MOST_EVALUATIONS = 3
"""Maximum number of reported evaluations of one kind."""
NAMED = 8


@dataclass(slots=True)
class _Forward:
    """One call of an outermost module."""

    root: nn.Module
    grad: bool
    whole: bool
    """Whether the module itself was in training mode."""
    layers: list[tuple[ModeLayer, bool, float]]
    """Each with its mode and rate at that moment."""
    place: Any
    inputs: list[ref[Any]]
    functional: list[tuple[float, bool, Any]] = field(default_factory=list)
    """Rates, modes and lines of dropouts that are calls, not modules."""
    outputs: list[ref[Any]] = field(default_factory=list)
    switched: Any = None
    """The line that put the module into training mode after the last step."""
    repeats: int = 0
    """How often the forward before had the same input, without a backward in between."""


class TrainingModes(Observer):
    """Reports how the model trains (`training-mode`) and how it is evaluated (`evaluation`)."""

    functions = (
        *(*DROPOUTS, *ATTENTION, *LOSSES, *COMPARES, *DIFFERENCES),
        *(*CHOICES, *TAKEN_AWAY),
    )

    def start(self) -> None:
        self._layers: dict[int, tuple[ref[Any], list[ModeLayer]]] = {}
        self._running: _Forward | None = None
        self._pending: list[_Forward] = []
        """Forwards with gradients since the last backward."""
        self._training: dict[int, list[_Forward]] = {}
        """Those that led to a backward in this step, by their root."""
        self._evaluated: _Forward | None = None
        """The last forward pass, if it was one without gradients that is not judged yet."""
        self._before: _Forward | None = None
        """The last forward without gradients since the last backward."""
        self._sampled: set[int] = set()
        """Roots that were run on one input again and again: dropout is wanted there."""
        self._noisy: set[int] = set()
        """Roots that have had an active dropout in training."""
        self._between: set[int] = set()
        """Roots that ran without gradients or in evaluation mode since then."""
        self._updated: set[int] = set()
        """Batch norms that have updated their statistics, if only in some of the passes."""
        self._states: dict[int, tuple[Any, int]] = {}
        self._evaluations: dict[tuple[Any, ...], int] = {}
        self._held: list[dict[str, Any]] = []
        """Evaluations to report once it is clear that the input is not repeated."""
        self._chosen: ref[Any] | None = None
        """Classes picked from an output."""
        self._switches = ModeSwitches(self.script)

    # Forwards.

    def module_begins(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        layers = self._layers_of(module)
        self._running = forward = _Forward(
            module,
            torch.is_grad_enabled(),
            module.training,
            [(item, item.layer.training, item.rate) for item in layers],
            None,
            [ref(item) for _, item in find_tensors(args)],
        )
        if not forward.grad or not forward.whole:
            self._between.add(id(module))
        norms = (item.layer for item in layers if item.is_norm and item.layer.training)
        self._updated.update(id(norm) for norm in norms if getattr(norm, "momentum", 0.1) != 0)

    def _keeps_initial(self, norm: Any) -> bool:
        """Whether momentum is 0 and always was; SAM sets it to 0 for its second pass only."""
        return getattr(norm, "momentum", 0.1) == 0 and id(norm) not in self._updated

    def module_ended(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        forward, self._running = self._running, None
        if forward is None or forward.root is not module:
            return
        if next(module.parameters(), None) is None:
            return  # a loss, most likely
        if forward.grad:
            self._pending.append(forward)
            del self._pending[:-64]
            self._evaluated = self._before = None
            return
        forward.outputs = [ref(item) for _, item in find_tensors(output)]
        before = self._before
        if before is not None and before.root is module and _same(before.inputs, forward.inputs):
            forward.repeats = before.repeats + 1
            if forward.repeats >= SAMPLED:
                self._sampled.add(id(module))
                self._held.clear()
        else:
            self._report_held()
        forward.place = self.script.place()
        forward.switched = self._switches.to_training(module)
        self._evaluated = self._before = forward

    def function_ended(self, call: TorchCall) -> None:
        if call.function in DROPOUTS or call.function in ATTENTION:
            self._dropped(call)
        elif torch.is_grad_enabled() or self._evaluated is None:
            return
        elif call.function in CHOICES:
            result = call.result
            if isinstance(result, Tensor) and result.numel() >= FEWEST_CHOICES:
                self._chosen = ref(result)
        elif call.function in TAKEN_AWAY:
            if self._chosen is not None and self._chosen() is call.argument(0, "self"):
                self._judged("argmax")
        elif call.function not in DIFFERENCES or self._is_about_output(call):
            self._judged(call.name)

    def _dropped(self, call: TorchCall) -> None:
        forward = self._running
        if forward is None or self._is_a_dropout_of(forward.root):
            return
        if call.function in ATTENTION:
            rate, training = call.argument(4, "dropout_p", 0.0), True
        else:
            rate, training = call.argument(1, "p", 0.5), call.argument(2, "training", True)
        if isinstance(rate, (int, float)):
            active = not forward.grad and rate > 0 and training
            place = self.script.place() if active else None
            forward.functional.append((float(rate), bool(training), place))

    def _is_a_dropout_of(self, root: nn.Module) -> bool:
        """Whether the dropout that runs is a module of the model, which has a mode of its own.

        One in a plain list is not: `model.eval()` does not reach it.
        """
        runs = self.script.stack[-1]
        if not isinstance(runs, Dropout):
            return False
        return not runs.training or any(item is runs for item in root.modules())

    # Training.

    def backward_begins(self, roots: Sequence[Tensor]) -> None:
        for forward in self._pending:
            self._training.setdefault(id(forward.root), []).append(forward)
        self._pending = []
        self._evaluated = self._before = None
        self._report_held()

    def step_begins(self, optimizer: Optimizer) -> None:
        training, self._training = self._training, {}
        trained = self._trained_ids()
        for at, forwards in training.items():
            # Attacks and probes run in evaluation mode before the forward that trains.
            forward = next((item for item in reversed(forwards) if item.whole), forwards[-1])
            self._report_training(at, forward, trained)

    def finished(self) -> None:
        self._report_held()
        for at, (facts, steps) in self._states.items():
            if 0 < steps < LASTS:
                self._states[at] = (facts, LASTS)
                self._report_mode(facts, steps)

    def _report_training(self, at: int, forward: _Forward, trained: set[int]) -> None:
        layers = [item for item in forward.layers if _trains(item[0].owner, trained)]
        off = [item for item, mode, rate in layers if rate > 0 and not mode]
        on = [item for item, mode, rate in layers if rate > 0 and mode]
        norms_off = [item for item, mode, _ in layers if item.is_norm and not mode]
        norms_on = [item for item, mode, _ in layers if item.is_norm and mode]
        calls_off = sum(1 for rate, mode, _ in forward.functional if rate > 0 and not mode)
        calls_on = sum(1 for rate, mode, _ in forward.functional if rate > 0 and mode)
        noisy = bool(on) or calls_on > 0
        latched = at in self._noisy and not noisy and forward.whole and not off and not calls_off
        after_evaluation = at in self._between
        if noisy:
            self._noisy.add(at)
            self._between.discard(at)
        prefix = self._prefix(forward.root)
        facts = {
            "model": prefix.rstrip(".") or type(forward.root).__name__,
            "training": forward.whole,
            "dropouts_off": [prefix + item.path for item in off][:NAMED],
            "dropouts_on": len(on),
            "calls_off": calls_off,
            "calls_on": calls_on,
            "norms_off": [prefix + item.path for item in norms_off][:NAMED],
            "norms_on": len(norms_on),
            "wholly_trained": bool(off) and all(_wholly(item.owner, trained) for item in off),
            "latched": latched,
            "after_evaluation": latched and after_evaluation,
            "momentum_zero": [
                prefix + item.path
                for item in norms_on
                if self._keeps_initial(item.layer) and item.layer.track_running_stats
            ][:NAMED],
        }
        before, steps = self._states.get(at, (None, 0))
        if before != facts:
            if steps > LASTS and facts["latched"]:
                facts["was"] = "active"
            self._states[at] = (facts, 1)
            return
        self._states[at] = (facts, steps + 1)
        if steps + 1 == LASTS:
            self._report_mode(facts, LASTS, forward.root)

    def _report_mode(
        self, facts: dict[str, Any], steps: int, root: nn.Module | None = None
    ) -> None:
        place = self._switches.zeroed if facts["latched"] else self._switches.to_evaluation(root)
        found = {**facts, "steps": steps}
        self.evidence.record("training-mode", found if place is None else {**found, "place": place})

    # Evaluation.

    def _judged(self, by: str) -> None:
        """The last forward ran without gradients, and now the script computes a metric of it."""
        forward, self._evaluated = self._evaluated, None
        if forward is None or self.script.step < 1 or id(forward.root) in self._sampled:
            return
        trained = self._trained_ids()
        if not any(id(parameter) in trained for parameter in forward.root.parameters()):
            return
        drops = [item for item, mode, rate in forward.layers if rate > 0 and mode]
        norms = [
            item
            for item, mode, _ in forward.layers
            if item.is_norm and mode and item.layer.track_running_stats
        ]
        unused = [
            item
            for item, mode, _ in forward.layers
            if item.is_norm
            and not mode
            and (not item.layer.track_running_stats or self._keeps_initial(item.layer))
            and _trains(item.owner, trained)
        ]
        calls = [place for rate, mode, place in forward.functional if rate > 0 and mode]
        active = bool(drops or norms or calls)
        key = (id(forward.root), forward.whole, active)
        self._evaluations[key] = self._evaluations.get(key, 0) + 1
        if self._evaluations[key] > MOST_EVALUATIONS:
            return
        prefix = self._prefix(forward.root)
        self._held.append(
            {
                "model": prefix.rstrip(".") or type(forward.root).__name__,
                "training": forward.whole,
                "dropouts": [prefix + item.path for item in drops][:NAMED],
                "norms": [prefix + item.path for item in norms][:NAMED],
                "calls": len(calls),
                "call_place": next(filter(None, calls), None),
                "made_at": self.script.origins.of_module(unused[0].layer) if unused else None,
                "unused_statistics": [prefix + item.path for item in unused][:NAMED],
                "kept_statistics": any(item.layer.track_running_stats for item in unused),
                "measured_by": by,
                "place": forward.switched or forward.place,
            }
        )

    def _report_held(self) -> None:
        held, self._held = self._held, []
        for facts in held:
            self.evidence.record("evaluation", facts)

    def _is_about_output(self, call: TorchCall) -> bool:
        """Whether a difference is taken between the output and another tensor of its size."""
        outputs = [item() for item in self._evaluated.outputs] if self._evaluated else []
        others = [item for item in call.args[:2] if isinstance(item, Tensor) and item.dim() > 0]
        return len(others) == 2 and any(
            item is output or base_tensor(item) is output
            for item in others
            for output in outputs
            if output is not None
        )

    # Names.

    def _layers_of(self, module: nn.Module) -> list[ModeLayer]:
        known = self._layers.get(id(module))
        if known is None or known[0]() is not module:
            known = self._layers[id(module)] = (ref(module), find_mode_layers(module))
        return known[1]

    def _trained_ids(self) -> set[int]:
        return {
            id(parameter)
            for optimizer in self.script.optimizers
            for group in optimizer.param_groups
            for parameter in group["params"]
            if parameter.requires_grad
        }

    def _prefix(self, root: nn.Module) -> str:
        """What stands before the paths within this module."""
        if any(root is model for model in self.script.models):
            return ""
        path = self.script.path_of(root)
        return "" if path == type(root).__name__ else f"{path}."


def _trains(module: nn.Module, trained: set[int]) -> bool:
    return any(id(parameter) in trained for parameter in module.parameters())


def _wholly(module: nn.Module, trained: set[int]) -> bool:
    return all(id(parameter) in trained for parameter in module.parameters())


def _same(before: list[ref[Any]], now: list[ref[Any]]) -> bool:
    """Whether two calls were given the very same tensors."""
    pairs = list(zip(before, now, strict=False))
    return bool(now) and len(before) == len(now) and all(a() is b() for a, b in pairs)
