"""The tour's stops are there, and its routes short."""

import ast
import re
from collections import Counter

import pytest

from tests.helpers.commands import REPOSITORY

PAGE = (REPOSITORY / "docs" / "development" / "tour.md").read_text(encoding="utf-8")
ROUTES = {}
for section in PAGE.split("\n## ")[1:]:
    stops = re.findall(r"^\d+\. `([^`]+)`, `([^`]+)`:", section, re.MULTILINE)
    if stops:
        ROUTES[section.split("\n")[0]] = stops


def names_in(path):
    """The functions, classes and methods of a file, methods as Class.method."""
    names = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{method.name}" for method in node.body if isinstance(method, ast.FunctionDef)}
    return names


@pytest.mark.parametrize("route", ROUTES)
def test_a_route_has_few_stops_and_each_is_there(route):
    stops = ROUTES[route]
    assert len(stops) <= 20 and max(Counter(file for file, _ in stops).values()) <= 3
    for file, name in stops:
        assert name in names_in(REPOSITORY / "fairseq_mtmoe" / file), f"{file} has no {name}"


def test_there_are_eight_routes():
    assert len(ROUTES) == 8 and len(re.findall(r"^\d+\. ", PAGE, re.MULTILINE)) == sum(map(len, ROUTES.values()))


MADE = {"docs/site/index.html", "benchmarks/results/gpu.md"}  # by make docs and make gpu-check
FOLDERS = "docs|examples|benchmarks|configs|tools|tests|fairseq_mtmoe"


@pytest.mark.parametrize("folder", ["docs", "examples", "configs", "benchmarks", "."])
def test_pages_name_files_that_are_there(folder):
    pages = (REPOSITORY / folder).glob("*.md" if folder == "." else "**/*.md")
    for page in pages:
        text = page.read_text(encoding="utf-8")
        if page.name == "CHANGELOG.md":  # which names what was removed, too
            text = text.partition("### Removed")[0]
        named = set(re.findall(rf"`((?:{FOLDERS})/[\w./-]+)`", text)) - MADE
        missing = {file for file in named if not (REPOSITORY / file).exists()}
        assert not missing, page
