"""Notices on a terminal are wrapped between words; commands and handlers get one line."""

from __future__ import annotations

import io
import sys

import pytest

from headway.cli.exit_codes import print_message
from headway.output import notices


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def use_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """A terminal of 40 columns, without a handler of the user's."""
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr(notices.logger, "hasHandlers", lambda: False)
    monkeypatch.setattr(notices.logger, "propagate", False)
    return screen


def test_a_notice_wraps_between_words_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = use_terminal(monkeypatch)
    notices.logger.warning("headway: step %s: %s", 7, "the update is skipped, weights unchanged")
    print_message("the update is skipped, and the weights are unchanged")
    assert terminal.getvalue().splitlines() == [
        "headway: step 7: the update is skipped,",
        "  weights unchanged",
        "headway: the update is skipped, and the",
        "  weights are unchanged",
    ]


def test_a_command_to_type_stays_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = use_terminal(monkeypatch)
    notices.logger.warning("headway: step 7: next: headway replay %s", "runs/a/incidents/1-step7")
    assert terminal.getvalue().count("\n") == 1


def test_a_handler_of_the_user_gets_one_line(caplog: pytest.LogCaptureFixture) -> None:
    notices.logger.warning("headway: %s", "word " * 30)
    assert caplog.messages == ["headway: " + "word " * 30]
