"""The site's configuration for Sphinx: `make docs` writes it to docs/site, which any browser opens from the disk."""

import re
import sys
from pathlib import Path
from typing import Any

from fairseq_mtmoe import __version__ as release

DOCS = Path(__file__).parent
sys.path.append(str(DOCS.parent))
from tools import reference  # noqa: E402

project = "fairseq_mtmoe"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_click", "sphinx_copybutton"]
exclude_patterns = ["site"]
html_theme = "furo"
html_title = f"{project} {release}"
html_copy_source = False
myst_heading_anchors = 4  # headings that links may name, by depth
myst_url_schemes = {"http": None, "https": None, "repository": "../../../{{path}}"}  # from docs/site/PART/PAGE.html
autodoc_typehints = "description"
suppress_warnings = ["misc.highlighting_failure"]  # JSON with … in the place of what is left out

LINK = re.compile(r"(?<!!)(\[[^\]]*\])\((\.\./[^)\s#]*)(#[^)\s]*)?\)")


def leave_docs(_app: Any, name: str, source: list[str]) -> None:
    """Let links to the repository's other files lead there: Sphinx takes them for pages (`source-read`)."""
    folder = (DOCS / name).parent

    def link(found: re.Match[str]) -> str:
        target = (folder / found[2]).resolve()
        inside = target.is_relative_to(DOCS) or not target.exists()
        return found[0] if inside else f"{found[1]}(repository:{target.relative_to(DOCS.parent).as_posix()})"

    source[0] = LINK.sub(link, source[0])


def add_options(_app: Any, name: str, source: list[str]) -> None:
    """Add the tables to the page of options (`source-read`)."""
    if name == "reference/options":
        source[0] += reference.tables()


def escape_help(_app: Any, _context: Any, lines: list[str]) -> None:
    """Let a command's help be plain text (`sphinx-click-process-description`)."""
    lines[:] = [line.replace("*", r"\*") for line in lines]


def setup(app: Any) -> None:
    """Connect all three."""
    app.connect("source-read", leave_docs)
    app.connect("source-read", add_options)
    app.connect("sphinx-click-process-description", escape_help)
