import itertools
import json
import random
import sys

import numpy as np
import pytest
from tokenizers import Tokenizer
from tokenizers.implementations import BertWordPieceTokenizer

from fairseq_mtmoe.nlu.data.reading import Example, Span
from fairseq_mtmoe.nlu.data.tokenizer_files import as_user_error, serialized_tokenizer
from fairseq_mtmoe.nlu.data.tokenizing import WHOLE_TEXT, TextTokenizer
from tests.helpers.refused import refused

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *"abcdefghij", "##b", "##c"]


@pytest.fixture(scope="module")
def serialized():
    tokenizer = BertWordPieceTokenizer({word: number for number, word in enumerate(WORDS)})
    tokenizer.enable_padding(length=50)  # which a folder's file may have
    return tokenizer._tokenizer.to_str()


def one_by_one(first, second, room):
    """BERT's rule: tokens go one at a time, from the end of the longer text."""
    while first + second > room:
        first, second = (first - 1, second) if first > second else (first, second - 1)
    return [first, second]


def test_cut_off_words_are_the_whole_text(serialized, caplog):
    example = Example((("a b c d e f g h i",),), None, "0", (Span(0, 0, 1), Span(0, 16, 17)))
    split = TextTokenizer(serialized, 8).tokenize([example])
    assert split.spans_EW.tolist() == [[[1, 2], list(WHOLE_TEXT)]]
    assert "is in the truncated part" in caplog.text and np.isnan(split.labels_E).all()


def test_any_split_is_that_of_one_example_after_the_other(serialized, monkeypatch):
    monkeypatch.setattr("fairseq_mtmoe.nlu.data.tokenizing.CHUNK", 7)
    draw, tokenizer = random.Random(1), TextTokenizer(serialized, 9)

    def text():
        return " ".join(draw.choices(["a", "bc", "cb", "?", ""], k=draw.choice([0, 1, 3, 8])))

    examples = []
    for _ in range(40):
        texts = tuple(text() for _ in range(draw.choice([1, 2])))
        candidates = tuple((*texts[:-1], text()) for _ in range(draw.choice([1, 1, 3])))
        examples.append(Example(candidates, 1, "k"))
    found = tokenizer.tokenize(examples)
    every = [texts for example in examples for texts in example.candidates]
    alone = [tokenizer.tokenize([Example((texts,), 1, "k")]) for texts in every]
    for sequence, (texts, one) in enumerate(zip(every, alone, strict=True)):
        ids = [tokenizer._tokenizer.encode(part, add_special_tokens=False).ids for part in texts]
        room = 9 - 1 - len(texts)
        kept = one_by_one(*map(len, ids), room) if len(ids) == 2 else [min(len(ids[0]), room)]
        wanted = [2, *itertools.chain(*([*part[:n], 3] for part, n in zip(ids, kept, strict=True)))]
        start, end = found.starts_S[sequence : sequence + 2]
        assert found.tokens_T[start:end].tolist() == one.tokens_T.tolist() == wanted
        second = kept[0] + 2 if len(ids) == 2 else len(wanted)
        assert found.segment_start_S[sequence] == one.segment_start_S[0] == second
    assert found.num_truncated == sum(one.num_truncated for one in alone) > 0
    assert np.diff(found.row_offsets_E).tolist() == [len(example.candidates) for example in examples]


def test_padding_is_the_tokenizers_and_wrong_ones_are_refused(serialized):
    roberta = Tokenizer.from_str(serialized.replace("[PAD]", "<pad>"))
    assert TextTokenizer(serialized, 16).padding == TextTokenizer(roberta.to_str(), 16).padding == 0
    for wrong in (json.dumps({"model": "none"}), serialized.replace("[PAD]", "[FILL]")):
        with refused("tokenizer.json"):
            TextTokenizer(wrong, 16)
    with refused("--max-positions"):
        TextTokenizer(serialized, 7)


BERT = {"vocab.txt": "\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "Ab", "ab", "##c", "é", "e"]) + "\n"}
PIECES = {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3, "a": 4, "b": 5, "ab": 6, "Ġ": 7, "Ġa": 8}
ROBERTA = {"vocab.json": json.dumps(PIECES), "merges.txt": "#version: 0.2\na b\nĠ a\n"}


def tokens_of(files, *texts):
    split = TextTokenizer(serialized_tokenizer(files), 16).tokenize([Example((texts,), 0, "0")])
    return split.tokens_T.tolist(), split.segment_start_S.tolist()


def test_berts_vocabulary_in_lower_case_or_as_it_is_written_and_robertas_pieces():
    assert tokens_of(BERT, "Abc é") == ([2, 5, 6, 8, 3], [5])
    assert tokens_of(BERT, "ab", "abc") == ([2, 5, 3, 5, 6, 3], [3])
    assert tokens_of({**BERT, "tokenizer_config.json": '{"do_lower_case": false}'}, "Abc é")[0] == [2, 4, 6, 7, 3]
    # RoBERTa's pieces have two ends between texts, and no second type.
    assert tokens_of(ROBERTA, "ab a") == ([0, 6, 8, 2], [4])
    assert tokens_of(ROBERTA, "ab", "b") == ([0, 6, 2, 2, 5, 2], [6])


WHOLE = json.loads(serialized_tokenizer(BERT))
NO_TOKENIZERS = {
    "no file": {},
    "damaged files": {"vocab.json": "{", "merges.txt": ""},
    "a panic while encoding": {**WHOLE, "pre_tokenizer": {"type": "FixedLength", "length": 0}},
    "a table of 8 GB": {**WHOLE, "normalizer": {"type": "Precompiled", "precompiled_charsmap": "/////w=="}},
    "no pieces": {**WHOLE, "model": {"type": "BPE", "vocab": {}, "merges": []}},
}


@pytest.mark.parametrize("content", NO_TOKENIZERS.values(), ids=NO_TOKENIZERS)
def test_what_is_no_tokenizer_is_refused_also_if_the_library_would_crash(content):
    with refused():
        serialized_tokenizer({"tokenizer.json": json.dumps(content)} if "model" in content else content)


def test_a_panic_in_the_middle_of_data_and_a_missing_library_are_named(monkeypatch):
    with refused("tokenizer.json"), as_user_error("`tokenizer.json` must give tokens for any text"):
        raise type("PanicException", (BaseException,), {})("it burns")
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with refused("tokenizers"):
        serialized_tokenizer(BERT)
