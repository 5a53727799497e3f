"""Short messages to the user while training runs: each once, never an exception."""

from __future__ import annotations

import logging

logger = logging.getLogger("headway")


class Notices:
    """Says each thing once."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def once(self, topic: str, message: str) -> None:
        """A warning about a topic, the first time only."""
        if topic not in self._said:
            self._said.add(topic)
            logger.warning("headway: %s", message)
