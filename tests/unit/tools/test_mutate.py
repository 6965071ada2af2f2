"""What `tools/mutate.py` breaks, what it leaves alone, and that it finds the same places in changed files."""

from pathlib import Path

import pytest

from tools import mutate

SOURCE = '''
"""A docstring with 1 and not 0."""

LIMITS: dict[str, tuple[int, int]] = {}


def choose(x: list[int], least: int = 1) -> int:
    if x[0] < least and not x[-1:]:
        raise ValueError(f"{x[0]} is not above {0 - 1}")
    logger.info("1 + 0", 1 - 0)
    return x[2] + 5


class Layer:
    def __repr__(self):
        return self.name[0]
'''


def mutations(source=SOURCE):
    return mutate.mutations_of_file("moe/layer.py", source)


def test_what_is_broken():
    assert {(each.old, each.new) for each in mutations()} == {
        ("x[0] < least and not x[-1:]", "(x[0] < least or not x[-1:])"), ("not x[-1:]", "(x[-1:])"),
        ("x[0] < least", "(x[0] >= least)"), ("x[0] < least", "(x[0] <= least)"), ("x[2] + 5", "(x[2] - 5)"),
        ("0", "(0 + 1)"), ("1", "0"), ("2", "(2 + 1)"), ("-1", "(-1 + 1)"), ("-1", "(1)"),
    }  # fmt: skip
    (broken,) = (each.apply(SOURCE.encode()).decode() for each in mutations() if each.new == "(x[2] - 5)")
    assert broken == SOURCE.replace("x[2] + 5", "(x[2] - 5)")


def test_the_seed_decides_what_is_drawn():
    rooms = [mutate.mutations_of_room("moe"), mutate.mutations_of_room("training/sparsify")]
    drawn = mutate.draw(rooms, 20, seed=1)
    assert drawn == mutate.draw(rooms, 20, seed=1) != mutate.draw(rooms, 20, seed=2)
    assert len({(each.path, each.number) for each in drawn}) == 20
    assert sum(each.path.startswith("moe/") for each in drawn) == 10


def test_mutations_are_found_again_in_a_changed_file():
    changed = "import os\n" + SOURCE.replace("least", "lowest").replace("x[2] + 5", "x[2] * 5")
    for old in mutations():
        found = mutate.find_again(old, mutations(changed))
        if "x[2]" in old.line:
            assert found is None
        else:
            assert (found.number, found.new) == (old.number + 1, old.new.replace("least", "lowest"))


@pytest.fixture
def clone(tmp_path, monkeypatch):
    """A tree with two lines of code, of which its test sees one."""
    files = {
        "fairseq_mtmoe/moe/half.py": "def half(x):\n    return x - x / 2\n\n\ndef same(x):\n    return x - 0\n",
        "tests/test_half.py": "from fairseq_mtmoe.moe.half import half\n\n\ndef test_it():\n    assert half(4) == 2\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(mutate, "CLONE", tmp_path)
    monkeypatch.setattr(mutate, "TESTS", {"moe": ["tests"]})
    return tmp_path


@pytest.mark.scheduled
def test_the_first_test_that_fails_is_named(clone):
    (clone / "fairseq_mtmoe/moe/half.py").write_text("def half(x):\n    return x\n")
    assert mutate.run_tests(clone, ["tests"], 100) == ("found", "tests/test_half.py::test_it")
    with pytest.raises(SystemExit, match="`nowhere` must be tests, but pytest says: ERROR: file"):
        mutate.run_tests(clone, ["nowhere"], 100)


def test_the_table_says_what_was_found(clone, monkeypatch, capsys):
    def run_tests(folder, tests, timeout):
        broken = "(x + x / 2)" in (folder / "fairseq_mtmoe/moe/half.py").read_text()
        return ("found", "tests/test_half.py::test_it") if broken else ("survived", "")

    monkeypatch.setattr(mutate, "run_tests", run_tests)
    before, after = clone / "out" / "before.json", clone / "out" / "after.json"
    mutate.main(["--rooms", "moe", "--number", "2", "--out", str(before)])
    assert "1 found" in capsys.readouterr().out
    row = "| moe/half.py:2 | `x - x / 2` → `(x + x / 2)` | found | tests/test_half.py::test_it |"
    assert row in before.with_suffix(".md").read_text().splitlines()
    (clone / "fairseq_mtmoe/moe/half.py").write_text("def half(y):\n    return y - y / 2\n")
    mutate.main(["--again", str(before), "--out", str(after)])
    assert "1 gone, 1 survived" in capsys.readouterr().out
    assert (clone / "fairseq_mtmoe/moe/half.py").read_text().endswith("y - y / 2\n")  # the tree itself is as it was


def test_tests_that_fail_already_are_no_measure(clone, monkeypatch):
    monkeypatch.setattr(mutate, "run_tests", lambda *_: ("found", "test_it"))
    with pytest.raises(SystemExit, match="must pass before anything is broken, but fails in test_it instead"):
        mutate.main(["--rooms", "moe", "--out", str(clone / "out.json")])


def test_rooms_and_their_tests_exist():
    clone = Path(mutate.__file__).parents[1]
    assert all((clone / "fairseq_mtmoe" / room).exists() for room in mutate.TESTS)
    assert all((clone / name).exists() for names in mutate.TESTS.values() for name in names)
