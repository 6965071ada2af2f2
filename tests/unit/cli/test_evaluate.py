"""`mtmoe evaluate` prints and writes the scores of every pair."""

import json
import logging
import shutil

import pytest
import sacrebleu
from click.testing import CliRunner

from fairseq_mtmoe import register
from fairseq_mtmoe.cli.evaluate import command
from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.evaluation import translator
from tests.helpers import untrained

PAIRS = ("en-cc", "en-bb", "en-aa")  # low, mid, high


def evaluate(*arguments):
    return CliRunner().invoke(command, [str(argument) for argument in arguments], catch_exceptions=False)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The folder of `data`, with text of en-aa alone, and `checkpoint.pt`."""
    register()
    folder = tmp_path_factory.mktemp("model")
    untrained.make_data(folder / "data")
    untrained.save_model(folder / "data", folder / "checkpoint.pt")
    references = untrained.imitate(folder / "data", folder / "checkpoint.pt", "en-aa")
    untrained.write_raw(folder / "data", "en-aa", references)
    return folder


def settings(model):
    return [model / "data", "--path", model / "checkpoint.pt", "--max-len-b", 20, "--beam", 3]


@pytest.fixture(scope="module")
def result(model):
    return evaluate(*settings(model))


def content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_the_files_agree_with_sacrebleu_on_the_written_texts(model, result):
    folder = model / "scores" / "checkpoint-test"
    names = {f"{pair}.{kind}" for pair in PAIRS for kind in ("hyp", "ref")}
    assert {path.name for path in folder.iterdir()} == {"scores.json", "scores.md", *names}
    content = json.loads((folder / "scores.json").read_text())
    assert list(content["pairs"]) == list(PAIRS)
    for pair, found in content["pairs"].items():
        texts = [(folder / f"{pair}.{kind}").read_text().splitlines() for kind in ("hyp", "ref")]
        assert len(texts[0]) == len(texts[1]) == found["sentences"]
        assert found["bleu"] == sacrebleu.corpus_bleu(texts[0], [texts[1]]).score
        assert found["chrf"] == sacrebleu.corpus_chrf(texts[0], [texts[1]], word_order=2).score
    assert [found["tier"] for found in content["pairs"].values()] == ["low", "mid", "high"]
    assert content["pairs"]["en-aa"]["bleu"] > 5
    assert content["pairs"]["en-aa"]["sentences"] == 14 and content["pairs"]["en-aa"]["untranslated"] == 1
    assert {found["references"] for found in content["pairs"].values()} == {
        "raw/test.en-aa.aa", "test.en-bb.bb.bin", "test.en-cc.cc.bin",
    }  # fmt: skip
    mean = sum(found["bleu"] for found in content["pairs"].values()) / 3
    assert content["averages"]["all"]["bleu"] == pytest.approx(mean)
    assert content["settings"]["beam"] == 3 and content["settings"]["subset"] == "test"


def test_the_references_are_the_text_that_was_prepared(model, result):
    folder = model / "scores" / "checkpoint-test"
    raw = (model / "data" / "raw" / "test.en-aa.aa").read_text()
    assert "strange" in raw and (folder / "en-aa.ref").read_text() == raw
    for seed, pair in ((111, "en-bb"), (112, "en-cc")):  # as make_data writes them
        lines = untrained.sentences(untrained.TEST_SIZES[pair], seed)
        assert (folder / f"{pair}.ref").read_text().splitlines() == [untrained.as_text(line) for line in lines]
    assert (folder / "en-aa.hyp").read_text().endswith("\n\n")  # the sentence that is too long


def test_the_table_shows_what_the_files_say(model, result):
    assert result.exit_code == 0
    content = json.loads((model / "scores" / "checkpoint-test" / "scores.json").read_text())
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in result.output.splitlines() if "│" in line]
    for pair, found in content["pairs"].items():
        assert [pair, found["tier"], str(found["sentences"]), f"{found['bleu']:.2f}", f"{found['chrf']:.2f}"] in rows
    for name, mean in content["averages"].items():
        count = "3 pairs" if name == "all" else "1 pair"
        assert [name, count, "", f"{mean['bleu']:.2f}", f"{mean['chrf']:.2f}"] in rows
    assert content["pairs"]["en-aa"]["bleu_signature"] in result.output
    assert str(model / "scores" / "checkpoint-test" / "scores.md") in result.output


def test_each_pair_is_reported_as_it_is_done(result):
    lines = [line for line in result.stderr.splitlines() if line.startswith("en-")]
    assert [line.split(":")[0] for line in lines] == ["en-aa", "en-bb", "en-cc"]
    assert "14 sentences in" in lines[0] and lines[0].endswith(" s; 1 longer than the model's positions not translated")
    assert lines[1].endswith(" s")


def test_as_fairseq_does_it(model, tmp_path):
    shown = evaluate(*settings(model), "--lang-pairs", "en-aa", "--references", "fairseq", "--out", tmp_path / "out")
    score = json.loads((tmp_path / "out" / "scores.json").read_text())["pairs"]["en-aa"]
    assert (score["sentences"], score["altered_references"], score["references"]) == (13, 2, "test.en-aa.aa.bin")
    assert "2 of 13 references lost words that the dictionary does not have" in shown.stderr
    assert "<<unk>>" in (tmp_path / "out" / "en-aa.ref").read_text()
    assert "2 of 13 references lost" in (tmp_path / "out" / "scores.md").read_text()


def test_scores_that_are_there_are_shown_again(model, result, monkeypatch):
    folder = model / "scores" / "checkpoint-test"
    before = content(folder)
    monkeypatch.setattr(translator, "Translator", None)
    monkeypatch.chdir(model)
    for arguments in (settings(model), ["data", "--path", "checkpoint.pt", *settings(model)[3:]]):
        shown = evaluate(*arguments)
        assert "has the scores of this model, data and settings already" in shown.stderr
        assert shown.stdout.split("BLEU nrefs")[0] == result.stdout.split("BLEU nrefs")[0]
    assert content(folder) == before


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (["--beam", 4], r"beam 3 \(now 4\);"),
        (["--lang-pairs", "en-aa"], r"lang_pairs \[\] \(now \['en-aa'\]\);"),
        ("checkpoint.pt", "another checkpoint;"),
        ("data/raw/test.en-aa.aa", "other data;"),
        ("scores/checkpoint-test/scores.json", "another version of fairseq_mtmoe;"),
    ],
)
def test_other_scores_are_replaced_when_asked_to(model, result, tmp_path, change, words):
    copy = shutil.copytree(model, tmp_path / "copy")
    folder = copy / "scores" / "checkpoint-test"
    arguments = [*settings(copy), *(change if isinstance(change, list) else ())]
    if change == "scores/checkpoint-test/scores.json":
        old = json.loads((copy / change).read_text())
        del old["settings"]["checkpoint_sha256"], old["settings"]["references"]
        (copy / change).write_text(json.dumps(old))
    elif isinstance(change, str):
        with open(copy / change, "ab") as file:
            file.write(b"\n")
    before = content(folder)
    with pytest.raises(UserError, match=rf"holds the scores of {words} give another folder as --out, or --overwrite"):
        evaluate(*arguments)
    assert content(folder) == before
    if isinstance(change, list):
        evaluate(*arguments, "--overwrite")
        after = content(folder)
        assert after["scores.json"] != before["scores.json"]
        assert after.keys() == before.keys() - ({f"en-{x}.{kind}" for x in ("bb", "cc") for kind in ("hyp", "ref")}
                                                if "--lang-pairs" in change else set())  # fmt: skip
        assert "already" in evaluate(*arguments).stderr


def test_what_is_missing_of_the_scores_is_made_again(model, result, tmp_path):
    copy = shutil.copytree(model, tmp_path / "copy")
    before = content(copy / "scores" / "checkpoint-test")
    (copy / "scores" / "checkpoint-test" / "en-bb.hyp").unlink()
    evaluate(*settings(copy))
    after = content(copy / "scores" / "checkpoint-test")
    assert after.keys() == before.keys() and after["en-bb.hyp"] == before["en-bb.hyp"]


def test_nothing_is_translated_before_the_folder_and_the_text_are_looked_at(model, tmp_path, monkeypatch):
    monkeypatch.setattr(translator.Translator, "translate", None)
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="file/out` must be a folder that can be written to, but is not: Not a"):
        evaluate(*settings(model), "--out", tmp_path / "file" / "out")
    data = shutil.copytree(model / "data", tmp_path / "data")
    (data / "raw" / "test.en-cc.cc").write_text("foreign\n" * 12)
    with pytest.raises(UserError, match=r"test\.en-cc\.cc` must be the text of .*, but line 1 is another there"):
        evaluate(data, "--path", model / "checkpoint.pt", "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_pairs_subset_and_folder_can_be_chosen(model, tmp_path):
    evaluate(model / "data", "--path", model / "checkpoint.pt", "--lang-pairs", "en-cc", "--subset", "train",
             "--out", tmp_path / "out", "--max-len-b", 5, "--beam", 1)  # fmt: skip
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert names == ["en-cc.hyp", "en-cc.ref", "scores.json", "scores.md"]
    assert json.loads((tmp_path / "out" / "scores.json").read_text())["pairs"]["en-cc"]["sentences"] == 4


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["data", "--path", "nothing.pt"], r"nothing\.pt` must be a checkpoint file, but there is none"),
        (["nothing", "--path", "checkpoint.pt"], "There is no data directory"),
        (["data", "--path", "checkpoint.pt", "--subset", "dev"], "`--subset` must be one that"),
        (["data", "--path", "checkpoint.pt", "--lang-pairs", "en-zz"], "`--lang-pairs` must be pairs"),
    ],
)
def test_bad_input_is_one_sentence_and_changes_nothing(model, arguments, sentence, monkeypatch, tmp_path):
    monkeypatch.chdir(model)
    with pytest.raises(UserError, match=sentence):
        evaluate(*arguments, "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_fairseq_speaks_again_after_the_command(result):
    assert logging.getLogger("fairseq").level == logging.NOTSET
