"""The errors headway raises, all of them.

    HeadwayError
    ├── UsageError            the call or the command line is wrong            (exit code 2)
    │   ├── UnreadableInput   the path cannot be read or is not recognised
    │   ├── SettingsError     a settings file or option contains something unknown
    │   ├── RunDirInUse       another process records into the run directory
    │   ├── ResumeRefused     no snapshot can be restored exactly on every rank
    │   ├── LossNotScalar     guard.backward() got more than one number
    │   └── FrameworkMissing  an adapter was imported, its framework is not installed
    ├── TrainingHalted        the last rung of the policy: the run cannot be saved
    ├── RankLost              the other ranks of a distributed run do not answer
    └── InternalError         a defect of headway itself                      (exit code 4)

A message says what happened and where, the measured value and the limit, and what to do.
"""

from __future__ import annotations

import importlib
from typing import Any, ClassVar


class HeadwayError(Exception):
    """Base class of all errors that headway raises on purpose."""

    exit_code: ClassVar[int] = 4


class UsageError(HeadwayError):
    """The call or the command line is wrong."""

    exit_code = 2


class UnreadableInput(UsageError):
    """The path cannot be read or its format is not recognised."""


class SettingsError(UsageError):
    """A settings file or an option contains something unknown."""


class RunDirInUse(UsageError):
    """Another process records into the run directory."""


class ResumeRefused(UsageError):
    """`guard.resume()` found snapshots, and none that every rank can restore exactly."""


class LossNotScalar(UsageError):
    """`guard.backward()` got more than one number."""


class FrameworkMissing(UsageError, ImportError):
    """An adapter was imported whose framework is not installed; an ImportError, too."""


class TrainingHalted(HeadwayError):
    """The policy reached its last rung: continuing would only waste time."""

    exit_code = 1


class RankLost(HeadwayError):
    """The other ranks of a distributed run do not answer: one died, hangs or left the loop."""

    exit_code = 1


class InternalError(HeadwayError):
    """A defect of headway itself."""


def import_optional(*names: str, user: str, extra: str) -> Any:
    """Import the first of these modules that is installed, for `user`.

    Raises FrameworkMissing with the command that installs the first one.
    """
    for name in names:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            # A dependency of an installed package is missing: its own message is the better one.
            if error.name is None or not f"{name}.".startswith(f"{error.name}."):
                raise
    package = names[0].partition(".")[0]
    raise FrameworkMissing(
        f"{user} needs {package}, which is not installed: pip install 'headway[{extra}]'"
    )
