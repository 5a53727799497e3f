"""What users pass to a guard: its arguments, trackers and loaders."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import shlex
import subprocess
import sys
import time
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib import metadata
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from headway._version import __version__
from headway.config import Settings
from headway.errors import LossNotScalar, UsageError
from headway.guard.brake.clip_rules import AdaptiveClip
from headway.guard.recovery.training_state import SCHEDULE
from headway.output.notices import Notices, Notifier
from headway.output.trackers.tracker_group import TrackerGroup, open_trackers
from headway.policy import Policy, require_policy
from headway.rerun import in_script
from headway.torch_adapters import optimizer_adapter
from headway.torch_adapters.frames import current_frame
from headway.torch_adapters.step_skipping import complete_optimizer

if TYPE_CHECKING:
    from headway.guard.guard import Guard
    from headway.guard.recorder import Recorder
    from headway.torch_adapters.process_groups.rank_group import RankGroup


def as_list(given: Any, kind: type, what: str) -> list[Any]:
    """One object of a kind, or several, as a list. Raises UsageError for anything else."""
    items = list(given) if isinstance(given, (list, tuple)) else [given]
    for item in items:
        if not isinstance(item, kind) and not (kind is Optimizer and _acts_as_optimizer(item)):
            raise UsageError(
                f"Guard takes a {what} or a list of them: got {type(item).__name__}, "
                f"which is not a torch {kind.__name__}"
            )
    if not items:
        raise UsageError(f"Guard needs at least one {what}")
    return items


def _acts_as_optimizer(item: Any) -> bool:
    """Whether an object that is no `Optimizer` can be guarded as one: a wrapper around another."""
    parts = ("step", "zero_grad", "state", "state_dict", "load_state_dict")
    return isinstance(getattr(item, "param_groups", None), list) and all(
        hasattr(item, part) for part in parts
    )


def name_stateful(keep: Mapping[str, Any] | None, *, scheduler: Any, scaler: Any) -> dict[str, Any]:
    """Objects with a state dict besides models and optimizers, by name."""
    for name, item in (keep or {}).items():
        if not (hasattr(item, "state_dict") and hasattr(item, "load_state_dict")):
            raise UsageError(
                f"keep={{{name!r}: …}} takes what has state_dict and load_state_dict: "
                f"got {type(item).__name__}"
            )
    given = {SCHEDULE: scheduler, "scaler": scaler}
    stateful = {name: item for name, item in given.items() if hasattr(item, "state_dict")}
    return {**(keep or {}), **stateful}


_guards: weakref.WeakKeyDictionary[Optimizer, weakref.ref[Guard]] = weakref.WeakKeyDictionary()


def choose_policy(policy: Policy | None, settings: Settings, capture: str | None) -> Policy:
    """The policy given to the guard, or that of the settings; `capture` overrides its own."""
    chosen = require_policy(policy) or Policy.from_mapping(settings.policy)
    return chosen if capture is None else replace(chosen, capture=capture)


def claim_optimizers(
    guard: Guard, optimizers: Sequence[Optimizer], notices: Notices, *, fuse: bool
) -> None:
    """Close any other guard of these optimizers; `fuse`: switch them to their fused form."""
    for item in optimizers:
        complete_optimizer(item)
        other = _guards.get(item)
        known = other() if other else None
        if known is not None and hasattr(known, "_session"):  # else it was never complete
            notices.once(
                "replaced", "this optimizer already had a guard: the earlier one is closed"
            )
            known.close()
        _guards[item] = weakref.ref(guard)
        if fuse and not optimizer_adapter.fuse_optimizer(item):
            notices.once("fuse", f"{type(item).__name__} cannot be fused here; unchanged")


def has_guard(optimizer: Optimizer) -> bool:
    """Whether a guard watches this optimizer."""
    known = _guards.get(optimizer)
    return known is not None and known() is not None


def release_optimizers(optimizers: Sequence[Optimizer]) -> None:
    """A guard closes."""
    for item in optimizers:
        _guards.pop(item, None)


def require_scalar(loss: Any) -> None:
    """Raise LossNotScalar unless the loss is a tensor with one element."""
    if isinstance(loss, Tensor) and loss.numel() == 1:
        return
    what = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else repr(loss)
    raise LossNotScalar(
        f"guard.backward() takes a loss of one number, got {what}: "
        "reduce it first, for example with loss.mean()"
    )


def scalar_components(components: Mapping[str, Any], notices: Notices) -> dict[str, Tensor]:
    """The loss components with one element; a notice names the others."""
    fit = {}
    for name, value in components.items():
        try:
            tensor = value.detach() if isinstance(value, Tensor) else torch.as_tensor(value)
        except (RuntimeError, TypeError, ValueError):
            _warn_not_scalar(notices, name, f"is {value!r:.40}")
            continue
        if tensor.numel() == 1:
            fit[name] = tensor.reshape(())
        else:
            _warn_not_scalar(notices, name, f"has shape {tuple(tensor.shape)}")
    return fit


def _warn_not_scalar(notices: Notices, name: str, what: str) -> None:
    notices.once(
        f"component-{name}",
        f"loss component {name!r} {what}, not one number: it is not recorded; pass its mean or sum",
    )


def describe_run(
    models: Sequence[nn.Module],
    optimizers: Sequence[Optimizer],
    max_norm: float | AdaptiveClip | None,
) -> dict[str, Any]:
    """Facts about the run for its header: what one compares when two runs differ."""
    facts = {
        "headway": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "models": [type(model).__name__ for model in models],
        "optimizers": [type(optimizer).__name__ for optimizer in optimizers],
        "max_norm": repr(max_norm) if isinstance(max_norm, AdaptiveClip) else max_norm,
        "settings": {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in getattr(optimizers[0], "defaults", {}).items()
            if isinstance(value, (bool, int, float, str, tuple))
        },
        "command_line": describe_command(sys.argv),
        "host": platform.node(),
        "packages": _package_versions(tuple(name for name in PACKAGES if name in sys.modules)),
        **_git_state(os.getcwd()),
    }
    if torch.cuda.is_initialized():  # asking for the name would start CUDA otherwise
        facts["gpu"] = torch.cuda.get_device_name()
    return facts


PACKAGES = ("numpy", "transformers", "lightning", "accelerate", "deepspeed", "datasets", "peft")
"""Packages whose version is recorded if the script uses them."""
GIT_SECONDS = 2.0
SECRET_OPTION = re.compile(r"key|token|secret|passw|credential", re.IGNORECASE)
LONGEST_COMMAND = 1000


def describe_command(words: Sequence[str]) -> str:
    """The command line, without the values of options whose names say that they are secret."""
    shown, hide = [], False
    for word in words:
        name, equals, _ = word.partition("=")
        if hide and not word.startswith("-"):
            shown.append("***")
        elif name.startswith("-") and equals and SECRET_OPTION.search(name):
            shown.append(f"{name}=***")
        else:
            shown.append(word)
        hide = not equals and word.startswith("-") and bool(SECRET_OPTION.search(word))
    return shlex.join(shown)[:LONGEST_COMMAND]


@cache
def _package_versions(names: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for name in names:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


@cache
def _git_state(folder: str) -> dict[str, Any]:
    """The commit of the working folder, and whether tracked files differ from it."""

    def git(*words: str) -> str:
        done = subprocess.run(
            ["git", "-C", folder, *words],
            capture_output=True,
            text=True,
            timeout=GIT_SECONDS,
            check=True,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
        )
        return done.stdout.strip()

    try:
        commit = git("rev-parse", "HEAD")
        return {
            "git_commit": commit,
            "git_dirty": bool(git("status", "--porcelain", "--untracked-files=no")),
        }
    except Exception:  # no git, no repository, too slow: a note about the run must not stop it
        return {}


Batch = TypeVar("Batch")


def attach_trackers(
    given: Sequence[Any], recorder: Recorder, ranks: RankGroup | None, notices: Notices
) -> TrackerGroup:
    """Send the records to these trackers.

    Of ranks that write one run together, only rank 0 does. The replay of an incident is not sent.
    """
    writer = recorder.writer
    folder = None if writer is None or writer.broken else writer.path
    if (ranks is not None and ranks.rank != 0) or in_script.is_requested():
        given = ()
    trackers = open_trackers(given, run_dir=folder, notify=notices.once)
    recorder.listeners += [queue.record for queue in trackers.queues]
    recorder.finding_listeners += [queue.finding for queue in trackers.queues]
    return trackers


def attach_notifier(
    given: Any, recorder: Recorder, ranks: RankGroup | None, notices: Notices
) -> None:
    """Send findings and the end of the run to a webhook, a command or a function; rank 0 only."""
    if not given or (ranks is not None and ranks.rank != 0) or in_script.is_requested():
        return
    writer = recorder.writer
    notifier = Notifier(given, "a run" if writer is None else writer.path.name, notices.once)
    recorder.finding_listeners.append(notifier.finding)
    recorder.end_listeners.append(notifier.ended)


class GuardedLoader(Generic[Batch]):
    """The user's loader; reports each batch, and the time it took, to the guard."""

    def __init__(self, guard: Guard, loader: Iterable[Batch]) -> None:
        self._guard = guard
        self._loader = loader

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Batch]:
        if in_script.is_requested():
            yield from in_script.rerun_in_loop(self._guard, self._loader)
            return
        data_position = self._guard.data_position
        number, one = data_position.begin(self._loader)
        if one is None:
            return
        try:
            source = self._guard.open_pass(one, number)
            while True:
                self._guard.step_done()
                if self._guard.rerun_pending:
                    yield from self._guard.rerun_in_loop(current_frame(1))
                asked = time.perf_counter()
                try:
                    batch = next(source)
                except StopIteration:
                    if self._guard.rerun_pending_at_end():
                        yield from self._guard.rerun_in_loop(current_frame(1))
                    return
                one.given = source.given
                self._guard.saw_batch(batch, time.perf_counter() - asked, source.origin)
                yield batch
        finally:
            data_position.end(number)
