"""Labels of words, and spans: from tokens to a loss and a prediction, each beside a slow reference."""

import itertools
import math
import random
from functools import partial

import numpy as np
import pytest
import torch
from seqeval.metrics import f1_score
from tokenizers import Tokenizer
from torch.nn.functional import cross_entropy, linear

from fairseq_mtmoe.nlu.bert.heads import NO_TOKEN, UNREAD, TaskHeads
from fairseq_mtmoe.nlu.data.dataset import NO_WORD, TaskCollate, TaskDataset
from fairseq_mtmoe.nlu.data.reading import Example
from fairseq_mtmoe.nlu.data.tokenizing import TextTokenizer
from fairseq_mtmoe.nlu.task.metrics import score, standard_error
from fairseq_mtmoe.nlu.types.task_type import Predictions, flattened
from fairseq_mtmoe.nlu.types.tokens import Span, WordLabels
from tests.helpers.benchmark import serialized_tokenizer

ANSWER = WordLabels(("O", "B-x", "I-x", "B-y", "I-y"))
TOKENIZER = TextTokenizer(serialized_tokenizer(), 8)
NONE = math.nan


def sentence(*words, tags=()):
    return Example(((" ".join(words),),), 1, "0", words=words, tags=tags or tuple(n % 5 for n in range(len(words))))


# Eight tokens: [CLS], six of the text, [SEP]. The last word of the first is truncated; some words have no token.
SENTENCES = [sentence("a.", "b.", "c", "d", "e"), sentence("a", "\u200b", "(b)"), sentence("\u200b")]


def batch():
    split = TOKENIZER.tokenize(SENTENCES)
    items = [(0, {**TaskDataset(split)[n], "id": n}) for n in range(len(split))]
    return TaskCollate(TOKENIZER.padding, ["words"])([], items)


def test_a_words_place_is_that_of_its_first_token():
    made = batch()
    first = made["net_input"]["spans"]["words"][..., 0].tolist()
    assert first == [[1, 3, 5, 6, NO_TOKEN], [1, NO_TOKEN, 2, NO_WORD, NO_WORD], [NO_TOKEN, *[NO_WORD] * 4]]
    np.testing.assert_array_equal(made["target"]["words"], [[0, 1, 2, 3, NONE], [0, NONE, 2, NONE, NONE], [NONE] * 5])


def test_first_tokens_are_those_of_the_words_characters():
    tokenizer, draw = Tokenizer.from_str(serialized_tokenizer()), random.Random(3)
    ours = TextTokenizer(serialized_tokenizer(), 64)
    pieces = [*"abcxyz.?!", "\u200b", "\xe9", "\U0001f600", "happened", "\u0301"]
    for _ in range(200):
        words = ["".join(draw.choices(pieces, k=draw.randint(1, 4))) for _ in range(draw.randint(1, 6))]
        encoding = tokenizer.encode(" ".join(words), add_special_tokens=False)
        places, start = [], 0
        for word in words:
            tokens = map(encoding.char_to_token, range(start, start + len(word)))
            places.append(next((token + 1 for token in tokens if token is not None), -1))  # after [CLS]
            start += len(word) + 1
        assert ours.tokenize([sentence(*words)]).words_W.tolist() == places, words


def test_head_loss_and_gradients_are_those_of_a_loop():
    made = batch()
    heads = TaskHeads(6, {"words": ANSWER.head})
    torch.manual_seed(1)
    hidden = torch.randn(3, 8, 6, requires_grad=True)
    rows, spans = (made["net_input"][name]["words"] for name in ("rows", "spans"))
    labels = made["target"]["words"]
    numbers = heads(hidden, {"words": rows}, {"words": spans})["words"]
    loss, slow, head = ANSWER.loss(numbers, labels), 0.0, heads["words"]
    by_hand = partial(linear, weight=head.weight, bias=head.bias)
    for example, (first, right) in enumerate(zip(spans[..., 0].tolist(), labels.tolist(), strict=True)):
        words = [(token, int(label)) for token, label in zip(first, right, strict=True) if token >= 0]
        of_words = [cross_entropy(by_hand(hidden[example, token]), torch.tensor(label)) for token, label in words]
        slow = slow + sum(of_words) / max(len(words), 1) / math.log(5)
    assert loss.item() == pytest.approx(slow.item(), rel=1e-5)
    inputs = (hidden, head.weight, head.bias)
    for fast, right in zip(torch.autograd.grad(loss, inputs), torch.autograd.grad(slow, inputs), strict=True):
        torch.testing.assert_close(fast, right, rtol=1e-5, atol=1e-6)
    predictions = ANSWER.predictions(numbers)
    assert predictions[labels.isnan() & (spans[..., 0] == NO_TOKEN)].tolist() == [0, 0, 0]
    assert predictions.isnan().tolist() == (spans[..., 0] == NO_WORD).tolist()
    assert predictions[0, :4].tolist() == by_hand(hidden[0, [1, 3, 5, 6]]).argmax(1).tolist()
    half = heads.half()(hidden.half(), {"words": rows}, {"words": spans})["words"]
    assert half.isfinite().all() and ANSWER.loss(half, labels).isfinite()


def test_uncertainty_is_that_of_the_words_in_the_loss():
    certain, lost = [90.0, 0, 0, 0, 0], [0.0, *[torch.finfo(torch.float32).min] * 4]
    none = [torch.finfo(torch.float32).min] * 5
    numbers = torch.tensor([[[0.0] * 5, certain, lost], [[2.0] * 5, [1.0] * 5, none], [lost, none, none]])
    labels = torch.tensor([[0.0, 3.0, NONE], [2.0, 0.0, NONE], [NONE] * 3])
    entropy, most = ANSWER.uncertainty(numbers, labels)
    assert entropy.tolist() == pytest.approx([math.log(5) / 2, math.log(5), 0], abs=1e-6)
    assert most.tolist() == pytest.approx([math.log(5)] * 3)


def test_f1_of_entities_is_seqevals_whatever_the_order_of_batches():
    draw = np.random.default_rng(4)
    right = [tuple(draw.integers(0, 5, draw.integers(1, 9)).tolist()) for _ in range(60)]
    said = [tuple(n if draw.random() < 0.7 else int(draw.integers(0, 5)) for n in tags) for tags in right]
    split = TextTokenizer(serialized_tokenizer(), 64).tokenize([sentence(*"a" * len(t), tags=t) for t in right])
    parts = []
    for examples in np.array_split(draw.permutation(60), 13):
        width = max(len(said[n]) for n in examples)
        rows = torch.tensor([[*map(float, said[n]), *[NONE] * (width - len(said[n]))] for n in examples])
        parts.append(flattened(torch.from_numpy(examples), rows))
    predictions = Predictions.gathered(torch.cat(parts))
    columns = ANSWER.columns("entity-f1", split, predictions)
    by_seqeval = f1_score(*([[ANSWER.labels[n] for n in tags] for tags in of] for of in (right, said)))
    assert 20 < score("entity-f1", *columns) < 80
    assert score("entity-f1", *columns) == pytest.approx(100 * by_seqeval)
    assert 1 < standard_error("entity-f1", *columns) < 10
    lines = ANSWER.label_text(split, predictions, ANSWER.labels)
    assert lines == ["\n".join(f"a\t{ANSWER.labels[n]}" for n in tags) for tags in said]


PASSAGES = [(3, 9), (2, 4), (5, 5), (1, 10)]  # the third is empty
LABELS = [(4, 6), (0, 0), (0, 0), (9, 9)]


def numbers(dtype=torch.float32):
    drawn = torch.randn(4, 10, 2, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    for row, (start, end) in enumerate(PASSAGES):
        drawn[row, [token for token in range(1, 10) if not start <= token < end]] = UNREAD
    return drawn.to(dtype)


def pairs_of(one, passage):
    return {(a, b): one[a, 0] + one[b, 1] for a, b in itertools.product([0, *range(*passage)], repeat=2)}


def slow_loss(one, label, passage):
    """Cross-entropy of a pair among all pairs, divided by the logarithm of their number."""
    pairs = pairs_of(one, passage)
    entropy = torch.logsumexp(torch.stack(list(pairs.values())), 0) - pairs[label]
    return entropy / math.log(max(len(pairs), 4))


def test_the_loss_is_that_of_one_of_all_pairs():
    fast, slow = (numbers(torch.float64).requires_grad_() for _ in range(2))
    loss = Span().loss(fast, torch.tensor(LABELS, dtype=torch.float64))
    expected = sum(slow_loss(*one) for one in zip(slow, LABELS, PASSAGES, strict=True))
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
    loss.backward()
    expected.backward()
    torch.testing.assert_close(fast.grad, slow.grad, rtol=1e-5, atol=1e-6)
    assert fast.grad[2, 0].abs().max() < 1e-6, "an empty passage teaches nothing"
    half = Span().loss(numbers(torch.float16), torch.tensor(LABELS))
    assert half.dtype == torch.float32 and half.item() == pytest.approx(expected.item(), rel=0.02)


def test_the_best_span_of_the_passage_and_the_entropy_of_all():
    uncertainty = Span().uncertainty(numbers(torch.float64), torch.tensor(LABELS))
    for window in (0, 1, 3):
        pairs = pairs_of(numbers(torch.float64)[window], PASSAGES[window])
        entropy = torch.distributions.Categorical(logits=torch.stack(list(pairs.values()))).entropy().item()
        expected = (entropy, math.log(len(pairs)))
        assert (uncertainty.entropy[window], uncertainty.most[window]) == pytest.approx(expected, rel=1e-5)
        for longest in (1, 3):
            best = max((number.item(), a, b) for (a, b), number in pairs.items() if 0 < a <= b < a + longest)
            assert Span(longest).predictions(numbers())[window].tolist() == pytest.approx(best, abs=1e-5)
    # Windows of a model that diverged are the worst.
    found = Span().predictions(numbers().index_fill(0, torch.tensor([1]), torch.nan))
    assert not found.isnan().any() and found[1, 0] == -math.inf
    torch.testing.assert_close(found[[0, 2, 3]], Span().predictions(numbers())[[0, 2, 3]])


def test_heads_read_the_passage_and_the_first_token():
    torch.manual_seed(1)
    heads, hidden = TaskHeads(5, {"squad": Span().head}), torch.randn(6, 10, 5)
    rows, spans = torch.tensor([[4], [1]]), torch.tensor([[[3, 9]], [[5, 5]]])
    found = heads(hidden, {"squad": rows}, {"squad": spans})["squad"]
    head = heads["squad"]
    for row, token in itertools.product(range(2), range(10)):
        is_read = token == 0 or spans[row, 0, 0] <= token < spans[row, 0, 1]
        expected = linear(hidden[rows[row, 0], token], head.weight, head.bias) if is_read else torch.full((2,), UNREAD)
        torch.testing.assert_close(found[row, token], expected)
    nothing = heads(hidden[:3, :1], {}, {})["squad"]  # without examples, but with a graph
    assert nothing.shape == (0, 1, 2)
    nothing.sum().backward()
    assert head.weight.grad.count_nonzero() == 0
