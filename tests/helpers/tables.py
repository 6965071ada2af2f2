"""Markdown tables without the spaces that align their columns."""

import re


def unpadded(text: str) -> str:
    """The text with one space beside each bar of a table, and three dashes in each cell of a ruler."""
    return "\n".join(_unpadded_row(line) if line.startswith("|") else line for line in text.splitlines())


def _unpadded_row(line: str) -> str:
    cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
    return "|" + "|".join(f" {re.sub(':?--+:?', '---', cell)} " if cell else " " for cell in cells) + "|"
