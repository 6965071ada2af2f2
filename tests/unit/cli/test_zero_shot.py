"""`mtmoe evaluate` of directions without test sets, and in two steps."""

import json
import random
import re
import shutil
from functools import partial
from pathlib import Path

import pytest
import sacrebleu

from fairseq_mtmoe import register
from fairseq_mtmoe.cli._evaluating import ScoreFolder
from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.evaluation.joined_test_sets import with_joined
from fairseq_mtmoe.evaluation.text_translator import TextTranslator
from fairseq_mtmoe.evaluation.translator import Decoding
from tests.helpers import untrained
from tests.helpers.invoked import invoked
from tests.helpers.translated_text import SPARSE, make_text_data, rewrite, texts

evaluate = partial(invoked, "evaluate")
EN = ["bo da", "ba", "bo da", *texts(12, 7)]  # of which one line comes twice
ORDER = random.Random(1).sample(range(len(EN)), len(EN))
AA, BB = ([f"{word} {'be ' * (1 + at % 3)}{at % 5 * 'du'}".strip() for at in range(len(EN))] for word in ("ga", "ki"))


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """`data` with test sets of en-aa and en-bb, whose lines are in other orders, and `checkpoint.pt`."""
    register()
    folder = tmp_path_factory.mktemp("zero")
    data = make_text_data(folder / "data")
    rewrite(data, "test", "en-aa", EN, AA)
    rewrite(data, "test", "en-bb", [*texts(3, 9), *(EN[at] for at in ORDER)], ["x"] * 3 + [BB[at] for at in ORDER])
    for name in ("checkpoint.pt", "other.pt"):
        untrained.save_model(data, folder / name, *SPARSE, seed=len(name))
    return folder


def arguments(model, *more):
    return [model / "data", "--path", model / "checkpoint.pt", "--beam", 2, "--max-len-b", 8, *more]


def lines(path):
    return path.read_text().splitlines()


@pytest.mark.parametrize("has_text", [True, False])
def test_lines_are_joined_by_what_they_share_the_nth_copy_with_the_nth(model, tmp_path, has_text):
    data = shutil.copytree(model / "data", tmp_path / "data")
    if not has_text:
        (data / "raw" / "test.en-bb.en").unlink()
    with with_joined(str(data), "test", ["bb-aa"]) as (folder, said):
        found = [lines(Path(folder) / "raw" / f"test.bb-aa.{lang}") for lang in ("bb", "aa")]
    copies = iter([AA[0], AA[2]])
    wanted = [next(copies) if EN[at] == "bo da" else AA[at] for at in ORDER]
    assert found == [[BB[at] for at in ORDER], wanted]
    assert said == ["bb-aa: 15 lines of test.en-bb and test.en-aa have the same text of en"]


def test_direct_and_in_two_steps_in_one_table(model, tmp_path):
    shown = evaluate(*arguments(model, "--lang-pairs", "aa-bb,en-bb", "--pivot", "en", "--pivot-path",
                                model / "other.pt", "--out", tmp_path / "out"))  # fmt: skip
    assert "aa-bb: 15 lines" in shown.stderr
    scores = json.loads((tmp_path / "out" / "scores.json").read_text())
    assert set(scores["pairs"]) == {"aa-bb", "aa-en-bb", "en-bb"}
    names = ("all", "without en", "through en")
    assert [scores["averages"][name]["pairs"] for name in names] == [2, 1, 1]
    assert scores["averages"]["through en"]["bleu"] == scores["pairs"]["aa-en-bb"]["bleu"]
    assert re.search(r"aa-bb .*\n.*aa-en-bb ", shown.stdout)
    hypotheses, references = lines(tmp_path / "out" / "aa-en-bb.hyp"), lines(tmp_path / "out" / "aa-en-bb.ref")
    assert references == lines(tmp_path / "out" / "aa-bb.ref")
    assert scores["pairs"]["aa-en-bb"]["bleu"] == sacrebleu.corpus_bleu(hypotheses, [references]).score
    decoding = Decoding(beam=2, max_len_b=8)
    first, second = (TextTranslator([str(model / name)], decoding) for name in ("checkpoint.pt", "other.pt"))
    english = first.translate(AA, source="aa", target="en")
    assert hypotheses == second.translate(english, source="en", target="bb")
    assert hypotheses != first.translate(english, source="en", target="bb")


def test_an_interrupted_evaluation_in_two_steps_goes_on(model, tmp_path, monkeypatch):
    given = arguments(model, "--lang-pairs", "aa-bb,bb-aa", "--pivot", "en", "--out")
    evaluate(*given, tmp_path / "whole")
    add, noted = ScoreFolder.note, []

    def killed(folder, batch):
        if "bb-en-aa" in batch and noted.count("aa-en-bb") and not noted.count("killed"):
            noted.append("killed")
            raise MemoryError
        noted.extend(batch)
        add(folder, batch)

    monkeypatch.setattr(ScoreFolder, "note", killed)
    with pytest.raises(MemoryError):
        evaluate(*given, tmp_path / "out")
    evaluate(*given, tmp_path / "out")
    assert noted.count("aa-en-bb") == noted.count("bb-en-aa") == 1
    for path in (tmp_path / "whole").iterdir():
        assert (tmp_path / "out" / path.name).read_bytes() == path.read_bytes(), path.name
    assert "already" in evaluate(*given, tmp_path / "out").stderr


@pytest.mark.parametrize(
    ("more", "words"),
    [(["--lang-pairs", "aa-cc"], "test.en-aa and test.en-cc must have at least 10 lines of en in common"),
     (["--lang-pairs", "aa-zz"], r"`--lang-pairs` must be pairs that the data directory has"),
     (["--lang-pairs", "aa-aa"], r"`--lang-pairs` must be pairs"), (["--lang-pairs", "aa"], r"`--lang-pairs` must be"),
     (["--lang-pairs", "aa-bb-cc"], r"`--lang-pairs` must be pairs"),
     (["--lang-pairs", "en-aa", "--pivot", "en"], "`--pivot` must be another language than those of each pair"),
     (["--lang-pairs", "aa-bb", "--pivot", "zz"], "`--pivot` must be a language of"),
     (["--lang-pairs", "aa-bb", "--pivot-path", "x.pt"], "`--pivot-path` must be absent without --pivot"),
     (["--lang-pairs", "aa-bb", "--pivot", "en", "--pivot-path", "x.pt"], "`x.pt` must be a checkpoint file"),
     (["--lang-pairs", "aa-bb", "--pivot", "en", "--pivot-path", ""], "must be a checkpoint file, but is a folder")],
)  # fmt: skip
def test_zero_shot_and_pivots_that_cannot_be(model, tmp_path, more, words):
    with pytest.raises(UserError, match=words):
        evaluate(*arguments(model, *more, "--out", tmp_path / "out"))
    assert not (tmp_path / "out").exists()
