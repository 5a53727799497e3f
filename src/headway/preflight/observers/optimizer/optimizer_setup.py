"""What the optimizers hold and how they are set, and the user's lines that call backward, step and
clip.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from headway.core.facts import LISTED
from headway.engine import PLACES
from headway.preflight.observer import Observer, TorchCall
from headway.preflight.script_context import observe_method
from headway.preflight.source_lines import find_line
from headway.torch_adapters.patching import call_after

# Whether the optimizers hold what the losses reach, and whether the losses reach what they hold.

# A parameter counts as reached once a backward pass has left a gradient on it.

COVERAGE_TOPIC = "optimizer-coverage"
LOOKS = (2, 6, 20)
"""Steps at which it is inspected; a short check reaches the first one too."""
_WRAPPERS = ("DataParallel", "DistributedDataParallel", "FullyShardedDataParallel", "DDP", "FSDP")


class OptimizerCoverage(Observer):
    """Compares the optimizers' tensors with those that get gradients."""

    def start(self) -> None:
        self._reached: dict[int, weakref.ref[Tensor]] = {}
        self._places: dict[int, Any] = {}
        self._made_when: dict[int, int] = {}
        self._stepped: set[int] = set()
        """Parameters that some optimizer has stepped."""
        self._loaded: set[int] = set()
        self._looked = 0
        self._steps = 0
        self._stage: tuple[int, ...] = ()
        self._registered = 0
        self._members: tuple[int, ...] = ()
        """The parameters of the models when one was registered last."""
        self._said: dict[str, Any] | None = None
        # Before anything else, so that the coverage includes it.
        self.evidence.record(COVERAGE_TOPIC, {"looking": True})

    def optimizer_made(self, optimizer: Optimizer) -> None:
        self._places[id(optimizer)] = self.script.place()
        self._made_when[id(optimizer)] = self.script.origins.now
        self.script.origins.follow_callers = True

    def state_loaded(self, owner: Any, state: Any, result: Any) -> None:
        if isinstance(owner, nn.Module):
            self._loaded.update(id(p) for p in owner.parameters())

    def backward_ended(self, roots: Sequence[Tensor]) -> None:
        stage = (*map(id, self.script.optimizers), *self._known_members())
        if stage != self._stage:  # other optimizers or layers train now: the last ones are done
            self._stage, self._steps = stage, 0
            self._reached.clear()
        if self._steps <= LOOKS[-1]:
            held = [p for item in self.script.optimizers for p in _held(item)]
            for parameter in (*_parameters(self.script.models), *held):
                if parameter.grad is not None and id(parameter) not in self._reached:
                    self._reached[id(parameter)] = weakref.ref(parameter)

    def _known_members(self) -> tuple[int, ...]:
        """The parameters of all models; asked for again only where one was registered since."""
        now = self.script.origins.now
        if now != self._registered:
            self._registered = now
            self._members = tuple(sorted({id(p) for p in _parameters(self.script.models)}))
        return self._members

    def step_ended(self, optimizer: Optimizer) -> None:
        self._steps += 1
        if self._steps <= LOOKS[-1]:
            self._stepped.update(id(p) for p in _held(optimizer))
        if self._steps in LOOKS:
            self._look()

    def finished(self) -> None:
        if self._steps and self._steps < LOOKS[0]:
            self._look()

    def _look(self) -> None:
        facts = self._facts()
        compared = {key: value for key, value in facts.items() if key != "steps"}
        if compared != self._said:
            self._said = compared
            self.evidence.record(COVERAGE_TOPIC, facts)

    def _facts(self) -> dict[str, Any]:
        optimizers, models = self.script.optimizers, self.script.models
        held = {id(p): p for item in optimizers for p in _held(item)}
        reached = [p for ref in self._reached.values() if (p := ref()) is not None]
        # An optimizer that has done its work may be gone: what it trained was trained.
        known = held.keys() | self._stepped
        outside = [p for p in reached if id(p) not in known and p.requires_grad]
        facts: dict[str, Any] = {
            "steps": self._steps,
            "optimizers": len(optimizers),
            "trainable": len(reached),
            "unoptimized": self._names(outside),
            "unoptimized_count": len(outside),
            "unoptimized_elements": sum(p.numel() for p in outside),
        }
        if not outside:
            return facts
        owners = [m for m in models if any(p is q for p in m.parameters() for q in outside)]
        trains = [m for m in owners if any(id(p) in held for p in m.parameters())]
        facts["passed_through"] = not trains and self._is_passed_through(held, outside)
        facts["loaded_body"] = self._is_loaded_body(trains, held, outside)
        stale = self._stale(held, outside)
        place = self._place_of(optimizers, stale or outside)
        if place is not None:
            facts["place"] = place
        replaced = self._replaced_at(outside, stale)
        if replaced is not None:
            facts |= {"place": replaced, "optimizer_at": place}
        if stale:
            pairs = _pairs(stale, outside)
            facts |= {
                "stale": self._names(stale),
                "stale_count": len(stale),
                "held": len(held),
                "paired": len(pairs),
                "device": [str(pairs[0][0].device), str(pairs[0][1].device)] if pairs else [],
                "dtype": [_dtype(pairs[0][0]), _dtype(pairs[0][1])] if pairs else [],
                "wrapper": self._wrapper(models, owners, stale),
            }
        return facts

    def _stale(self, held: dict[int, Tensor], outside: Sequence[Tensor]) -> list[Tensor]:
        """Tensors of the optimizers that are no module's, or of a model no loss reaches."""
        living: set[int] = set()
        for model in self.script.models:
            own = {id(p) for p in model.parameters()}
            if own & self._reached.keys():
                living |= own
        return [p for key, p in held.items() if key not in living and key not in self._reached]

    def _is_loaded_body(
        self, trains: Sequence[nn.Module], held: dict[int, Tensor], outside: Sequence[Tensor]
    ) -> bool:
        """Whether what stays as it is was loaded, and everything behind it is trained."""
        if not outside or not all(id(p) in self._loaded for p in outside):
            return False
        order = {id(p): at for model in trains for at, p in enumerate(model.parameters())}
        last = max((order.get(id(p), -1) for p in outside), default=-1)
        first = min((order[key] for key in held if key in order), default=-1)
        return last < first

    def _is_passed_through(self, held: dict[int, Tensor], outside: Sequence[Tensor]) -> bool:
        """Whether a model no optimizer trains is a tool: loaded, or an input alone is trained."""
        trained = any(id(p) in held for p in _parameters(self.script.models))
        return not trained or all(id(p) in self._loaded for p in outside)

    def _wrapper(
        self, models: Sequence[nn.Module], owners: Sequence[nn.Module], stale: Sequence[Tensor]
    ) -> str | None:
        """The class that was put around the model after its tensors were given away."""
        known = {id(p) for p in stale}
        old = {type(m) for m in models if any(id(p) in known for p in m.parameters())}
        for owner in owners:
            inner = [child for child in owner.children() if any(True for _ in child.parameters())]
            around = len(inner) == 1 and type(inner[0]) in old and type(owner) not in old
            if around or type(owner).__name__ in _WRAPPERS:
                return type(owner).__name__
        return None

    def _place_of(self, optimizers: Sequence[Optimizer], about: Sequence[Tensor]) -> Any:
        wanted = {id(p) for p in about}
        ranked = sorted(optimizers, key=lambda o: -sum(id(p) in wanted for p in _held(o)))
        places = [self._places.get(id(item)) for item in ranked]
        return next((place for place in places if place is not None), None)

    def _replaced_at(self, outside: Sequence[Tensor], stale: Sequence[Tensor]) -> Any:
        """The line that put new parameters into the model after the first optimizer was made.

        For the parameters of a new layer that is the line that puts the layer there. A module that
        adds a layer in a method of its own may do so on purpose: then it is the call.
        """
        made = min(self._made_when.values(), default=0)
        for parameter in outside:
            if not stale and not self._is_in_trained_model(parameter):
                continue  # a model that the optimizer was never given: nothing was added to it
            for item in (*self._path_to(parameter), parameter):
                place, when = self.script.origins.registered(item)
                if when > made:
                    return place if stale else self.script.origins.called_at(when) or place
        return None

    def _is_in_trained_model(self, parameter: Tensor) -> bool:
        """Whether an optimizer holds other parameters of the model that this one belongs to."""
        held = {id(p) for optimizer in self.script.optimizers for p in _held(optimizer)}
        for model in self.script.models:
            parameters = list(model.parameters())
            if any(item is parameter for item in parameters):
                return any(id(item) in held for item in parameters)
        return False

    def _path_to(self, parameter: Tensor) -> list[nn.Module]:
        """The modules that hold a parameter, the outermost first."""
        for model in self.script.models:
            for name, held in model.named_parameters():
                if held is parameter:
                    parts = name.split(".")[:-1]
                    ends = range(1, len(parts) + 1)
                    return [model.get_submodule(".".join(parts[:end])) for end in ends]
        return []

    def _names(self, tensors: Sequence[Tensor]) -> list[str]:
        return [
            self.script.name_of(p) or f"a tensor of shape {tuple(p.shape)}"
            for p in tensors[:LISTED]
        ]


def _held(optimizer: Optimizer) -> list[Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def _parameters(models: Iterable[nn.Module]) -> Iterable[Tensor]:
    for model in models:
        yield from model.parameters()


def _pairs(stale: Sequence[Tensor], outside: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
    """Tensors that stand for each other: of one shape, each used once."""
    free = list(outside)
    found = []
    for tensor in stale:
        twin = next((p for p in free if p.shape == tensor.shape), None)
        if twin is not None:
            free = [p for p in free if p is not twin]
            found.append((tensor, twin))
    return found


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


# What an optimizer is set to, as facts.


def read_number(value: Any) -> float | None:
    """A setting as a number: rates may be tensors."""
    if isinstance(value, bool) or not isinstance(value, (int, float, Tensor)):
        return None
    return float(value) if not isinstance(value, Tensor) or value.numel() == 1 else None


def describe_settings(optimizer: Optimizer) -> dict[str, Any]:
    """The settings that say how it steps; of several groups, the extremes."""
    groups: list[Mapping[str, Any]] = list(optimizer.param_groups)
    facts: dict[str, Any] = {"optimizer": type(optimizer).__name__}
    for key, choose in (("eps", min), ("weight_decay", max), ("momentum", max)):
        found = [value for group in groups if (value := read_number(group.get(key))) is not None]
        if found:
            facts[key] = choose(found)
    betas = groups[0].get("betas") if groups else None
    if isinstance(betas, (tuple, list)):
        facts["betas"] = [value for item in betas if (value := read_number(item)) is not None]
    facts["maximize"] = any(group.get("maximize") is True for group in groups)
    facts["fused"] = any(group.get("fused") is True for group in groups)
    dtypes = {str(p.dtype).removeprefix("torch.") for p in trainable_parameters(optimizer)}
    facts["dtypes"] = sorted(dtypes)
    return {**facts, **describe_rate(optimizer)}


def describe_rate(optimizer: Optimizer) -> dict[str, Any]:
    """The learning rate of the first group, and what it is scheduled around."""
    group: Mapping[str, Any] = optimizer.param_groups[0] if optimizer.param_groups else {}
    facts: dict[str, Any] = {}
    for key in ("lr", "initial_lr", "max_lr"):
        value = read_number(group.get(key))
        if value is not None:
            facts[key] = value
    return facts


def trainable_parameters(optimizer: Optimizer) -> list[Tensor]:
    """What it moves."""
    return [
        p
        for group in optimizer.param_groups
        for p in group["params"]
        if isinstance(p, Tensor) and p.requires_grad
    ]


def is_plain_parameter(parameter: Tensor) -> bool:
    """Whether a parameter can be changed and restored."""
    return (
        type(parameter) in (Tensor, torch.nn.Parameter)
        and parameter.layout is torch.strided
        and (parameter.is_cuda or not parameter.is_shared())
    )


class OptimizerSettings(Observer):
    """Tells what every optimizer is set to when it first steps."""

    def start(self) -> None:
        self._places: dict[int, Any] = {}
        self._told: list[Optimizer] = []

    def optimizer_made(self, optimizer: Optimizer) -> None:
        self._places[id(optimizer)] = self.script.place()

    def step_begins(self, optimizer: Optimizer) -> None:
        if any(optimizer is known for known in self._told):
            return
        self._told.append(optimizer)  # held, so that no identity is given twice
        facts = describe_settings(optimizer)
        self.evidence.record("optimizer", {**facts, "place": self._places.get(id(optimizer))})


# The user's lines that do what every training does: backward, step, clip, freeze, …

# Any finding that names no line of its own may point at one of them.
_SETTER = Tensor.requires_grad.__set__  # type: ignore[attr-defined]

CLIP_SETTING = r"\b(gradient_clip_val|max_grad_norm|clip_grad_norm|gradient_clipping)[\"']?\s*[=:]"
"""How users set clipping in frameworks."""


class TrainingLines(Observer):
    """Says each place once, and again where another line does the same later."""

    functions = (Tensor.requires_grad_, _SETTER)

    def start(self) -> None:
        self._said: dict[str, Any] = {}
        self.script.undo.enter_context(call_after(DataLoader, "__init__", self._loader_made))
        for name in ("half", "bfloat16", "to"):
            observe_method(self.script, nn.Module, name, after=self._cast)
        for owner in (Optimizer, nn.Module):
            observe_method(self.script, owner, "zero_grad", after=self._cleared)

    def _cleared(self, *_: Any, **__: Any) -> None:
        # A framework clears where it should; the user's own line may stand in the wrong place.
        if "clear" not in self._said and self.script.users_own_call():
            self._note("clear")

    def optimizer_made(self, optimizer: Optimizer) -> None:
        self._note("optimizer")

    def backward_begins(self, roots: Sequence[Tensor]) -> None:
        self._note_once("backward")

    def step_begins(self, optimizer: Optimizer) -> None:
        self._note_once("step")
        for number, known in enumerate(self.script.optimizers):  # as the guard counts them
            if known is optimizer and len(self.script.optimizers) > 1:
                self._note_once(f"step#{number}")

    def clipping(self, parameters: Sequence[Tensor], total: Tensor) -> None:
        if "clip" not in self._said:
            asked = None if self.script.users_own_call() else find_line(self.script, CLIP_SETTING)
            self._note("clip", asked)

    def pass_begun(self, loader: Any) -> None:
        self._note_once("loader")
        made = self.script.loader_lines.get(loader)
        if "loader_made" not in self._said and made is not None:
            self._note("loader_made", made)

    def _loader_made(self, loader: Any, args: Any, result: Any) -> None:
        self.script.loader_lines[loader] = self.script.place()

    def _cast(self, result: Any, module: nn.Module, *args: Any, **kwargs: Any) -> None:
        """A model is converted to half precision."""
        half = (torch.float16, torch.bfloat16)
        weight = next(iter(module.parameters()), None)
        if weight is not None and weight.dtype in half and self.script.users_own_call():
            self._note_once("half")

    def function_ended(self, call: TorchCall) -> None:
        wanted = call.argument(1, "requires_grad", True)
        if wanted is False and call.args and isinstance(call.args[0], Tensor):
            self._note("freeze")

    def _note_once(self, what: str) -> None:
        if what not in self._said:
            self._note(what)

    def _note(self, what: str, place: dict[str, Any] | None = None) -> None:
        place = place or self.script.place()
        if place is not None and place != self._said.get(what):
            self._said[what] = place
            self.evidence.record(PLACES, {what: place})
