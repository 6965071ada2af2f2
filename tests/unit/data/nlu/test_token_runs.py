import json
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer
from tokenizers.implementations import BertWordPieceTokenizer, ByteLevelBPETokenizer

from fairseq_mtmoe.data.nlu import token_runs as module
from fairseq_mtmoe.data.nlu.token_runs import TokenRuns, WordByWord, encoder_for, ends, splits_at_spaces, whole_texts

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdeé中.,'-", "ab", "##a", "##b", "##ab", "##é"]
ODD = list("\u0301\u00a0\u3000\u2028\t\n\r\x00\ufffd\u200b\ud55c\u1112\u1161İßΣﬁ")
TEXTS = st.lists(
    st.text(st.one_of(st.sampled_from([*"aabé中 .'[]", *"  ", *ODD]), st.characters(exclude_categories=["Cs"]))),
    max_size=4,
)
PARTS = st.lists(st.sampled_from([*"ab中 ", " ", "[SEP]", "[MASK]", "[UNK]", "ab" * 60, *ODD]), max_size=12)


def word_piece(**options):
    return BertWordPieceTokenizer({piece: number for number, piece in enumerate(PIECES)}, **options)._tokenizer


def assert_same(found, wanted):
    assert found.tokens_T.tolist() == wanted.tokens_T.tolist() and found.starts_N.tolist() == wanted.starts_N.tolist()


@pytest.mark.parametrize(
    "options",
    [{}, {"lowercase": False, "strip_accents": False, "handle_chinese_chars": False, "clean_text": False}],
    ids=str,
)
def test_texts_have_the_tokens_of_their_words(options):
    tokenizer = word_piece(**options)
    tokenizer.add_special_tokens(["[SEP]", "[MASK]", "[UNK]"])
    assert splits_at_spaces(tokenizer)
    by_words, whole = WordByWord(tokenizer), partial(whole_texts, tokenizer)

    @settings(max_examples=60, deadline=None, database=None)
    @given(st.one_of(TEXTS, st.lists(PARTS.map("".join), max_size=3)))
    def same(texts):
        assert_same(by_words(texts), whole(texts))

    same()


def test_words_are_tokenized_once(monkeypatch):
    seen, tokenizer = [], word_piece()
    by_words = WordByWord(tokenizer)
    encode = by_words._encode
    by_words._encode = lambda words: seen.extend(words) or encode(words)
    texts = ["ab a", "a ab  a", ""]
    assert_same(by_words(texts), encode(texts))
    by_words(["ab b"])
    assert sorted(seen) == ["", "a", "ab", "b"]
    monkeypatch.setattr(module, "MOST_WORDS", 2)  # there are more, which are forgotten
    for texts in (["b é", "a"], ["é"]):
        assert_same(by_words(texts), encode(texts))
    assert len(by_words._number) <= 3


def test_other_tokenizers_are_given_whole_texts():
    spaced, normalized = word_piece(), word_piece()
    spaced.add_tokens([AddedToken("a b", normalized=False)])
    normalized.add_tokens([AddedToken("ab", normalized=True)])
    without_words = Tokenizer.from_str(json.dumps({**json.loads(word_piece().to_str()), "pre_tokenizer": None}))
    for tokenizer in (ByteLevelBPETokenizer()._tokenizer, spaced, normalized, without_words):
        assert not isinstance(encoder_for(tokenizer), WordByWord)


def test_runs_are_chosen_whole_or_in_part():
    runs = TokenRuns.of([[1, 2, 3], [], [4]]).joined(TokenRuns.of([[5, 6]]))
    assert len(runs) == 4 and runs.lengths_N.tolist() == [3, 0, 1, 2]
    assert runs.chosen(np.array([3, 0, 1, 0])).tokens_T.tolist() == [5, 6, 1, 2, 3, 1, 2, 3]
    assert runs.chosen(np.array([3, 0, 2]), np.array([1, 2, 0])).tokens_T.tolist() == [5, 1, 2]
    assert TokenRuns.of([]).chosen(np.array([], dtype=np.int64)).tokens_T.tolist() == []
    assert ends(np.array([2, 0])).tolist() == [0, 2, 2]
