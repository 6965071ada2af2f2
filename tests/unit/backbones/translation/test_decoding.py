"""Generation with shared beams against stock fairseq's, which copies everything for each hypothesis."""

import pytest
import torch
from fairseq.sequence_generator import EnsembleModel, SequenceGenerator

from fairseq_mtmoe.backbones.translation.decoding import STATE, group_size, sentence_order
from tests.helpers.models import batch, dense_model, moe_model, perturb, stock_model, stub_task
from tests.helpers.pretended_gpu import pretended_gpu

WORDS = 40  # more than the room that is made at first


def pair(**options):
    """Stock fairseq's model, and a sparse one that computes the same; pre-norm, translations differ in length."""
    options = {"share_all_embeddings": False, **options}
    stock, sparse = stock_model(**options), moe_model(dense_updates=1, **options)
    perturb(stock)
    sparse.load_state_dict(stock.state_dict())
    sparse.sparsify()
    return stock, sparse


def generate(models, beam=3, **options):
    generator = SequenceGenerator(models, stub_task().target_dictionary, beam, max_len_b=WORDS, **options)
    sample = {"net_input": {key: batch()[key] for key in ("src_tokens", "src_lengths")}}
    return generator.generate(models, sample)


def assert_same_hypotheses(found, wanted):
    for ours, theirs in zip(found, wanted, strict=True):
        for hypothesis, other in zip(ours, theirs, strict=True):
            assert hypothesis["tokens"].tolist() == other["tokens"].tolist()
            for name in ("score", "positional_scores", "attention"):
                torch.testing.assert_close(hypothesis[name], other[name], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("norm", [False, True])
def test_hypotheses_are_stock_fairseqs(norm):
    """Of one model in searches of several beams."""
    stock, sparse = pair(encoder_normalize_before=norm, decoder_normalize_before=norm)
    for beam in (5, 1, 2):
        wanted = generate([stock], beam)
        lengths = {len(sentence[0]["tokens"]) for sentence in wanted}
        assert len(lengths) > 1 or not norm  # sentences leave the batch at different times
        assert_same_hypotheses(generate([sparse], beam), wanted)


def test_hypotheses_outgrow_the_first_room():
    stock, sparse = pair()
    wanted = generate([stock], min_len=WORDS)
    assert len(wanted[0][0]["tokens"]) == WORDS + 1
    assert_same_hypotheses(generate([sparse], min_len=WORDS), wanted)


@pytest.mark.parametrize("option", ["cross_self_attention", "no_cross_attention"])
def test_unusual_attention_decodes_as_stock_fairseqs(option):
    stock, dense = stock_model(**{option: True}), dense_model(**{option: True})
    perturb(stock)
    dense.load_state_dict(stock.state_dict())
    assert_same_hypotheses(generate([dense]), generate([stock]))


def test_ensembles_with_stock_models():
    stock, sparse = pair()
    other = stock_model(seed=5)
    perturb(other)
    assert_same_hypotheses(generate([sparse, other]), generate([stock, other]))


def test_a_model_without_state_in_an_ensemble():
    _, sparse = pair()
    ensemble = EnsembleModel([sparse])
    net_input = {key: batch()[key] for key in ("src_tokens", "src_lengths")}
    order = torch.arange(4).repeat_interleave(3)
    encoder_outs = ensemble.reorder_encoder_out(ensemble.forward_encoder(net_input), order)
    tokens = torch.randint(4, 24, (12, 5))
    ensemble.has_incremental = False
    found, _ = ensemble.forward_decoder(tokens, encoder_outs, [{}])  # the log-probabilities of the last word
    wanted = sparse(**{key: value[order] for key, value in net_input.items()}, prev_output_tokens=tokens)
    torch.testing.assert_close(found, wanted[0].log_softmax(-1)[:, -1])


@torch.no_grad()
def decode(model, orders, padded_step=None, inputs=("src_tokens", "src_lengths")):
    """Compare every step of a search that reorders its rows so, at first three per sentence, with teacher forcing.

    Stock fairseq is no reference here: it forgets that a row can change its sentence. Returns the state at the end.
    """
    ensemble, state = EnsembleModel([model]), {}
    net_input = {key: batch()[key] for key in inputs}
    sentence_R = torch.arange(4).repeat_interleave(3)
    encoder_outs = ensemble.reorder_encoder_out(ensemble.forward_encoder(net_input), sentence_R)
    random = torch.Generator().manual_seed(1)
    words = torch.full((12, 1), 2)
    for step, order in enumerate(orders):
        found, _ = ensemble.forward_decoder(words, encoder_outs, [state])
        sources = {key: value[sentence_R] for key, value in net_input.items()}
        whole, _ = model(**sources, prev_output_tokens=words)
        torch.testing.assert_close(found, whole[:, -1].log_softmax(-1), rtol=1e-4, atol=1e-4)
        sentence_R = sentence_R[order]
        words = torch.cat([words[order], torch.randint(4, 24, (len(order), 1), generator=random)], 1)
        if step == padded_step:
            words[::4, -1] = 1
        ensemble.reorder_incremental_state([state], order)
        encoder_outs = ensemble.reorder_encoder_out(encoder_outs, order)
    return state[STATE]


def grouped_orders(sizes, seed=2):
    """Orders that leave rows with their sentences, of which fewer and fewer stay."""
    random = torch.Generator().manual_seed(seed)
    orders, sentences = [], 4
    for size in sizes:
        kept = torch.randperm(sentences, generator=random)[:size].sort().values
        orders.append((kept.unsqueeze(1) * 3 + torch.randint(0, 3, (size, 3), generator=random)).view(-1))
        sentences = size
    return orders


@pytest.mark.parametrize("padded_step", [None, 1])
def test_rows_that_stay_with_their_sentences(padded_step):
    _, sparse = pair(no_token_positional_embeddings=True)  # fairseq counts padding in only one of the two modes
    state = decode(sparse, grouped_orders([4, 4, 3, 3, 1, 1]), padded_step)
    assert (state.beam, state.num_sentences) == (3, 1)
    assert all(len(keys) == 1 for keys, _ in state.source.values())


def test_few_sentences_are_moved_to_the_places_of_others():
    _, sparse = pair()
    orders = [
        torch.tensor(kept)[:, None].mul(3).add(torch.arange(3)).view(-1) for kept in ([0, 3, 2], [0, 1, 2], [2, 1])
    ]
    state = decode(sparse, orders)
    assert state.num_sentences == 2
    assert all(keys._base is not None for keys, _ in [*state.own.values(), *state.source.values()])  # no copies


def test_groups_and_orders():
    assert group_size(2, torch.tensor([0, 0, 1, 1])) == 2
    assert group_size(2, torch.tensor([0, 1, 0, 1])) == 1
    assert group_size(2, torch.tensor([1, 1, 0, 0])) == 1
    assert group_size(2, torch.tensor([0, 0, 1])) == 1
    order, stays = sentence_order(torch.tensor([5, 4, 1, 1]), 2, 3)
    assert order.tolist() == [2, 0] and not stays
    with pytest.raises(AssertionError, match="change their sentence"):
        sentence_order(torch.tensor([5, 4, 1, 2]), 2, 3)
    assert sentence_order(torch.tensor([1, 1, 2, 3]), 2, 2).stays and not sentence_order(torch.arange(4), 2, 3).stays


def test_the_host_asks_once_for_each_word_of_a_translation():
    """The stacks' questions about orders, among all else that it waits for."""
    _, sparse = pair()
    with pretended_gpu() as rules:
        sparse.cuda()
        generator = SequenceGenerator([sparse], stub_task().target_dictionary, 3, max_len_b=6, min_len=6)
        sample = {"net_input": {key: batch()[key].cuda() for key in ("src_tokens", "src_lengths")}}
        generator.generate([sparse], sample)
    words = sum(line.endswith("stacks.py:context_of") for _, line in rules.waits)
    assert words > 5
    assert sum(line.endswith("decoding.py:_asked") for _, line in rules.waits) == words - 1
