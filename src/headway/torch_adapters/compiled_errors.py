"""What `torch.compile` says about an exception in the code that it traces.

The traceback of such an exception ends inside the compiler. The line of the user's code and the
original error are in its message.
"""

from __future__ import annotations

import re

from headway.torch_adapters.frames import Location, parse_traceback

_USER_CODE = "from user code:"
_ORIGINAL = re.compile(
    r": got (?P<kind>\w+)\((?P<quote>['\"])(?P<text>.*?)\)?(?P=quote)\)", re.DOTALL
)
_HINT = re.compile(r"\(s\d+: hint = (\d+)\)")


def is_compiler_error(error: BaseException) -> bool:
    """Whether the compiler raised it while it traced code of the user."""
    return type(error).__module__.startswith("torch._dynamo") and _USER_CODE in str(error)


def compiled_frames(error: BaseException) -> list[Location]:
    """The frames of the traced code, innermost first; none for other exceptions."""
    if not is_compiler_error(error):
        return []
    return parse_traceback(str(error).partition(_USER_CODE)[2].splitlines())


def original_error(error: BaseException) -> str | None:
    """`RuntimeError: …` as it would be without the compiler; None if the message has none."""
    found = _ORIGINAL.search(str(error)) if is_compiler_error(error) else None
    if found is None:
        return None
    text = _HINT.sub(r"(\1)", found["text"])
    return f"{found['kind']}: {text}"
