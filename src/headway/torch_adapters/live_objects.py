"""Finds live objects: the models and optimizers of a script, and the variables that refer to
tensors.
"""

from __future__ import annotations

import functools
import inspect
import sys
import weakref
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import FrameType, FunctionType, MethodType, ModuleType
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from headway.torch_adapters.autograd_graph import walk_graph
from headway.torch_adapters.frames import current_frame, is_internal_file
from headway.torch_adapters.patching import wrap_function
from headway.torch_adapters.private_parts import private_part

# Finding what an unmodified script trains: its optimizers and its models.

# Nobody hands them over, so they are looked for among all objects alive, once, when the first
# backward pass shows which parameters the loss depends on.

MAX_GRAPH_NODES = 200_000
"""More than any model people train by script has; a limit all the same."""
MAX_WRAPPERS = 4
"""Optimizers around one another."""


def find_optimizers(
    stepped: Container[int] = (), *, among: Iterable[Any] | None = None
) -> list[Optimizer]:
    """Every optimizer that holds parameters, in the order they were made, as far as it is known.

    Of a wrapper and the optimizer inside it, one steps: the wrapper, unless it belongs to a
    framework, or the script steps the inner one itself. `stepped`: identities of those that step.
    `among`: the objects to search, by default all.
    """
    found = [item for item in _of_kind(Optimizer, among) if _groups(item)]
    dropped: set[int] = set()
    for outer in found:
        inner = list(_wrapped_optimizers(outer))
        if _passes_on(outer) or any(id(item) in stepped for item in inner):
            dropped.update([id(outer)] if inner else [])
        else:
            dropped.update(map(id, inner))
    return [item for item in found if id(item) not in dropped]


def find_models(
    optimizers: Sequence[Optimizer],
    roots: Sequence[Tensor] = (),
    *,
    among: Iterable[Any] | None = None,
) -> list[nn.Module]:
    """The outermost modules that own what is optimized, or what the losses depend on.

    `among`: the objects to search, by default all.
    """
    wanted = {id(p) for item in optimizers for group in item.param_groups for p in group["params"]}
    wanted |= {id(leaf) for leaf in find_leaves(roots)}
    modules: list[nn.Module] = _of_kind(nn.Module, among)
    inner = {id(child) for module in modules for child in _children(module)}
    return [
        module
        for module in modules
        if id(module) not in inner and any(id(p) in wanted for p in module.parameters())
    ]


class LooseTensors(nn.Module):
    """Tensors that are trained and belong to no module: `optimizer = SGD([w, b])`."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        super().__init__()
        for number, tensor in enumerate(tensors):
            # Past the setter, which takes nothing but an nn.Parameter.
            self._parameters[f"tensor{number}"] = tensor  # type: ignore[assignment]


def wrap_loose_tensors(optimizers: Sequence[Optimizer]) -> list[nn.Module]:
    """The optimizers' tensors as a model, for a script that has none."""
    held = [p for item in optimizers for group in item.param_groups for p in group["params"]]
    return [LooseTensors(held)] if held else []


def find_leaves(roots: Iterable[Tensor]) -> list[Tensor]:
    """The tensors whose gradients a backward pass from these roots will fill."""
    found = []
    for node in walk_graph((root.grad_fn for root in roots), most=MAX_GRAPH_NODES):
        variable = getattr(node, "variable", None)
        if isinstance(variable, Tensor):
            found.append(variable)
    return found


_all_objects: Callable[[], list[Any]] = private_part(
    "gc.get_objects",
    list,
    without="models, optimizers and leaking tensors of a script are not found",
)


def find_instances(*kinds: type) -> list[Any]:
    """Every live object of these classes that the garbage collector knows."""
    # By type, not isinstance: some objects answer that question with an import or a warning. Each
    # type is tested once: there are a million objects and a few thousand types.
    alive = _all_objects()
    wanted = {kind for kind in set(map(type, alive)) if issubclass(kind, kinds)}
    return [item for item in alive if type(item) in wanted] if wanted else []


class KnownInstances:
    """Live objects of some classes. All objects are searched once; later ones are noted as they are
    made, because a search takes as long as several steps. A copy that was made without `__init__`
    is not noted."""

    def __init__(self, *kinds: type) -> None:
        self._kinds = kinds
        self._found: list[weakref.ref[Any]] = []
        self._uninstall: list[Callable[[], None]] = []

    def find(self) -> list[Any]:
        """Those that are alive."""
        if not self._uninstall:
            self._uninstall = [
                wrap_function(kind, "__init__", self._note_new) for kind in self._kinds
            ]
            self._found = [*map(weakref.ref, find_instances(*self._kinds))]
        self._found = [item for item in self._found if item() is not None]
        return [known for item in self._found if (known := item()) is not None]

    def close(self) -> None:
        """Restore the classes. The next `find` searches again."""
        while self._uninstall:
            self._uninstall.pop()()

    def _note_new(self, original: Any) -> Any:
        @functools.wraps(original)
        def initialise(item: Any, *args: Any, **kwargs: Any) -> None:
            self._found.append(weakref.ref(item))
            original(item, *args, **kwargs)

        return initialise


def _of_kind(kind: type, among: Iterable[Any] | None) -> list[Any]:
    if among is None:
        return find_instances(kind)
    return [item for item in among if issubclass(type(item), kind)]


def _groups(optimizer: Optimizer) -> list[dict[str, object]]:
    groups = getattr(optimizer, "param_groups", None)
    return groups if isinstance(groups, list) else []


def wrapped_optimizer(optimizer: Optimizer) -> Optimizer | None:
    """The optimizer that a wrapper passes on to: Accelerate's, Lightning's, SAM's."""
    for value in vars(optimizer).values():
        if value is not optimizer and issubclass(type(value), Optimizer):
            return value  # type: ignore[no-any-return]
    return None


def _passes_on(wrapper: Optimizer) -> bool:
    """Whether it belongs to a framework: while gradients accumulate, its `step` does nothing."""
    return type(wrapper).__module__.partition(".")[0] in _FRAMEWORKS


_FRAMEWORKS = frozenset(
    [
        "accelerate",
        "deepspeed",
        "fairscale",
        "lightning",
        "lightning_fabric",
        "pytorch_lightning",
        "torch",
        "torch_xla",
        "transformers",
        "trl",
    ]
)


def _wrapped_optimizers(optimizer: Optimizer) -> Iterator[Optimizer]:
    """Those inside of it, one in another."""
    inner = wrapped_optimizer(optimizer)
    for _ in range(MAX_WRAPPERS):
        if inner is None:
            return
        yield inner
        inner = wrapped_optimizer(inner)


def _children(module: nn.Module) -> Iterable[nn.Module]:
    children = vars(module).get("_modules") or {}
    return [child for child in children.values() if child is not None]


# Who holds on to tensors: the name under which the user's code keeps them.

# The backward pass is called from the training loop, so what the loop keeps hangs on the variables
# of the functions up the stack, or on the modules they are in. Looked for only when there is
# reason to.

MAX_OBJECTS = 20_000
MAX_ITEMS = 256
MAX_DEPTH = 3
"""How far the search goes: a list in a dict of an attribute, and no further."""
MAX_FIELDS = 16
"""Of an entry that is taken for a record: above that it is a container of its own."""
_LEAVES = (str, bytes, int, float, complex, bool, type(None))
_CODE = (type, ModuleType, FunctionType, MethodType, FrameType)


@dataclass(frozen=True, slots=True)
class Referrer:
    """The object that refers to the tensors."""

    name: str
    kind: str
    function: str
    count: int
    """How many of them are known to be in it."""
    bound: int | None = None
    """The most it ever holds, where it has such a limit."""

    def __str__(self) -> str:
        return f"the {self.kind} `{self.name}` in {self.function}"


def find_referrer(is_kept: Callable[[Tensor], bool]) -> Referrer | None:
    """The variable, attribute or container of the user's that keeps most of the tensors meant."""
    best: Referrer | None = None
    seen: set[int] = set()
    left = MAX_OBJECTS
    for function, names in _scopes():
        todo = deque((name, value, 0) for name, value in names.items())
        while todo and left > 0:
            name, value, depth = todo.popleft()
            if isinstance(value, (*_LEAVES, *_CODE)) or id(value) in seen:
                continue
            seen.add(id(value))
            left -= 1
            found = _describe_referrer(name, value, function, is_kept)
            if found is not None and (best is None or found.count > best.count):
                best = found
            if depth < MAX_DEPTH:
                todo.extend((inner, item, depth + 1) for inner, item in _inside(name, value))
    return best


def _describe_referrer(
    name: str, value: Any, function: str, is_kept: Callable[[Tensor], bool]
) -> Referrer | None:
    kind = type(value).__name__
    if _is_tensor(value):
        return Referrer(name, "tensor", function, 1) if is_kept(value) else None
    items = _items(value)
    if items is None:
        return None
    count = sum(1 for item in items if _refers_to(item, is_kept))
    if not count:
        return None
    return Referrer(name, kind, function, count, getattr(value, "maxlen", None))


def _refers_to(item: Any, is_kept: Callable[[Tensor], bool]) -> bool:
    """Whether an entry of a container is meant, or is a small record with one in it."""
    if _is_tensor(item):
        return is_kept(item)
    if isinstance(item, (*_LEAVES, *_CODE)):
        return False
    inside = item if isinstance(item, (Mapping, list, tuple)) else _attributes(item)
    if len(inside) > MAX_FIELDS:
        return False
    parts = list(inside.values()) if isinstance(inside, Mapping) else inside
    return any(is_kept(part) for part in parts if _is_tensor(part))


def _items(value: Any) -> list[Any] | None:
    """The first and the last items of a container."""
    if isinstance(value, Mapping):
        value = list(value.values())
    elif isinstance(value, (set, frozenset)):
        value = list(value)
    elif not isinstance(value, (list, tuple, deque)):
        return None
    half = MAX_ITEMS // 2
    if len(value) <= MAX_ITEMS:
        return list(value)
    return [value[at] for at in (*range(half), *range(len(value) - half, len(value)))]


def _inside(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """What is within, under the names it has there; tensors in containers were counted."""
    if isinstance(value, Mapping):
        for key, item in list(value.items())[:MAX_ITEMS]:
            if not _is_tensor(item):
                yield f"{name}[{key!r:.40}]", item
    elif (items := _items(value)) is not None:
        for item in items:
            if not _is_tensor(item):
                yield f"{name}[…]", item
    elif not _is_tensor(value):
        for attribute, item in list(_attributes(value).items()):
            yield f"{name}.{attribute}", item


def _attributes(value: Any) -> dict[str, Any]:
    found: dict[str, Any] = getattr(value, "__dict__", {})
    return found if type(found) is dict else {}


def _is_tensor(value: Any) -> bool:
    return issubclass(type(value), Tensor)  # `isinstance` may ask the object, which may answer


def _scopes() -> Iterator[tuple[str, dict[str, Any]]]:
    """The user's functions up the stack with their variables, then their modules with theirs."""
    modules: dict[int, dict[str, Any]] = {}
    frame = current_frame(0)
    while frame is not None:
        if not is_internal_file(frame.f_code.co_filename):
            modules[id(frame.f_globals)] = frame.f_globals
            if frame.f_locals is not frame.f_globals:
                yield f"{frame.f_code.co_name}()", _locals(frame)
        frame = frame.f_back
    for names in modules.values():
        public = {name: value for name, value in names.items() if not name.startswith("__")}
        yield f"the module {names.get('__name__')}", public


def _locals(frame: FrameType) -> dict[str, Any]:
    names = dict(frame.f_locals)
    if sys.version_info < (3, 13) and frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        # A copy that Python keeps with the frame: it would hold this step's tensors on.
        frame.f_locals.clear()
    return names


def may_train(leaves: Sequence[Tensor]) -> bool:
    """Whether a backward pass from these leaves may fill the gradient of a parameter."""
    return not leaves or any(isinstance(leaf, nn.Parameter) for leaf in leaves)


def parameter_ids(optimizer: Optimizer) -> set[int]:
    """The identities of an optimizer's parameters."""
    return {id(p) for group in optimizer.param_groups for p in group["params"]}


def share_no_parameter(some: Sequence[Optimizer], others: Sequence[Optimizer]) -> bool:
    """Whether no parameter belongs to optimizers of both groups."""
    known = {at for optimizer in some for at in parameter_ids(optimizer)}
    return all(known.isdisjoint(parameter_ids(optimizer)) for optimizer in others)
