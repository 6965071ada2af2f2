"""The progress of steps, on a terminal and elsewhere."""

import io
import time

from rich.console import Console

from fairseq_mtmoe.cli import _steps


def shown(monkeypatch, terminal, items, seconds):
    output = io.StringIO()
    monkeypatch.setattr(_steps, "Console", lambda stderr: Console(file=output, force_terminal=terminal, width=80))
    with _steps.shown_steps() as track:
        monkeypatch.setattr(_steps.time, "monotonic", lambda: 5.0)  # a busy machine may take a second for nothing
        seen = []
        for item in track(items, "Reading"):
            time.sleep(seconds)
            seen.append(item)
    assert seen == items
    return output.getvalue()


def test_a_long_item_gets_a_line_now_and_then(monkeypatch):
    monkeypatch.setattr(_steps, "SECONDS_BETWEEN_LINES", 0.02)
    lines = shown(monkeypatch, False, ["one"], 0.15).splitlines()
    assert 4 <= len(lines) <= 10
    assert set(lines[:-1]) == {"Reading: 0 of 1, 0 s"} and lines[-1] == "Reading: 1 of 1, 0 s"


def test_short_items_get_two_lines(monkeypatch):
    assert shown(monkeypatch, False, [1] * 2000, 0).splitlines() == [
        "Reading: 0 of 2,000, 0 s",
        "Reading: 2,000 of 2,000, 0 s",
    ]


def test_a_terminal_gets_a_bar(monkeypatch):
    output = shown(monkeypatch, True, [1, 2], 0)
    assert "Reading" in output and "2/2" in output and "\x1b[" in output
