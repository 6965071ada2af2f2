import json
import sys

import pytest

from fairseq_mtmoe.nlu.data.reading import Example
from fairseq_mtmoe.nlu.data.tokenizer_files import guarded, serialized_tokenizer
from fairseq_mtmoe.nlu.data.tokenizing import TextTokenizer
from tests.helpers.refused import refused

BERT = {"vocab.txt": "\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "Ab", "ab", "##c", "é", "e"]) + "\n"}
PIECES = {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3, "a": 4, "b": 5, "ab": 6, "Ġ": 7, "Ġa": 8}
ROBERTA = {"vocab.json": json.dumps(PIECES), "merges.txt": "#version: 0.2\na b\nĠ a\n"}


def tokens(files, *texts):
    split = TextTokenizer(serialized_tokenizer(files), 16).tokenize([Example((texts,), 0, "0")])
    return split.tokens_T.tolist(), split.segment_start_S.tolist()


def test_berts_vocabulary_in_lower_case_or_as_it_is_written():
    assert tokens(BERT, "Abc é") == ([2, 5, 6, 8, 3], [5])
    assert tokens(BERT, "ab", "abc") == ([2, 5, 3, 5, 6, 3], [3])
    assert tokens({**BERT, "tokenizer_config.json": '{"do_lower_case": false}'}, "Abc é")[0] == [2, 4, 6, 7, 3]


def test_robertas_pieces_have_two_ends_between_texts_and_no_second_type():
    assert tokens(ROBERTA, "ab a") == ([0, 6, 8, 2], [4])
    assert tokens(ROBERTA, "ab", "b") == ([0, 6, 2, 2, 5, 2], [6])


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
    with refused("tokenizer.json"), guarded("`tokenizer.json` must give tokens for any text"):
        raise type("PanicException", (BaseException,), {})("it burns")
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with refused("tokenizers"):
        serialized_tokenizer(BERT)
