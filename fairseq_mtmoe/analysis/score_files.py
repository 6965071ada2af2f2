"""The two files in which an evaluation leaves its scores, for machines and for people."""

from __future__ import annotations

from pathlib import Path

from fairseq_mtmoe.io.files import write_text

JSON_FILE, MARKDOWN_FILE = "scores.json", "scores.md"


def remove_scores(folder: Path) -> None:
    """Take away the scores in a folder, if it has some, before others come."""
    for name in (JSON_FILE, MARKDOWN_FILE):
        (folder / name).unlink(missing_ok=True)


def write_scores(folder: Path, json_text: str, markdown_text: str) -> None:
    """Write both, the JSON last: where it is, everything is."""
    remove_scores(folder)
    write_text(folder / MARKDOWN_FILE, markdown_text)
    write_text(folder / JSON_FILE, json_text)
