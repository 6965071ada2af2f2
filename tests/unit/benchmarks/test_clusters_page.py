"""The table of docs/how_to/clusters.md is what the command below it prints."""

import re
from pathlib import Path

PAGE = (Path(__file__).parents[3] / "docs" / "how_to" / "clusters.md").read_text(encoding="utf-8")


def part(name):
    return re.search(f"<!-- {name} begin -->\n(.*?)<!-- {name} end -->", PAGE, re.DOTALL).group(1)


def test_the_command_prints_the_table(capsys):
    exec(part("command").removeprefix("```python\n").removesuffix("```\n"), {})
    assert capsys.readouterr().out.splitlines() == part("table").splitlines()[2:]
