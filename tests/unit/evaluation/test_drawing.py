"""Translations that are drawn: by the model's probabilities, and the same wherever and with whatever they are drawn."""

from collections import Counter
from dataclasses import replace

import pytest
import torch
from click.testing import CliRunner

from fairseq_mtmoe.cli.main import commands
from fairseq_mtmoe.evaluation.drawing import _Words
from fairseq_mtmoe.evaluation.text_translator import TextTranslator
from fairseq_mtmoe.evaluation.translator import Decoding
from tests.helpers.refused import refused
from tests.helpers.translated_text import save_sparse_model, texts

DRAWN = Decoding(beam=1, max_len_b=8, cpu=True, sampling=True, seed=3)
TEXT = texts(20, 5)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_sparse_model(tmp_path_factory.mktemp("drawing"))


@pytest.fixture(scope="module")
def translator(model):
    return TextTranslator([str(model)], DRAWN)


def drawn(translator, lines, n_best=1, target="aa", **changes):
    decoding = replace(DRAWN, **changes)
    group = translator.forms.group(lines, "en", [target], decoding, n_best)
    for number, rows in enumerate(group.batches):
        group.add(number, translator.translate_batch(rows, decoding, n_best))
    return group.finished(target)


def test_words_are_drawn_as_often_as_they_are_probable():
    words, rows = _Words(None, pad=1, eos=2), 1000
    log_probs = torch.tensor([[0.1, 0.2, 0.2, 0.4, 0.1]]).log().repeat(rows, 1)
    words.uniform_R = (torch.arange(rows, dtype=torch.float64) + 0.5) / rows
    asked = torch.full((rows,), 2)

    def counts(may_end):
        found = words.given(log_probs, asked, may_end)
        assert found.asked_R.exp().tolist() == pytest.approx([0.2] * rows)
        assert torch.equal(found.values_RK, log_probs.gather(1, found.words_RK))
        return dict(Counter(found.words_RK[:, 0].tolist()))

    assert counts(True) == {0: 125, 2: 250, 3: 500, 4: 125}  # never `pad`
    assert counts(False) == pytest.approx({0: 1000 / 6, 3: 4000 / 6, 4: 1000 / 6}, abs=1)
    words = _Words(2, pad=1, eos=2)
    words.uniform_R = (torch.arange(rows, dtype=torch.float64) + 0.5) / rows
    assert counts(True) == pytest.approx({3: 2000 / 3, 2: 1000 / 3}, abs=1)


def test_a_sentence_has_one_draw_in_any_batch_and_another_with_another_seed(translator):
    together = [best.text for best, *_ in drawn(translator, TEXT)]
    assert [best.text for line in reversed(TEXT) for best, *_ in drawn(translator, [line])] == together[::-1]
    assert [best.text for best, *_ in drawn(translator, TEXT, batch_size=3)] == together
    others = [best.text for best, *_ in drawn(translator, TEXT, seed=4)]
    assert sum(one != other for one, other in zip(together, others, strict=True)) > len(TEXT) / 2
    assert len(set(together)) > len(set(TEXT)) / 2


def test_python_draws_as_the_command_does(model):
    translator = TextTranslator([str(model)], replace(DRAWN, sampling=False, beam=5, seed=1))
    given = dict(source="en", target="aa")
    for options in ({"seed": 3}, {"seed": 3, "sampling_topk": 2, "beam": 3}):
        expected = [best.text for best, *_ in drawn(translator, TEXT, **options)]
        assert translator.translate(TEXT, **given, sampling=True, **options) == expected
    with refused("--sampling-topk"):
        translator.translate(TEXT, **given, sampling_topk=2)


def test_scores_are_those_of_forced_decoding_and_the_only_word_is_the_best(translator):
    several = drawn(translator, TEXT[:4], n_best=3, beam=3)
    assert all(len({one.text for one in of}) > 1 for of in several)
    assert all(of[0].score >= of[1].score >= of[2].score for of in several)
    greedy = drawn(translator, TEXT, sampling_topk=1)
    searched = drawn(translator, TEXT, sampling=False)
    assert [one.text for one, *_ in greedy] == [one.text for one, *_ in searched]
    assert [one.score for one, *_ in greedy] == pytest.approx([one.score for one, *_ in searched], rel=1e-4)


def test_the_command_draws_once_a_line_and_refuses_what_belongs_to_draws(model, tmp_path):
    (tmp_path / "in.txt").write_text("".join(f"{line}\n" for line in TEXT))
    job = ["translate", str(model), "--from", "en", "--to", "aa", "--cpu", "--max-len-b", "8"]
    job += ["--input", str(tmp_path / "in.txt")]

    def written(*more):
        result = CliRunner().invoke(commands, [*job, *more], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.stdout

    first = written("--sampling")
    assert written("--sampling", "--seed", "1", "--beam", "1", "--batch-size", "4") == first
    assert written("--sampling", "--seed", "2") != first != written("--sampling", "--sampling-topk", "5")
    for option in ("--seed", "--sampling-topk"):
        with refused(option, "--sampling"):
            CliRunner().invoke(commands, [*job, option, "3"], catch_exceptions=False)
