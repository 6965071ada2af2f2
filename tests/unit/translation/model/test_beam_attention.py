"""Generation with shared beams against stock fairseq's, which copies everything for each hypothesis."""

from functools import partial

import pytest
import torch
from fairseq.sequence_generator import SequenceGenerator

from tests.helpers.decoding import decode, orders
from tests.helpers.models import batch, moe_model, pair, perturb, stock_model, stub_task
from tests.helpers.pretended_gpu import pretended_gpu

WORDS = 40  # more than the room that is made at first


def sparse_pair(**options):
    """A sparse model, and stock fairseq's, which computes the same; pre-norm, translations differ in length."""
    sparse, stock = pair(partial(moe_model, dense_updates=1), **{"share_all_embeddings": False, **options})
    sparse.sparsify()
    return sparse, stock


def generate(models, beam=3, **options):
    generator = SequenceGenerator(models, stub_task().target_dictionary, beam, max_len_b=WORDS, **options)
    return generator.generate(models, {"net_input": batch(task_ids=False)})


def assert_same_hypotheses(found, wanted):
    for ours, theirs in zip(found, wanted, strict=True):
        for hypothesis, other in zip(ours, theirs, strict=True):
            assert hypothesis["tokens"].tolist() == other["tokens"].tolist()
            for name in ("score", "positional_scores", "attention"):
                torch.testing.assert_close(hypothesis[name], other[name], rtol=1e-4, atol=1e-4)


def test_hypotheses_are_stock_fairseqs():
    """Of one model in searches of several beams, some of which outgrow the first room."""
    sparse, stock = sparse_pair(encoder_normalize_before=True, decoder_normalize_before=True)
    for beam, least in (5, 1), (1, 1), (2, WORDS):
        wanted = generate([stock], beam, min_len=least)
        lengths = {len(sentence[0]["tokens"]) for sentence in wanted}
        assert len(lengths) > 1 or lengths == {WORDS + 1}  # sentences leave the batch at different times
        assert_same_hypotheses(generate([sparse], beam, min_len=least), wanted)


@pytest.mark.parametrize("option", ["cross_self_attention", "no_cross_attention"])
def test_unusual_attention_decodes_as_stock_fairseqs(option):
    dense, stock = pair(**{option: True})
    assert_same_hypotheses(generate([dense]), generate([stock]))


def test_ensembles_with_stock_models():
    sparse, stock = sparse_pair()
    other = perturb(stock_model(seed=5))
    assert_same_hypotheses(generate([sparse, other]), generate([stock, other]))


def test_a_model_without_state_in_an_ensemble():
    sparse, _ = sparse_pair()
    decode(sparse, batch(task_ids=False), keeps_state=False)


@pytest.mark.parametrize("padded_step", [None, 1])
def test_rows_that_stay_with_their_sentences(padded_step):
    sparse, _ = sparse_pair(no_token_positional_embeddings=True)  # fairseq counts padding in only one of the two modes
    state = decode(
        sparse, batch(task_ids=False), orders(range(4), range(4), [0, 2, 3], range(3), [1], [0]), padded_step
    )
    assert all(len(keys) == 1 for keys, _ in state.source.values())


def test_few_sentences_are_moved_to_the_places_of_others():
    sparse, _ = sparse_pair()
    state = decode(sparse, batch(task_ids=False), orders([0, 3, 2], [0, 1, 2], [2, 1]))
    assert all(keys._base is not None for keys, _ in [*state.own.values(), *state.source.values()])  # no copies


def test_the_host_asks_once_for_each_word_of_a_translation():
    """The stacks' questions about orders, among all else that it waits for."""
    sparse, _ = sparse_pair()
    with pretended_gpu() as rules:
        sparse.cuda()
        generator = SequenceGenerator([sparse], stub_task().target_dictionary, 3, max_len_b=6, min_len=6)
        generator.generate([sparse], {"net_input": {key: x.cuda() for key, x in batch(task_ids=False).items()}})
    words = sum(line.endswith("stacks.py:context_of") for _, line in rules.waits)
    assert words > 5
    assert sum(line.endswith("beam_attention.py:_compute_order") for _, line in rules.waits) == words - 1
