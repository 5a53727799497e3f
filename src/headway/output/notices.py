"""Short messages to the user while training runs: each once, never an exception."""

from __future__ import annotations

import logging

logger = logging.getLogger("headway")


class Notices:
    """Logs each warning once."""

    def __init__(self) -> None:
        self._logged: set[str] = set()

    def once(self, topic: str, message: str) -> None:
        """Log a warning about a topic, the first time only."""
        if topic not in self._logged:
            self._logged.add(topic)
            logger.warning("headway: %s", message)
