"""Span corruption as T5's authors have it; a pretraining that learns, and goes on as if never stopped."""

import json

import numpy as np
import pytest
from click.testing import CliRunner

from fairseq_mtmoe.backbones.t5 import model_file
from fairseq_mtmoe.errors import UserError

END, FIRST = 1, 999


@pytest.fixture
def spans():
    import span_corruption

    return span_corruption


def test_lengths_are_those_of_t5s_authors(spans):
    # Their inputs of 512 tokens are made of texts of 568, and answers have 114.
    lengths = spans.Lengths.filling(512)
    assert (lengths.tokens, lengths.inputs, lengths.answers) == (568, 512, 114)


def joined(inputs, answers):
    """The text again: each sentinel of the input is what follows it in the answer."""
    meant = {}
    for token in answers[:-1]:
        if token > FIRST - 100:
            sentinel = token
            meant[sentinel] = []
        else:
            meant[sentinel].append(token)
    assert inputs[-1] == answers[-1] == END
    return [word for token in inputs[:-1] for word in meant.get(token, [token])], meant


@pytest.mark.parametrize("length", [2, 3, 9, 141])
def test_an_answer_says_what_is_hidden_and_nothing_else(spans, length):
    texts = np.arange(4 * length).reshape(4, length) % 800 + 3
    lengths = spans.Lengths.of(length)
    inputs, answers = spans.corrupted(texts, FIRST, END, np.random.default_rng(length))
    assert inputs.shape == (4, lengths.inputs) and answers.shape == (4, lengths.answers)
    for text, read, written in zip(texts, inputs.tolist(), answers.tolist(), strict=True):
        again, meant = joined(read, written)
        assert again == text.tolist()
        assert list(meant) == [FIRST - n for n in range(lengths.spans)], "sentinels in order, each once"
        assert [token for token in read if token in meant] == list(meant)
        assert sum(map(len, meant.values())) == lengths.hidden and all(meant.values())


def test_each_way_to_hide_is_as_likely_as_any_other(spans):
    generator = np.random.default_rng(1)
    drawn = [tuple(spans.composition(5, 3, generator)) for _ in range(6000)]
    ways = sorted(set(drawn))
    assert len(ways) == 6 and all(sum(way) == 5 and min(way) == 1 for way in ways)
    assert all(abs(drawn.count(way) - 1000) < 130 for way in ways)  # 4.5 standard deviations


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """Sentences in which each word comes twice, so that half of what is hidden can be known."""
    generator = np.random.default_rng(1)
    words = [f"{first}{last}" for first in "bdfgklmn" for last in ("ay", "eo", "iu", "oa")]
    path = tmp_path_factory.mktemp("text") / "text"
    lines = {" ".join(f"{words[n]} {words[n]}" for n in generator.integers(0, 32, 8)) for _ in range(400)}
    path.write_text("\n".join(sorted(lines)) + "\n\n", encoding="utf-8")
    return path


SIZES = ("--width", 64, "--blocks", 1, "--vocab-size", 130, "--length", 16, "--batch", 16, "--no-bf16")


def pretrain(folder, text, *options):
    import pretrain_t5

    arguments = [str(word) for word in (folder, text, *SIZES, "--updates", 120, "--interval", 40, *options)]
    result = CliRunner().invoke(pretrain_t5.main, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return model_file.load(folder / "t5.pt")


@pytest.mark.slow
def test_a_run_learns_and_goes_on_as_if_never_stopped(tmp_path, text, monkeypatch):
    import pretrain_t5

    whole = pretrain(tmp_path / "whole", text)
    record = json.loads((tmp_path / "whole" / "pretraining.json").read_text())
    assert [point["update"] for point in record["curve"]] == [40, 80, 120]
    assert record["curve"][-1]["valid"] < 0.7 * record["loss_of_frequencies"]
    assert (
        whole.config.dropout_rate == 0.1 and whole.sentencepiece == (tmp_path / "whole" / "spiece.model").read_bytes()
    )

    save = pretrain_t5.Training.save

    def save_and_stop(training):
        save(training)
        if training.updates == 80:
            raise RuntimeError("stopped")

    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="stopped"):
        patch.setattr(pretrain_t5.Training, "save", save_and_stop)
        pretrain(tmp_path / "stopped", text)
    assert not (tmp_path / "stopped" / "t5.pt").exists()
    resumed = pretrain(tmp_path / "stopped", text)
    assert all(resumed.state[name].equal(value) for name, value in whole.state.items())

    with pytest.raises(UserError, match="must be a run with these settings"):
        pretrain(tmp_path / "stopped", text, "--lr", 0.01)


def test_the_texts_of_tasks_count_once(tmp_path):
    import pretrain_t5

    (tmp_path / "CoLA").mkdir()
    rows = [("a", "1", "", "We like it."), ("b", "0", "*", "It like we."), ("c", "1", "", "We like it.")]
    (tmp_path / "CoLA" / "train.tsv").write_text("".join("\t".join(row) + "\n" for row in rows))
    (tmp_path / "news").write_text("It rains.\n\nWe like it.\n")
    found = pretrain_t5.texts_of([tmp_path / "news"], tmp_path, ["cola"])
    assert found == ["It rains.", "We like it.", "It like we."]
