"""The files in which an evaluation leaves its scores: for machines, for people, and for papers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from fairseq_mtmoe.io.files import write_text
from fairseq_mtmoe.io.typed import Text, between

JSON_FILE, MARKDOWN_FILE, LATEX_FILE = "scores.json", "scores.md", "scores.tex"
Count = Annotated[int, between(0, 10**12)]
SETTINGS = {"checkpoint": Text, "subset": Text, "seed": int | None, "updates": int | None}
"""What readers of scores show of their settings."""


def remove_scores(folder: Path) -> None:
    """Take away the scores in a folder, if it has some, before others come."""
    for name in (JSON_FILE, MARKDOWN_FILE, LATEX_FILE):
        (folder / name).unlink(missing_ok=True)


def write_scores(folder: Path, json_text: str, markdown_text: str, latex_text: str | None = None) -> None:
    """Write them, the JSON last: where it is, everything is."""
    remove_scores(folder)
    if latex_text is not None:
        write_text(folder / LATEX_FILE, latex_text)
    write_text(folder / MARKDOWN_FILE, markdown_text)
    write_text(folder / JSON_FILE, json_text)
