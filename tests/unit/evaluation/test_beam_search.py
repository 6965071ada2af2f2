"""The search for the best hypothesis alone finds what fairseq's finds; `test_mixing.py` has it on whole test sets."""

from argparse import Namespace
from dataclasses import replace

import pytest
import torch

from fairseq_mtmoe import register
from fairseq_mtmoe.evaluation import beam_search
from fairseq_mtmoe.evaluation.beam_search import BeamSearch, projection
from fairseq_mtmoe.evaluation.mixing import Mixture
from fairseq_mtmoe.evaluation.translator import Decoding, Translator
from tests.helpers import untrained

PAIRS = list(untrained.PAIRS)
DECODING = Decoding(beam=4, max_len_b=15, lenpen=0.6)


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """A data directory, and two models of it that have experts."""
    register()
    folder = tmp_path_factory.mktemp("two")
    made = Namespace(data=untrained.make_data(folder / "data"), paths=[folder / "1.pt", folder / "2.pt"])
    for seed, path in enumerate(made.paths):
        untrained.save_model(made.data, path, *untrained.SPARSE, seed=seed)
    return made


def both(two, paths, decoding=DECODING):
    """What fairseq's search finds, and ours."""
    translator = Translator(str(two.data), [str(path) for path in paths], decoding)
    alone = {pair: translator.translate(pair, "test").hypotheses for pair in PAIRS}
    return alone, {text.pair: text.hypotheses for text in Mixture(translator, PAIRS, "test").translate()}


@pytest.mark.parametrize("beam", [1, 7])
def test_beams_of_any_width(two, beam):
    alone, mixed = both(two, two.paths[:1], replace(DECODING, beam=beam))
    assert mixed == alone


def test_an_ensemble(two):
    alone, mixed = both(two, two.paths)
    assert mixed == alone != both(two, two.paths[:1])[0]


def test_best_words_are_found_by_columns(two, monkeypatch):
    monkeypatch.setattr(beam_search, "_MANY", 0)
    monkeypatch.setattr(beam_search, "_DEEP", 8)
    monkeypatch.setattr(beam_search, "_AT_ONCE", 300)
    monkeypatch.setattr(beam_search, "_ROWS", 7)
    alone, mixed = both(two, two.paths[:1])
    assert mixed == alone


def test_a_model_that_is_half_precise_is_asked_for_its_own_probabilities(two):
    alone, mixed = both(two, two.paths[:1], replace(DECODING, bf16=True))
    assert sum(a == b for pair in PAIRS for a, b in zip(alone[pair], mixed[pair], strict=True)) >= 30  # of 33
    model = Translator(str(two.data), [str(two.paths[0])], replace(DECODING, bf16=True)).direction("en-aa", "test")
    assert projection(model.generator.model.single_model) is None


def test_a_search_of_a_model_that_is_broken_ends(two):
    translator = Translator(str(two.data), [str(two.paths[0])], DECODING)
    direction = translator.direction("en-aa", "test")
    with torch.no_grad():
        translator.models[0].decoder.output_projection.weight.fill_(torch.nan)
    dataset = direction.dataset
    sample = dataset.collater([dataset[number] for number in range(3)])
    found = direction.task.inference_step(BeamSearch(direction.generator), translator.models, sample)
    assert [hypotheses[0]["tokens"].tolist() for hypotheses in found] == [[2]] * 3
