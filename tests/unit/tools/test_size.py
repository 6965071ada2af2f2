"""The measure of the code's size, and its ceilings."""

import json

import pytest

from tools import size


@pytest.fixture
def small_project(tmp_path, monkeypatch):
    """A package of one folder, with tests and benchmarks of a line each."""
    for path in ("fairseq_mtmoe/moe/layer.py", "tests/test_layer.py", "benchmarks/bench_layer.py"):
        file = tmp_path / path
        file.parent.mkdir(parents=True)
        file.write_text("rows = width + 1\n")
    monkeypatch.setattr(size, "ROOT", tmp_path)
    monkeypatch.setattr(size, "CEILINGS", tmp_path / "size.json")
    return tmp_path


@pytest.mark.parametrize(
    ("source", "tokens"),
    [
        ("rows = width + 1  # a comment\n", 5),
        ("def rows():\n    return 'a text'\n", 7),
        ("name = f'{first} and {second}'\n", 3),  # the same with every version of Python
    ],
)
def test_tokens_are_names_operators_numbers_and_strings(source, tokens, tmp_path):
    (tmp_path / "code.py").write_text(source)
    assert size.tokens_of(tmp_path / "code.py") == tokens


def test_larger_code_fails_and_ceilings_only_fall(small_project, capsys):
    size.check(lower=True)
    assert size.check(lower=False) == 0

    layer = small_project / "fairseq_mtmoe" / "moe" / "layer.py"
    layer.write_text("rows = width + 1 + 1\n")
    assert size.check(lower=False) == 1
    assert "fairseq_mtmoe/moe" in capsys.readouterr().out
    size.check(lower=True)
    assert json.loads(size.CEILINGS.read_text())["fairseq_mtmoe/moe"] == 5

    layer.write_text("rows = 1\n")
    size.check(lower=True)
    assert json.loads(size.CEILINGS.read_text())["fairseq_mtmoe/moe"] == 3
