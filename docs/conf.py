"""The site's configuration for Sphinx: `make docs` writes it to docs/site, which any browser opens from the disk."""

import os
import re
import shutil
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
copyright = "the fairseq_mtmoe team, MIT licence"
html_theme = "furo"
html_title = f"{project} {release}"
html_copy_source = False
smartquotes = False  # or `--option` becomes –option
myst_heading_anchors = 4  # headings that links may name, by depth
myst_url_schemes = {"http": None, "https": None, "repository": "{{path}}"}
autodoc_typehints = "description"
suppress_warnings = ["misc.highlighting_failure"]  # JSON with … in the place of what is left out

# Pages beside docs/: each build copies them into docs/repository, and removes the folder at its end.
ROOT, COPIES = DOCS.parent, DOCS / "repository"
BESIDE = ("CHANGELOG.md", "CONTRIBUTING.md", "benchmarks/results/*.md", "examples/**/README.md")
LINK = re.compile(r"(!?\[[^\]]*\])\((?!\w+:)([^)\s#]+)(#[^)\s]*)?\)")


def copied() -> dict[Path, Path]:
    """Return the copy of each page beside docs/."""
    return {path: COPIES / path.relative_to(ROOT) for pattern in BESIDE for path in ROOT.glob(pattern)}


def copy_pages(_app: Any, _config: Any) -> None:
    """Copy the pages beside docs/ (`config-inited`)."""
    for path, copy in copied().items():
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, copy)


def remove_copies(_app: Any, _error: Any) -> None:
    """Remove the copies (`build-finished`)."""
    shutil.rmtree(COPIES, ignore_errors=True)


def lead_links(_app: Any, name: str, source: list[str]) -> None:
    """Let a page's links lead to pages of the site, and others to the repository's files (`source-read`)."""
    folder, copies = (DOCS / name).parent, copied()
    written = ROOT / folder.relative_to(COPIES) if folder.is_relative_to(COPIES) else folder

    def link(found: re.Match[str]) -> str:
        target = (written / found[2]).resolve()
        target = copies.get(target, target)
        if not target.exists():
            return found[0]
        if target.is_relative_to(DOCS) or found[1].startswith("!"):
            return f"{found[1]}({os.path.relpath(target, folder)}{found[3] or ''})"
        up = "../" * (name.count("/") + 2)  # from docs/site/PART/PAGE.html to the repository
        return f"{found[1]}(repository:{up}{target.relative_to(ROOT).as_posix()})"

    source[0] = LINK.sub(link, source[0])
    if name == "repository/benchmarks/results/README":
        source[0] += "\n```{toctree}\n:hidden:\n:glob:\n*\n```\n"


def add_options(_app: Any, name: str, source: list[str]) -> None:
    """Add the tables to the page of options (`source-read`)."""
    if name == "reference/options":
        source[0] += reference.tables()


def escape_help(_app: Any, _context: Any, lines: list[str]) -> None:
    """Let a command's help be plain text (`sphinx-click-process-description`)."""
    lines[:] = [line.replace("*", r"\*") for line in lines]


def setup(app: Any) -> None:
    """Connect all of them."""
    app.connect("config-inited", copy_pages)
    app.connect("build-finished", remove_copies)
    app.connect("source-read", lead_links)
    app.connect("source-read", add_options)
    app.connect("sphinx-click-process-description", escape_help)
