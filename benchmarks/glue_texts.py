"""A made benchmark for `bench_glue.py`: files as of GLUE's tasks, texts as long as GLUE's, a tokenizer for them.

`glue_lengths.json` has the lengths of GLUE's training examples, in tokens of BERT's uncased tokenizer, as quantiles.
Words are made: their frequencies fall with their rank (Zipf), the rare ones are made of two pieces, and a text of the
same number of tokens has about the same number of words and letters, and needs about the same work, as a real one.
"""

from __future__ import annotations

import json
from itertools import chain, islice, product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairseq_mtmoe.nlu.data.table import chosen_rows, load_tables

LENGTHS = Path(__file__).with_name("glue_lengths.json")
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
SYLLABLES = [f"{first}{vowel}n" for first, vowel in product("bcdfghjklmnpqrstvwxz", "aeiou")]
MOST_WORDS = 500_000  # different ones
NUM_FREQUENT = 30_522 - len(SPECIAL) - len(SYLLABLES)  # that BERT's vocabulary has room for
# Frequencies of words: 1 / (rank + q)^s. A text of 400,000 words has about 40,000 different ones, as QQP's.
EXPONENT, FLATTENING = 1.25, 2.7
SIMILARITIES = ("0.5", "2.000", "4.4")  # of STS-B


def lengths() -> dict[str, Any]:
    """By task: `count` of training examples, `tokens` (quantiles, marks aside) and `first`, the first text's share."""
    tasks: dict[str, Any] = json.loads(LENGTHS.read_text(encoding="utf-8"))["tasks"]
    return tasks


def write_benchmark(folder: Path, share: float = 1.0, seed: int = 1) -> None:
    """Write the training files of GLUE's tasks, a share of each."""
    words, rows = np.array(spellings(MOST_WORDS), dtype=object), chosen_rows(load_tables(), [*lengths()])
    random = np.random.default_rng(seed)
    for task, about in lengths().items():
        count = max(round(share * about["count"]), 8)
        quantiles = np.linspace(0, 1, len(about["tokens"]))
        tokens = np.interp(random.random(count), quantiles, about["tokens"]).round().astype(np.int64)
        first = np.maximum((about["first"] * tokens).round().astype(np.int64), 1)
        texts = made_texts(words, np.stack([first, tokens - first], axis=1).ravel(), random)
        row, (source, *_) = rows[task], rows[task].splits["train"]
        columns = dict(zip(row.texts, (texts[::2], texts[1::2]), strict=False))
        columns[row.label] = random.choice(row.labels or SIMILARITIES, count)
        names = source.columns or [*columns]  # a file whose columns the table names has no header
        lines = ["\t".join(line) for line in zip(*(columns.get(name, ["made"] * count) for name in names), strict=True)]
        path = folder / source.file
        path.parent.mkdir(parents=True, exist_ok=True)
        header = [] if source.columns else ["\t".join(names)]
        path.write_text("\n".join([*header, *lines]) + "\n", encoding="utf-8")


def made_texts(words: NDArray[np.object_], tokens_N: NDArray[np.int64], random: np.random.Generator) -> list[str]:
    """Return texts of so many tokens each, of these words, the most frequent first."""
    total = int(tokens_N.sum())
    rarest = (1 + MOST_WORDS / FLATTENING) ** (1 - EXPONENT)
    ranks = FLATTENING * ((1 - random.random(total) * (1 - rarest)) ** (1 / (1 - EXPONENT)) - 1)
    ranks = ranks.astype(np.int64)
    used = np.cumsum(1 + (ranks >= NUM_FREQUENT))
    ends = np.searchsorted(used, np.cumsum(tokens_N), side="right")
    starts = np.concatenate([[0], ends[:-1]])
    return [" ".join(words[ranks[start:end]]) for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]


def spellings(count: int) -> list[str]:
    syllables = chain.from_iterable(product(SYLLABLES, repeat=number) for number in (1, 2, 3))
    return ["".join(word) for word in islice(syllables, count)]


def serialized_tokenizer() -> str:
    """BERT's uncased tokenizer, with the most frequent words in its vocabulary, and syllables for the others' ends."""
    from tokenizers.implementations.bert_wordpiece import BertWordPieceTokenizer

    pieces = [*SPECIAL, *(f"##{syllable}" for syllable in SYLLABLES), *spellings(NUM_FREQUENT)]
    return str(BertWordPieceTokenizer({piece: n for n, piece in enumerate(pieces)})._tokenizer.to_str())
