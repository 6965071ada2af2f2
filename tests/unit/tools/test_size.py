"""The measure of the code's size, and its ceilings."""

import json

from tools import size


def test_larger_code_fails_and_ceilings_only_fall(tmp_path, monkeypatch):
    monkeypatch.setattr(size, "ROOT", tmp_path)
    monkeypatch.setattr(size, "CEILINGS", tmp_path / "size.json")
    layer = tmp_path / "fairseq_mtmoe" / "moe" / "layer.py"
    layer.parent.mkdir(parents=True)
    # An f-string has the same tokens with every version of Python.
    for source, is_exceeded, ceiling in (
        ("name = f'{a} and {b}'  # text\n", 0, 3), ("rows = width + 1\n", 1, 3), ("name()\n", 0, 3), ("a\n", 0, 1)
    ):  # fmt: skip
        layer.write_text(source)
        assert not size.CEILINGS.exists() or size.check(lower=False) == is_exceeded
        size.check(lower=True)
        assert json.loads(size.CEILINGS.read_text())["fairseq_mtmoe/moe"] == ceiling
