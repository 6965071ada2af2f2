"""Which sentences of pages, help and docstrings `make lint` refuses, and on which line it says so."""

import pytest

from tools import prose

LONG = " ".join(f"word{number}" for number in range(46))
PAGE = f"""# What a heading asks is fine

A sentence stands here. What follows is refused,
even in a second line.

- `Of code` nothing is said; 3 experts, not so many.
- {LONG}.

| column | text | third | fourth | fifth |
|---|--:|---|---|---|
| a cell | The the word | | | |

```
Of what is in a block of code nothing is said.
```
"""
PATTERNS = """After this page you know it.

Counted is each token.

All but one of them. He is neither here nor there.

It is of the first run. It is of use.

It is faster beside a dense model. A file beside DATA.
"""
MODULE = '''"""Return what is asked: a clause inside is fine.

Of the rest. ``Of code`` is fine.
"""

import click

option = click.option("--x", help="Those that are there.")
field = {"metadata": {"help": f"Number of x; so many {option}."}}


def f(x):
    """Return x.

    Args:
        x: a number.
            What is below is refused, too.
    """

    # What a comment says is read by people alone.
    raise UserError(f"`{x}` has what it has, but for y.")
'''


@pytest.mark.parametrize(("name", "text", "expected"), [
    ("page.md", PAGE, [(3, "subject"), (6, "number of"), (7, "split"), (11, "repeat"), (10, "four")]),
    ("module.py", MODULE, [(3, "subject"), (8, "subject"), (9, "number of"), (15, "subject"), (21, "say what is so")]),
    ("patterns.md", PATTERNS, [(1, "begin the page"), (3, "subject"), (5, "what is so"), (7, "relation"), (9, "than")]),
    ("clean.md", "| a | b | c | d |\n|---|---|--:|---|\n\nTrain a model. It has 8 experts.\n", []),
])  # fmt: skip
def test_each_rule_finds_its_pattern_where_prose_stands(tmp_path, monkeypatch, capsys, name, text, expected):
    monkeypatch.setattr(prose, "ROOT", tmp_path)
    (tmp_path / name).write_text(text)
    assert prose.main([str(tmp_path / name)]) == bool(expected)
    for line, (number, rule) in zip(capsys.readouterr().out.splitlines(), expected, strict=True):
        assert line.startswith(f"{name}:{number}: ") and rule in line, (line, number, rule)
