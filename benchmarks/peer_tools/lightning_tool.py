"""Lightning's own: Trainer(detect_anomaly=True) and EarlyStopping(check_finite=True).

`terminate_on_nan` is gone since Lightning 1.7; its documentation names these two instead.
"""

from __future__ import annotations

import logging
import re
from typing import Any, ClassVar

from peer_tools.anomaly import Anomaly
from peer_tools.base import Alarm, codes

LOGGED = re.compile(r"\.log\(\s*[\"']([\w/]*loss[\w/]*)[\"']")


class Lightning(Anomaly):
    name = "Lightning's own"
    package = "lightning"
    reach = "as `detect_anomaly`; a logged metric that is not finite"
    needs = ("lightning",)
    at_least = 10**9  # metrics are looked at when an epoch ends: to the end of the script
    means: ClassVar[dict[str, frozenset[str]]] = {
        **Anomaly.means,
        "check_finite": codes(101),
        "warning: eval mode": codes(902),
    }

    def preload(self) -> None:
        import lightning.pytorch  # noqa: F401

    def begin(self, text: str) -> None:
        import warnings

        import lightning.pytorch as pl
        from lightning.pytorch.callbacks import EarlyStopping

        self.shown = []
        warnings.showwarning = self._show
        self.stopping: list[Any] = []
        logged = LOGGED.findall(text)
        make = pl.Trainer.__init__
        tool = self

        def made(trainer: Any, *args: Any, **kwargs: Any) -> None:
            kwargs["detect_anomaly"] = True
            if logged:
                stop = EarlyStopping(
                    logged[0], check_finite=True, patience=10**6, strict=False, verbose=True
                )
                tool.stopping.append(stop)
                kwargs["callbacks"] = [*_listed(kwargs.get("callbacks")), stop]
            make(trainer, *args, **kwargs)

        pl.Trainer.__init__ = made  # type: ignore[method-assign]
        logging.getLogger("lightning.pytorch").setLevel(logging.INFO)

    def alarms(self) -> list[Alarm]:
        found = [
            Alarm("check_finite", str(stop.stopping_reason_message))
            for stop in self.stopping
            if "not finite" in str(getattr(stop, "stopping_reason_message", ""))
        ]
        said = [text for text in dict.fromkeys(self.shown) if "eval mode" in text]
        return found + [Alarm("warning: eval mode", text) for text in said]


def _listed(callbacks: Any) -> list[Any]:
    if callbacks is None:
        return []
    return list(callbacks) if isinstance(callbacks, (list, tuple)) else [callbacks]


TOOL = Lightning
