"""`mtmoe compare results/a results/b`: what it says, writes and refuses."""

import json
import re
import shutil
from functools import partial
from statistics import fmean

import pytest

from fairseq_mtmoe.core.errors import UserError
from fairseq_mtmoe.report.charts import models
from fairseq_mtmoe.report.differences import Sampling, find_differences
from fairseq_mtmoe.report.eval_folders import read_evaluations
from fairseq_mtmoe.report.scores import PieceBleu, score_pair
from tests.helpers import evaluations
from tests.helpers.evaluations import write_evaluation
from tests.helpers.invoked import mtmoe
from tests.helpers.piece_models import trained_pieces
from tests.helpers.pretrained_translators import write_lines
from tests.helpers.refused import refused
from tests.helpers.tables import unpadded

compare = partial(mtmoe, "compare")
FEW = ("--samples", 50)


def differences_of(folder):
    return json.loads((folder / "comparison.json").read_text())["differences"]["b"]


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Three systems: b far below a, c as good as a."""
    folder = tmp_path_factory.mktemp("results")
    for name, wrong, seed in (("a", 0.3, 1), ("b", 0.6, 2), ("c", 0.3, 3)):
        write_evaluation(folder / name, wrong, seed, sentences=30)
    return folder


@pytest.fixture
def copies(results, tmp_path):
    for name in "ab":
        shutil.copytree(results / name, tmp_path / name)
    return tmp_path


def test_differences_with_significance_of_pairs_tiers_and_all(results, tmp_path):
    shown = compare(results / "a", results / "b", "--out", tmp_path / "out", *FEW, "--seed", "7")
    written = json.loads((tmp_path / "out" / "comparison.json").read_text())
    settings = {"compared_with": "a", "seed": 7, "samples": 50, "trials": 50, "subset": "test"}
    assert settings.items() <= written["settings"].items()
    found = written["differences"]["b"]
    scores = [json.loads((results / name / "scores.json").read_text()) for name in "ab"]
    for metric, field in (("BLEU", "bleu"), ("chrF++", "chrf")):
        of = found[metric]
        assert list(of["averages"]) == ["low", "high", "all"]
        for pair, one in of["pairs"].items():
            assert [one["first"], one["other"]] == pytest.approx([file["pairs"][pair][field] for file in scores])
        for tier, one in of["averages"].items():
            before, after = (file["averages"][tier][field] for file in scores)
            assert one["difference"] == pytest.approx(after - before) and one["p_randomisation"] < 0.05
    assert len({one["seed"] for one in found["BLEU"]["pairs"].values()}) == 3
    one = found["BLEU"]["pairs"]["en-de"]
    half = (one["interval"][1] - one["interval"][0]) / 2
    cells = ["en-de", "high", "30", f"{one['first']:.2f} ±{one['first_error']:.2f}",
             f"{one['other']:.2f} ±{one['other_error']:.2f}", f"−{-one['difference']:.2f} ±{half:.2f}",
             f"{one['p_bootstrap']:.4f}", f"{one['p_randomisation']:.4f}"]  # fmt: skip
    assert f"| {' | '.join(cells)} |" in unpadded((tmp_path / "out" / "comparison.md").read_text())
    (line,) = [line for line in shown.splitlines() if cells[3] in line and "en-de" in line]
    assert all(cell in line for cell in cells)
    latex = (tmp_path / "out" / "comparison.tex").read_text()
    assert cells[5].replace("−", "$-$").replace("±", r"$\pm$") in latex


def test_pairs_that_no_system_translates_are_named(tmp_path, monkeypatch):
    monkeypatch.setattr(evaluations, "hypotheses", lambda pair, sentences, wrong, seed: [f"x y {seed}"] * sentences)
    for seed, name in enumerate("ab"):
        write_evaluation(tmp_path / name, 0, seed, sentences=30)
    warning = "No system translates en-gu, en-de, en-fr: all have less than 1 BLEU."
    assert warning in compare(tmp_path / "a", tmp_path / "b", *FEW)
    monkeypatch.undo()
    write_evaluation(tmp_path / "c", 0.3, sentences=30)
    assert "No system translates" not in compare(tmp_path / "a", tmp_path / "b", tmp_path / "c", *FEW)


def test_a_picture_has_a_dot_with_an_interval_for_everything(results):
    found = find_differences(read_evaluations([results / name for name in "abc"]), Sampling(1, 50, 50))
    spec = models.differences(found).to_dict()
    dots = {(point["panel"], point["line"], point["row"]): point for point in spec["datasets"][spec["data"]["name"]]}
    for one in found:
        for name, of in {**one.pairs, **one.groups}.items():
            point = dots[one.metric, one.other.name, name]
            assert (point["y"], point["low"], point["high"]) == (of.difference, *of.interval)
            assert point["stands"] == (of.p_randomisation < 0.05)
    assert found[0].groups["all"].is_significant != found[2].groups["all"].is_significant


def change_scores(folder, change):
    path = folder / "scores.json"
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def change_line(path, number, text):
    lines = path.read_text().splitlines()
    lines[number - 1 : number] = [text] if text is not None else []
    path.write_text("".join(f"{line}\n" for line in lines))


def change_pair(folder, pair, **fields):
    change_scores(folder, lambda content: content["pairs"][pair].update(fields))


def add_comet(folder, add):
    """Figures of sentences, such as COMET's."""
    for pair, fields in json.loads((folder / "scores.json").read_text())["pairs"].items():
        figures = [0.5 + index / 100 + add for index in range(fields["sentences"])]
        (folder / f"{pair}.comet").write_text("".join(f"{figure!r}\n" for figure in figures))
        signature = {"COMET": "model:wmt22|version:2"}
        change_pair(folder, pair, metrics={"COMET": fmean(figures)}, metric_signatures=signature)


DAMAGE = {
    "en-de has other references in .*a than in .*b": lambda b: change_line(b / "en-de.ref", 3, "anders"),
    r"en-fr has BLEU nrefs:1.* in .*a and nrefs:1\|tok:char in .*b":
        lambda b: change_pair(b, "en-fr", bleu_signature="nrefs:1|tok:char"),
    "b has no en-gu, which .*a has": lambda b: change_scores(b, lambda content: content["pairs"].pop("en-gu")),
    "b is of valid, and .*a of test": lambda b: change_scores(b, lambda of: of["settings"].update(subset="valid")),
    r"`.*en-de\.hyp` must have the 30 lines that were scored": lambda b: change_line(b / "en-de.hyp", 3, None),
    r"must hold what was scored, but its files of en-de give BLEU": lambda b: change_line(b / "en-de.hyp", 3, "x"),
    "is of --references text in .*a and fairseq in .*b":
        lambda b: change_scores(b, lambda of: of["settings"].update(references="fairseq")),
    r"`.*en-de\.comet` must have a number for each of the 30": lambda b: change_line(b / "en-de.comet", 3, "nan"),
    r"but its files of en-de give COMET 0\.\d{4} and": lambda b: change_line(b / "en-de.comet", 3, "0.9"),
}  # fmt: skip


@pytest.mark.parametrize("sentence", DAMAGE)
def test_what_cannot_be_compared_is_refused_and_no_file_is_written(copies, sentence):
    for name in "ab":
        add_comet(copies / name, 0.0)
    DAMAGE[sentence](copies / "b")
    with pytest.raises(UserError, match=sentence):
        compare(copies / "a", copies / "b", "--out", copies / "out", *FEW)
    assert not (copies / "out").exists()


def test_wrong_arguments_are_refused(results, monkeypatch):
    monkeypatch.chdir(results)
    for arguments, names in (
        (("a", "a"), []), (("a", "nothing"), ["nothing"]), (("a", "x=b"), ["NAME=RUN,…"]),
        (("x=a", "--seed", "1"), ["--seed"]),
    ):  # fmt: skip
        with refused(*names):
            compare(*arguments)


def test_systems_are_named_by_the_folders_that_are_given(results, tmp_path):
    given = ["base", "dense/scores/best-test"]
    for folder in ("base/scores/best-test", given[1]):
        shutil.copytree(results / "a", tmp_path / folder)
    evaluations = read_evaluations([tmp_path / folder for folder in given])
    assert [evaluation.name for evaluation in evaluations] == ["base", "best-test"]


def test_no_difference_is_not_called_one(copies):
    shutil.rmtree(copies / "b")
    shutil.copytree(copies / "a", copies / "b")
    shown = compare(copies / "a", copies / "b", *FEW)
    assert len(re.findall(r"\+0\.00 ±0\.00 .*1\.0000 .*1\.0000", shown)) == 12
    assert "Where the difference is exactly 0" in shown


def test_systems_that_translate_nothing_are_not_compared(tmp_path):
    """A third one, which translates, is."""
    for name, right in (("a", 0), ("b", 4), ("c", 30)):
        folder = write_evaluation(tmp_path / name, 1.0, 1, sentences=30)
        for pair in ("en-gu", "en-de", "en-fr"):
            references = (folder / f"{pair}.ref").read_text().splitlines()
            hypotheses = write_lines(folder / f"{pair}.hyp", [*references[:right], *[""] * (30 - right)])
            found = score_pair(pair, hypotheses.read_text().split("\n")[:-1], references)
            change_pair(folder, pair, bleu=found.bleu, chrf=found.chrf)
    near, far = find_differences(read_evaluations([tmp_path / name for name in "abc"]), Sampling(1, 50, 50))[::2]
    assert all(one.p_randomisation == one.p_bootstrap == 1 for one in (*near.pairs.values(), *near.groups.values()))
    assert far.groups["all"].is_significant and max(one.other for one in near.pairs.values()) > 0


def test_metrics_by_sentence_are_tested_by_their_means(copies):
    for name, add in (("a", 0.0), ("b", 0.0125)):
        add_comet(copies / name, add)
    compare(copies / "a", copies / "b", "--out", copies / "out", *FEW)
    found = differences_of(copies / "out")["COMET"]
    for one in (*found["pairs"].values(), *found["averages"].values()):
        assert (one["first"], one["difference"]) == pytest.approx((0.645, 0.0125))
        assert one["interval"] == pytest.approx([0.0125, 0.0125], abs=1e-6)
        assert one["p_randomisation"] == pytest.approx(1 / 51)
    assert found["pairs"]["en-de"]["signature"] == "model:wmt22|version:2"
    assert "| +0.0125 ±0.0000 |" in unpadded((copies / "out" / "comparison.md").read_text())


def test_spbleu_is_compared_with_its_model(copies):
    model = copies / "pieces.model"
    model.write_bytes(trained_pieces((copies / "a" / "en-de.ref").read_text().splitlines(), "char", 8000))
    pieces = PieceBleu(model)
    for folder in (copies / "a", copies / "b"):
        for pair in ("en-gu", "en-de", "en-fr"):
            texts = [(folder / f"{pair}.{suffix}").read_text().splitlines() for suffix in ("hyp", "ref")]
            found = score_pair(pair, *texts, pieces=pieces)
            change_pair(folder, pair, spbleu=found.spbleu, spbleu_signature=found.spbleu_signature)
    shown = compare(copies / "a", copies / "b", *FEW)
    assert shown.count("spBLEU") == 1 and "spBLEU is left out: it needs --spm FILE" in shown
    compare(copies / "a", copies / "b", *FEW, "--spm", model, "--out", copies / "out")
    found = differences_of(copies / "out")
    assert found["spBLEU"]["averages"]["all"]["p_randomisation"] < 0.05
    model.write_bytes(trained_pieces(texts[0], "bpe", 60))
    with pytest.raises(UserError, match=r"give spBLEU .*use the same --spm"):
        compare(copies / "a", copies / "b", *FEW, "--spm", model)
