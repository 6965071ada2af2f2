"""`mtmoe evaluate` prints and writes the scores of every pair."""

import gc
import json
import re
import shutil
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import sacrebleu
from fairseq.sequence_generator import SequenceGenerator

from fairseq_mtmoe.cli import _evaluating, _shared
from fairseq_mtmoe.cli._evaluating import NamedTiers
from fairseq_mtmoe.core.errors import UserError
from fairseq_mtmoe.core.tiers import TIER_RULE
from fairseq_mtmoe.report import scores
from fairseq_mtmoe.translation.decode import decode, translator
from tests.helpers import untrained
from tests.helpers.invoked import invoked
from tests.helpers.piece_models import trained_pieces
from tests.helpers.refused import refused

evaluate = partial(invoked, "evaluate")
SCORES = Path("scores", "checkpoint-test")
PAIRS = ("en-cc", "en-bb", "en-aa")  # low, mid, high


@pytest.fixture(scope="module")
def model(stock, tmp_path_factory):
    return shutil.copytree(stock, tmp_path_factory.mktemp("model"), dirs_exist_ok=True)


def settings(model):
    return [model / "data", "--path", model / "checkpoint.pt", "--max-len-b", 20, "--beam", 3]


@pytest.fixture(scope="module")
def result(model):
    return evaluate(*settings(model))


@pytest.fixture
def copy(model, result, tmp_path):
    return shutil.copytree(model, tmp_path / "copy")


def content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def scores_in(folder):
    return json.loads((folder / "scores.json").read_text())


def test_the_files_agree_with_sacrebleu_on_the_written_texts(model, result):
    folder = model / SCORES
    names = {f"{pair}.{kind}" for pair in PAIRS for kind in ("hyp", "ref")}
    assert {path.name for path in folder.iterdir()} == {"scores.json", "scores.md", "scores.tex", *names}
    written = scores_in(folder)
    assert list(written["pairs"]) == list(PAIRS)
    for pair, found in written["pairs"].items():
        texts = [(folder / f"{pair}.{kind}").read_text().splitlines() for kind in ("hyp", "ref")]
        assert len(texts[0]) == len(texts[1]) == found["sentences"]
        assert found["bleu"] == sacrebleu.corpus_bleu(texts[0], [texts[1]]).score
        assert found["chrf"] == sacrebleu.corpus_chrf(texts[0], [texts[1]], word_order=2).score
    assert [found["tier"] for found in written["pairs"].values()] == ["low", "mid", "high"]
    of_text = written["pairs"]["en-aa"]
    assert of_text["bleu"] > 5 and (of_text["sentences"], of_text["untranslated"]) == (14, 1)
    assert [found["references"] for found in written["pairs"].values()] == [
        "test.en-cc.cc.bin", "test.en-bb.bb.bin", "raw/test.en-aa.aa",
    ]  # fmt: skip
    mean = sum(found["bleu"] for found in written["pairs"].values()) / 3
    assert written["averages"]["all"]["bleu"] == pytest.approx(mean)
    assert TIER_RULE in (folder / "scores.md").read_text()
    assert written["settings"]["beam"] == 3 and written["settings"]["subset"] == "test"


def test_scores_that_are_there_are_shown_again(model, result, monkeypatch):
    before = content(model / SCORES)
    monkeypatch.setattr(_evaluating, "Translator", None)
    monkeypatch.chdir(model)
    for arguments in (settings(model), ["data", "--path", "checkpoint.pt", *settings(model)[3:]]):
        shown = evaluate(*arguments)
        assert "has the scores of this model, data and settings already" in shown.stderr
        assert shown.stdout.split("BLEU nrefs")[0] == result.stdout.split("BLEU nrefs")[0]
    assert content(model / SCORES) == before


@pytest.mark.parametrize(
    ("arguments", "changed", "words"),
    [(["--beam", 4], SCORES / "scores.json", r"beam 3 \(now 4\);"), ([], "checkpoint.pt", "another checkpoint;"),
     ([], "data/raw/test.en-aa.aa", "other data;")],
)  # fmt: skip
def test_scores_of_something_else_stay(copy, arguments, changed, words):
    (copy / changed).write_bytes((copy / changed).read_bytes() + b"\n")
    before = content(copy / SCORES)
    with pytest.raises(UserError, match=rf"contains the scores of {words} give another folder as --out, or --over"):
        evaluate(*settings(copy), *arguments)
    assert content(copy / SCORES) == before


def test_other_scores_are_replaced_when_asked_to_and_what_is_missing_is_made_again(copy):
    before = content(copy / SCORES)
    for change in (Path.unlink, lambda path: path.write_text("other\n")):
        change(copy / SCORES / "en-bb.hyp")
        evaluate(*settings(copy))
        after = content(copy / SCORES)
        assert after.keys() == before.keys() and after["en-bb.hyp"] == before["en-bb.hyp"]
    one = (*settings(copy), "--lang-pairs", "en-aa")
    evaluate(*one, "--overwrite")
    after = content(copy / SCORES)
    assert after["scores.json"] != before["scores.json"]
    assert before.keys() - after.keys() == {f"en-{x}.{kind}" for x in ("bb", "cc") for kind in ("hyp", "ref")}
    assert "already" in evaluate(*one).stderr


def test_an_interrupted_evaluation_goes_on_with_the_pairs_that_are_not_scored(model, tmp_path, monkeypatch):
    monkeypatch.setattr(translator, "TOGETHER", 1)
    arguments = [*settings(model), "--batch-size", 4, "--out"]
    evaluate(*arguments, tmp_path / "whole")
    scored, score_pair = [], scores.score_pair

    def killed(pair, *others):
        if scored.count(pair) == 0 and len(scored) % 2 == 1:
            scored.append("killed")
            raise MemoryError
        scored.append(pair)
        return score_pair(pair, *others)

    monkeypatch.setattr(scores, "score_pair", killed)
    for _ in range(5):
        try:
            evaluate(*arguments, tmp_path / "out")
            break
        except MemoryError:
            assert not (tmp_path / "out" / "scores.json").exists()
            with pytest.raises(UserError, match=r"contains an unfinished evaluation of beam 3 \(now 2\); give another"):
                evaluate(*arguments, tmp_path / "out", "--beam", 2)
    assert sorted(scored) == sorted([*PAIRS, "killed", "killed"])  # each pair once
    assert content(tmp_path / "out") == content(tmp_path / "whole")


def test_several_checkpoints_in_one_call(model, tmp_path):
    shutil.copy(model / "checkpoint.pt", tmp_path / "other.pt")
    own, other = model / "checkpoint.pt", tmp_path / "other.pt"
    few = [model / "data", "--lang-pairs", "en-cc", "--beam", 1, "--max-len-b", 5]
    outs = ["--out", tmp_path / "a", "--out", tmp_path / "b"]
    evaluate(*few, "--path", own, "--path", f"{own}:{other}", *outs)
    first, second = scores_in(tmp_path / "a"), scores_in(tmp_path / "b")
    assert [len(one["settings"]["checkpoint_sha256"]) for one in (first, second)] == [1, 2]
    assert first["pairs"] == second["pairs"]  # an ensemble of equal models
    for wrong in (outs[:2], [*outs[:2], *outs[:2]]):
        with refused("--out"):
            evaluate(*few, "--path", own, "--path", other, *wrong)
    with pytest.raises(UserError, match="contains the scores of beam 1"):  # the second, before the first is begun
        evaluate(*few, "--path", own, "--path", f"{own}:{other}", "--out", tmp_path / "c", *outs[2:], "--beam", 2)
    assert not (tmp_path / "c").exists()


def test_further_references_and_further_metrics(model, result, tmp_path, monkeypatch):
    """COMET's package stands in; it is loaded once, and never beside a translator's model."""
    data = shutil.copytree(model / "data", tmp_path / "data")
    lines = (data / "raw" / "test.en-aa.aa").read_text().splitlines()
    better = (model / SCORES / "en-aa.hyp").read_text().splitlines()
    better = [line if number % 2 else "" for number, line in enumerate(better)]
    (data / "raw" / "test.en-aa.aa.1").write_text("".join(f"{line}\n" for line in better))
    (tmp_path / "spm.model").write_bytes(trained_pieces(lines, "unigram", 40))
    (tmp_path / "model.ckpt").write_text("a model")
    asked, loaded = [], []

    def predict(rows, **options):
        gc.collect()
        assert not any(isinstance(one, SequenceGenerator) for one in gc.get_objects())
        asked.extend(rows)
        return SimpleNamespace(scores=[len(row["mt"]) / 100 for row in rows])

    def load(path, local_files_only):
        loaded.append(path)
        return SimpleNamespace(predict=predict)

    monkeypatch.setitem(sys.modules, "comet", SimpleNamespace(load_from_checkpoint=load))
    outs, comet = (tmp_path / "out", tmp_path / "other"), ("--comet", tmp_path / "model.ckpt")
    shutil.copy(model / "checkpoint.pt", tmp_path / "other.pt")
    twice = ("--out", outs[0], "--path", tmp_path / "other.pt", "--out", outs[1])
    shown = evaluate(data, *settings(model)[1:], *twice, *comet, "--spm", tmp_path / "spm.model")
    assert len(loaded) == 1
    hypotheses, further = ((outs[0] / f"en-aa.{kind}").read_text().splitlines() for kind in ("hyp", "ref1"))
    references = [lines, [line or None for line in further]]
    found = scores_in(outs[0])
    score = found["pairs"]["en-aa"]
    assert score["bleu"] == sacrebleu.corpus_bleu(hypotheses, references).score and further == better
    assert "nrefs:var" in score["bleu_signature"] and "nrefs:1" in found["pairs"]["en-bb"]["bleu_signature"]
    assert 0 < score["spbleu"] < 100 and re.search(r"tok:spm-spm\.model-[0-9a-f]{8}\|", score["spbleu_signature"])
    by_line = [float(line) for line in (outs[0] / "en-aa.comet").read_text().splitlines()]
    assert by_line == [len(line) / 100 for line in hypotheses]
    assert score["metrics"]["COMET"] == pytest.approx(sum(by_line) / 14)
    means = [one["metrics"]["COMET"] for one in found["pairs"].values()]
    assert found["averages"]["all"]["metrics"]["COMET"] == pytest.approx(sum(means) / 3)
    own = {"src": untrained.as_text(untrained.sentences(13, 1)[3]), "mt": hypotheses[3], "ref": lines[3]}
    assert [row for row in asked if row["ref"] == lines[3]] == [own, own]
    assert f"{score['spbleu']:.2f}" in shown.stdout and f"{score['metrics']['COMET']:.4f}" in shown.stdout


def test_bad_input_is_one_sentence_before_anything_is_translated(model, tmp_path, monkeypatch):
    monkeypatch.setattr(decode.RowDecoder, "decode", None)
    monkeypatch.setitem(sys.modules, "comet", None)
    (tmp_path / "file").write_text("")
    for arguments, name in (
        (["--comet", tmp_path / "file"], "--comet"), (["--comet", tmp_path / "none"], "none"),
        (["--spm", tmp_path / "file"], "file"), (["--tiers", "nothing.json"], "nothing.json"),
        (["--out", tmp_path / "file" / "out"], "file/out"),
        (["--lang-pairs", "en-zz"], "--lang-pairs"), (["--tiers", "none"], "--tiers"),
    ):  # fmt: skip
        outs = [] if arguments[0] == "--out" else ["--out", tmp_path / "out"]
        with refused(name):
            evaluate(*settings(model), *arguments, *outs)
    damage = {"raw/test.en-aa.aa": "foreign\n" * 14, "raw/test.en-aa.aa.1": "one\n", "test.en-aa.en.idx": ""}
    for name, text in damage.items():
        data = shutil.copytree(model / "data", tmp_path / name.replace("/", " "))
        (data / name).write_text(text)
        with refused(name.removeprefix("raw/")):
            evaluate(data, *settings(model)[1:], "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_texts_of_others_are_not_replaced_unless_asked_for(model, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "en-cc.ref").write_text("mine\n")
    few = [*settings(model), "--lang-pairs", "en-cc", "--out", tmp_path / "out"]
    with refused("out"):
        evaluate(*few)
    assert content(tmp_path / "out") == {"en-cc.ref": b"mine\n"}
    evaluate(*few, "--overwrite")
    assert len((tmp_path / "out" / "en-cc.ref").read_text().splitlines()) == 12


def test_tiers_are_of_pairs_and_languages_in_either_spelling_and_a_recipe_names_them_too(tmp_path):
    (tmp_path / "tiers.json").write_text(json.dumps({"high": ["de_DE"], "mid": ["ro"], "low": ["en-de"]}))
    found = NamedTiers(str(tmp_path / "tiers.json")).of(["en_XX-de_DE", "cs-de", "ro_RO-en_XX", "en-fr"])
    assert found == {"en_XX-de_DE": "low", "cs-de": "high", "ro_RO-en_XX": "mid"}
    recipe, corpora = tmp_path / "mine.yaml", "[{name: a, pair: en-de, role: train, files: [a.en, a.de]}]"
    text = f"name: mine\ndirections: [en-xx]\ncorpora: {corpora}\n"
    recipe.write_text(f"{text}tiers: {{high: [de]}}\n")
    assert NamedTiers(str(recipe)).of(["en-de", "en-ro"]) == {"en-de": "high"}
    recipe.write_text(text)
    with refused("--tiers"):
        NamedTiers(str(recipe))


def test_a_log_file_has_lines_of_progress(model, tmp_path, monkeypatch):
    monkeypatch.setattr(_shared, "SECONDS_BETWEEN_LINES", 0.0)
    shown = evaluate(*settings(model), "--out", tmp_path / "out", "--batch-size", 8)
    lines = re.findall(r"^translating: (\d+) of (\d+) sentences(.*)$", shown.stderr, re.MULTILINE)
    done = [int(completed) for completed, _, _ in lines]
    assert len(done) > 2 and done == sorted(set(done)) and {total for _, total, _ in lines} == {str(done[-1])}
    assert re.fullmatch(r", \d+:\d\d:\d\d left", lines[-2][2])
