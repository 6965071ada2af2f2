"""Batches with sentences of several pairs give what each pair gives alone."""

from argparse import Namespace
from dataclasses import replace

import pytest

from fairseq_mtmoe import register
from fairseq_mtmoe.evaluation import mixing
from fairseq_mtmoe.evaluation.mixing import Mixture
from fairseq_mtmoe.evaluation.translator import Decoding, Translator
from tests.helpers import untrained

SHORT = Decoding(beam=3, max_len_b=20, lenpen=0.7)
PAIRS = list(untrained.PAIRS)


def translator_of(model, decoding=SHORT, **settings):
    return Translator(str(model.data), [str(model.checkpoint)], decoding, **settings)


def mixed(model, decoding=SHORT, note=lambda batch: None, known=None):
    found = list(Mixture(translator_of(model, decoding), PAIRS, "test").translate(note, known or {}))
    assert sorted(text.pair for text in found) == sorted(PAIRS)
    return {text.pair: text for text in found}


def alone(model, decoding=SHORT):
    translator = translator_of(model, decoding)
    return {pair: translator.translate(pair, "test") for pair in PAIRS}


def test_hypotheses_are_those_of_one_pair_at_a_time(stock, sparse):
    for model in (stock, sparse):
        batches = []
        assert mixed(model, note=batches.append) == alone(model)
        assert max(map(len, batches)) == 3


@pytest.mark.parametrize(
    ("options", "most"),
    [
        ([*untrained.SPARSE, "--conditional", "attention,norm,alignment,bottleneck", "--task-ids", "pair"], 3),
        ([*untrained.SPARSE, "--task-ids", "aa+bb,cc"], 3),
        ([*untrained.SPARSE, "--enable-lang-ids"], 3),
        ([*untrained.STOCK, "--lang-tok-replacing-bos-eos"], 1),
    ],
    ids=["conditional", "groups", "language ids", "ends"],
)
def test_what_belongs_to_a_pair_goes_with_its_rows(tmp_path, options, most):
    register()
    model = Namespace(data=untrained.make_data(tmp_path / "data"), checkpoint=tmp_path / "model.pt")
    untrained.save_model(model.data, model.checkpoint, *options)
    batches = []
    found = mixed(model, note=batches.append)
    assert found == alone(model) and max(map(len, batches)) == most
    assert len({line for text in found.values() for line in text.hypotheses}) > 10


@pytest.mark.parametrize("settings", [{"max_tokens": 30}, {"batch_size": 3}, {}])
def test_batches_of_any_size_give_the_same(stock, settings, monkeypatch):
    monkeypatch.setattr(mixing, "MOST_SENTENCES", 10)
    sizes = []
    found = mixed(stock, replace(SHORT, **settings), lambda batch: sizes.append(sum(map(len, batch.values()))))
    assert found == alone(stock) and len(sizes) > 5 - 2 * (not settings) and sum(sizes) == 36
    assert settings or sorted(sizes) == [6, 10, 10, 10]


@pytest.mark.parametrize(("a", "b"), [(1, 0), (0.1, 1)])
def test_a_limit_by_the_source_is_of_each_sentence_and_not_of_its_batch(stock, a, b):
    limited = replace(SHORT, max_len_a=a, max_len_b=b)
    sizes = []
    found = mixed(stock, limited, lambda batch: sizes.append(sum(map(len, batch.values()))))
    assert found == alone(stock, replace(limited, batch_size=1))
    assert sizes == [36]
    assert a < 0.5 or found != alone(stock, limited)
