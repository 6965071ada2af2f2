"""What fairseq-generate wrote is read in whatever order, and damaged files are refused or read: nothing else."""

import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_mtmoe.evaluation.generated import named_files, read_generated
from tests.helpers.damage import value_or_sentence
from tests.helpers.refused import refused

LINES = """2026-11-22 | INFO | fairseq_cli.generate | Namespace(path='H-0')
S-1\t__de__ ▁two ▁wor ds
T-1\t▁zwei ▁Wör ter
H-1\t-0.5\t▁zwei ▁Wor te
D-1\t-0.5\t▁zwei ▁Wor te
P-1\t-0.1 -0.2
H-1\t-0.25\t▁zwei ▁Wör ter
D-1\t-0.25\t▁zwei ▁Wör ter
S-0\t__de__ ▁a
T-0\t▁<<unk>>
H-0\t-1.5\t
D-0\t-1.5\t
S-3\t__de__ ▁b
T-3\t▁be
H-3\t-1e-05\t▁be
D-3\t-1e-05\t▁be
Generate test with beam=5: BLEU4 = 1.00
""".splitlines()


def write(path, lines):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


@pytest.mark.parametrize("seed", range(2))
def test_the_best_hypotheses_are_read_in_any_order_and_from_shards(tmp_path, seed):
    lines = list(LINES)
    random.Random(seed).shuffle(lines)
    files = [write(tmp_path / f"{half}.txt", [*lines[half::2], LINES[-1]]) for half in range(1 + seed % 2)]
    found = read_generated(files if seed % 2 else [write(tmp_path / "all.txt", lines)])
    assert found.hypotheses == ["", "zwei Wörter", "be"]
    assert found.references == ["<<unk>>", "zwei Wörter", "be"]
    assert found.sources == ["a", "two words", "b"]
    assert (found.altered, found.missing) == (1, 1)


def test_subwords_join_as_asked_or_as_they_look(tmp_path):
    spaced = [line.replace("▁", "") for line in LINES]
    marked = [line.replace("Wör ter", "Wör@@ ter") for line in spaced]
    old = [line for line in LINES if not line.startswith("D-")]  # as old versions of fairseq wrote
    for lines, more, expected in ((spaced, (), "zwei Wör ter"), (marked, (), "zwei Wörter"), (old, (), "zwei Wörter"),
                                  (LINES, ("none",), "▁zwei ▁Wör ter")):  # fmt: skip
        assert read_generated([write(tmp_path / "a", lines)], *more).hypotheses[1] == expected


@pytest.mark.parametrize("change", [
    lambda lines: [],
    lambda lines: [line for line in lines if line[:3] not in ("H-3", "D-3")],
    lambda lines: [line for line in lines if line[:3] != "T-0"],
    lambda lines: lines[:-1],
    lambda lines: [*lines, "T-3\tsomething else"],
    lambda lines: [*lines, "H-3\tsomething else"],
], ids=["empty", "hypothesis", "reference", "end", "other", "score"])  # fmt: skip
def test_what_is_no_whole_output_is_said_in_a_sentence(tmp_path, change):
    with refused("torn.txt"):
        read_generated([write(tmp_path / "torn.txt", change(LINES))])


def test_a_shard_is_torn_though_another_has_its_end(tmp_path):
    whole, torn = write(tmp_path / "0", [*LINES[8:12], LINES[-1]]), write(tmp_path / "1", LINES[12:16])
    with refused("1"):
        read_generated([whole, torn])
    unsure = write(tmp_path / "2", LINES[:12])
    assert (read_generated([unsure]).unended, read_generated([whole]).unended) == ([unsure], [])


@settings(deadline=None)
@given(place=st.integers(0, 400), more=st.text(max_size=30))
def test_damaged_files_are_a_value_or_a_sentence(tmp_path_factory, place, more):
    path = tmp_path_factory.getbasetemp() / "damaged.txt"
    path.write_text("\n".join(LINES)[:place] + more, newline="", errors="replace")
    found = value_or_sentence(lambda: read_generated([path]))
    assert found is None or len(found.hypotheses) == len(found.references) == len(found.sources) > 0


def test_files_belong_to_the_pair_that_is_named():
    found = named_files(["en-de=a,b", "out/en_XX-ro_RO/generate-test.txt", "en-de=c", "x/en-cs.test.txt", "en-de/s2/t"])
    assert found == {
        "en-de": [Path("a"), Path("b"), Path("c"), Path("en-de/s2/t")],
        "en_XX-ro_RO": [Path("out/en_XX-ro_RO/generate-test.txt")],
        "en-cs": [Path("x/en-cs.test.txt")],
    }
    looks_like_one = ["en-de/gen-out.txt", "my-run/en_XX-de_DE/out.txt", "kab-fra/out.txt", "en-de/en-de.txt"]
    assert list(named_files(looks_like_one)) == ["en-de", "en_XX-de_DE", "kab-fra"]
    for path in ("out/generate-test.txt", "ro-de/en-de.txt", "gen-out/kab-fra.txt", "en-de="):  # of none or of several
        with refused():
            named_files([path])
