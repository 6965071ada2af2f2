"""The table of docs/clusters.md is what the command below it prints."""

import contextlib
import io
import re
from pathlib import Path

PAGE = (Path(__file__).parents[3] / "docs" / "clusters.md").read_text(encoding="utf-8")


def part(name):
    return re.search(f"<!-- {name} begin -->\n(.*?)<!-- {name} end -->", PAGE, re.DOTALL).group(1)


def test_the_command_prints_the_table():
    program = part("command").removeprefix("```python\n").removesuffix("```\n")
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(program, {})
    assert printed.getvalue().splitlines() == part("table").splitlines()[2:]
