"""`mtmoe evaluate` prints and writes the scores of every pair."""

import json
import logging

import pytest
import sacrebleu
from click.testing import CliRunner

from fairseq_mtmoe import register
from fairseq_mtmoe.cli.evaluate import command
from fairseq_mtmoe.errors import UserError
from tests.helpers import untrained

PAIRS = ("en-cc", "en-bb", "en-aa")  # low, mid, high


def evaluate(*arguments):
    return CliRunner().invoke(command, [str(argument) for argument in arguments], catch_exceptions=False)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The folder of `data` and `checkpoint.pt`."""
    register()
    folder = tmp_path_factory.mktemp("model")
    untrained.make_data(folder / "data")
    untrained.save_model(folder / "data", folder / "checkpoint.pt")
    untrained.imitate(folder / "data", folder / "checkpoint.pt", "en-aa")
    return folder


@pytest.fixture(scope="module")
def result(model):
    return evaluate(model / "data", "--path", model / "checkpoint.pt", "--max-len-b", 20, "--beam", 3)


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
    mean = sum(found["bleu"] for found in content["pairs"].values()) / 3
    assert content["averages"]["all"]["bleu"] == pytest.approx(mean)
    assert content["settings"]["beam"] == 3 and content["settings"]["subset"] == "test"


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
    assert "13 sentences in" in lines[0] and lines[0].endswith("left out 1 longer than the model's positions")
    assert "left out" not in lines[1]


def test_pairs_subset_and_folder_can_be_chosen(model, tmp_path):
    evaluate(model / "data", "--path", model / "checkpoint.pt", "--lang-pairs", "en-cc", "--subset", "train",
             "--out", tmp_path / "out", "--max-len-b", 5, "--beam", 1)  # fmt: skip
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert names == ["en-cc.hyp", "en-cc.ref", "scores.json", "scores.md"]
    assert json.loads((tmp_path / "out" / "scores.json").read_text())["pairs"]["en-cc"]["sentences"] == 4


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["data", "--path", "nothing.pt"], r"There is no checkpoint .*nothing\.pt"),
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
