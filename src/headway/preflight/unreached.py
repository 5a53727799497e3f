"""A script that never made a step: what it did instead."""

from __future__ import annotations

import multiprocessing
from dataclasses import dataclass

from headway.live import discovery
from headway.live.launch import Launch, children_seconds

WORKED = 0.5
"""Seconds that processes the script has started must have worked to be blamed."""


@dataclass(frozen=True, slots=True)
class Unreached:
    """Why no optimizer step was seen, and what to do about it."""

    why: str
    advice: str

    def __str__(self) -> str:
        return f"no optimizer step was reached: {self.why}. {self.advice}"


def why_unreached(launch: Launch, error: BaseException | None, command: str = "check") -> Unreached:
    """The first reason that fits, for whoever typed `headway command`."""
    if error is not None:
        return Unreached(
            f"the script ended with {type(error).__name__} before its first step",
            "Its own message is shown as well",
        )
    if launch.enough:
        return Unreached(
            "the time given by --max-seconds was over first",
            "Give it more, or let the script prepare less",
        )
    if multiprocessing.active_children() or children_seconds() - launch.children_before > WORKED:
        return Unreached(
            "the training ran in processes the script started itself, which cannot be watched",
            f"Start them by torchrun: `torchrun --nproc-per-node N -m headway {command} SCRIPT`",
        )
    if launch.backwards:
        return Unreached(
            f"backward() ran {_times(launch.backwards)}, but no optimizer.step() followed",
            "Call optimizer.step() after the backward passes; weights updated by hand are not seen",
        )
    if discovery.optimizers_alive():
        return Unreached(
            "an optimizer was made, but backward() was never called",
            "Look whether the loop over the data is entered, and whether the data is empty",
        )
    return Unreached(
        "it ended without making a torch optimizer",
        f"Give the arguments that make it train after `--`: headway {command} SCRIPT -- --train",
    )


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
