"""Windows of passages: which there are, where the answer stands in each, and the way back to the passage's text."""

import re
from dataclasses import replace
from itertools import combinations_with_replacement, pairwise

import numpy as np
import pytest
from tokenizers.implementations import BertWordPieceTokenizer, ByteLevelBPETokenizer
from tokenizers.processors import RobertaProcessing

from fairseq_mtmoe.nlu.data.dataset import TaskCollate, TaskDataset
from fairseq_mtmoe.nlu.data.reading import Example, Span
from fairseq_mtmoe.nlu.data.tokenizing import TextTokenizer
from fairseq_mtmoe.nlu.data.windows import Passages, tokenize_windows
from fairseq_mtmoe.nlu.types import tokens
from fairseq_mtmoe.nlu.types.task_type import Predictions

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *"abcdefghij", "who", "##b", "##c", "."]


def bert(max_length):
    tokenizer = BertWordPieceTokenizer({word: number for number, word in enumerate(WORDS)}, lowercase=True)
    return TextTokenizer(tokenizer._tokenizer.to_str(), max_length)


def roberta(max_length):
    """Every byte is a token, so that a letter with an accent is two."""
    bytewise = ByteLevelBPETokenizer()
    bytewise.train_from_iterator([""], special_tokens=["<s>", "<pad>", "</s>"])
    ends = [(token, bytewise.token_to_id(token)) for token in ("</s>", "<s>")]
    bytewise._tokenizer.post_processor = RobertaProcessing(*ends)
    return TextTokenizer(bytewise._tokenizer.to_str(), max_length)


def asked(question, passage, *answers):
    """With the answers, by their text, wherever they are."""
    spans = [Span(1, *found.span()) for answer in answers for found in re.finditer(answer, passage)]
    return Example(((question, passage),), None, "k", tuple(spans), answers=answers)


def all_windows(split):
    return [" ".join(WORDS[token] for token in split.tokens_T[slice(*ends)]) for ends in pairwise(split.starts_S)]


def test_windows_of_a_long_passage():
    """An answer that is not in there as a whole is at [CLS]; of several the first one counts."""
    split = tokenize_windows(bert(8), [asked("who", "a b c d e f g", "f g", "b c")], 2)
    assert all_windows(split) == [
        "[CLS] who [SEP] a b c d [SEP]",
        "[CLS] who [SEP] c d e f [SEP]",
        "[CLS] who [SEP] e f g [SEP]",
    ]
    assert split.answers_S2.tolist() == [[4, 5], [0, 0], [4, 5]]
    assert split.offsets_S.tolist() == [0, 2, 4] and split.row_offsets_E.tolist() == [0, 3]
    assert (split.num_truncated, split.num_lost) == (0, 0)
    for stride in (None, 3, 8):  # half of the room at most
        assert tokenize_windows(bert(8), [asked("who", "a b c d e f", "c d")], stride).offsets_S.tolist() == [0, 2]
    assert tokenize_windows(bert(8), [asked("who", "a b c d")], 2).offsets_S.tolist() == [0]
    dataset = TaskDataset(split)
    assert dataset.sizes.tolist() == [[8], [8], [7]]
    batch = TaskCollate(0, ["squad"])([dataset], [(0, dataset[1]), (0, dataset[2])])
    assert batch["net_input"]["segments"].tolist() == [[0, 0, 0, 1, 1, 1, 1, 1], [0, 0, 0, 1, 1, 1, 1, 0]]
    assert batch["net_input"]["spans"]["squad"].tolist() == [[[3, 7]], [[3, 6]]]
    assert batch["target"]["squad"].tolist() == [[0, 0], [4, 5]] and batch["id"].tolist() == [1, 2]


def test_long_questions_and_answers_are_counted():
    examples = [asked("who a b c d e", "a b c d e f", "a b c d e"), asked("who", "a"), asked("who", "a b", "b")]
    split = tokenize_windows(bert(9), examples, 2)
    assert all_windows(split)[0] == "[CLS] who a b [SEP] a b c [SEP]"
    assert (split.num_truncated, split.num_lost) == (1, 1)


def test_the_best_of_a_questions_windows_is_its_answer_if_all_were_read():
    examples = [asked("who", "A b C d E f G", "E f g"), asked("who", "a b", "B"), asked("who", "a b", "b")]
    tokenizer = bert(8)
    split = tokenize_windows(tokenizer, examples, 2)
    split = replace(split, passages=Passages(lambda: examples, tokenizer))
    # Score, first and last token of each window: the first question has three, and the last one's answer is [CLS].
    best = np.array([(1.5, 3, 6), (2, 4, 6), (2, 5, 5), (5, 4, 4), (-1, 0, 0)], dtype=float)
    for windows, texts, scores in (
        ([4, 2, 1, 3, 0], ["d E f", "b", ""], [2 / 3, 1, 0]),
        ([0, 2, 3], ["G", "b", ""], [1]),
    ):
        read = Predictions(np.array(windows), best[windows].flatten(), np.arange(0, 3 * len(windows) + 1, 3))
        assert tokens.Span().label_text(split, read, ()) == texts
        assert tokens.Span().columns("f1", split, read)[0].tolist() == pytest.approx(scores)


TEXTS = ["A bC. Dé", "ÀÉ  É", "a\tb\n\nJ", "日 a本b", "É\u0301 e\u0301 f", "I İ i", "a \ud800b c"]


@pytest.mark.parametrize(("tokenizer", "text"), [*((bert, text) for text in TEXTS), *((roberta, t) for t in TEXTS[:2])])
def test_answers_are_as_the_passage_has_them(tokenizer, text):
    """Of letters that the tokenizer changes, in windows that begin anywhere: every answer of whole words is found."""
    pairs = combinations_with_replacement(re.finditer(r"\S+", text), 2)
    words = [(first.start(), last.end()) for first, last in pairs]
    tokenizer = tokenizer(60)
    passage = "a " * 40 + text + " b" * 40
    spans = [Span(1, start + 80, end + 80) for start, end in words]
    examples = [Example((("who", passage),), None, str(n), (span,)) for n, span in enumerate(spans)]
    split = tokenize_windows(tokenizer, examples, 25)
    assert split.num_lost == 0 and split.num_rows > 2 * len(examples)
    # What a model says that finds exactly these tokens, in windows in another order.
    order = np.random.default_rng(1).permutation(split.num_rows)
    said = np.column_stack([split.answers_S2[:, 1] > 0, split.answers_S2])[order].astype(float)
    found = Passages(lambda: examples, tokenizer).found(split, order, said)
    assert found == [text[start:end] for start, end in words]
