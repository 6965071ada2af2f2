"""A made benchmark for `bench_glue.py`: files in the form of GLUE's, texts as long as GLUE's, a tokenizer for them.

`glue_lengths.json` has the lengths of GLUE's training examples, in tokens of BERT's uncased tokenizer, as quantiles.
Words are made: their frequencies fall with their rank (Zipf), the rare ones are made of two pieces, and a text of the
same number of tokens has about the same number of words and letters, and needs about the same work, as a real one.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, islice, product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

LENGTHS = Path(__file__).with_name("glue_lengths.json")
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ",", ".")
SYLLABLES = [f"{first}{vowel}n" for first, vowel in product("bcdfghjklmnpqrstvwxz", "aeiou")]
MOST_WORDS = 500_000  # different ones
NUM_FREQUENT = 30_522 - len(SPECIAL) - len(SYLLABLES)  # that BERT's vocabulary has room for
# Frequencies of words: 1 / (rank + q)^s. A text of 400,000 words has about 40,000 different ones, as QQP's.
EXPONENT, FLATTENING = 1.25, 2.7
COMMAS = 0.1  # share of words with a mark behind them


@dataclass(frozen=True)
class Form:
    """How a task's file looks: its header, and a line with `{n}`, `{label}` and the texts `{a}` and `{b}`."""

    file: str
    header: str
    line: str
    labels: Sequence[str] = ("0", "1")


PARSED = "( {a} )\t( {b} )\t(ROOT (S (NP {a} ) ) )\t(ROOT (S (NP {b} ) ) )"
FORMS = {
    "cola": Form("CoLA/train.tsv", "", "made\t{label}\t\t{a}"),
    "sst2": Form("SST-2/train.tsv", "sentence\tlabel", "{a}\t{label}"),
    "mrpc": Form("MRPC/train.tsv", "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String", "{label}\t{n}\t{n}\t{a}\t{b}"),
    "stsb": Form(
        "STS-B/train.tsv",
        "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore",
        "{n}\tmade\tmade\t2012\t{n}\tnone\tnone\t{a}\t{b}\t{label}",
        ("0.5", "2.000", "4.4"),
    ),
    "qqp": Form(
        "QQP/train.tsv", "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate", "{n}\t{n}\t{n}\t{a}\t{b}\t{label}"
    ),
    "mnli": Form(
        "MNLI/train.tsv",
        "index\tpromptID\tpairID\tgenre\tsentence1_binary_parse\tsentence2_binary_parse\tsentence1_parse\t"
        "sentence2_parse\tsentence1\tsentence2\tlabel1\tgold_label",
        f"{{n}}\t{{n}}\t{{n}}e\tmade\t{PARSED}\t{{a}}\t{{b}}\t{{label}}\t{{label}}",
        ("contradiction", "entailment", "neutral"),
    ),
    "qnli": Form(
        "QNLI/train.tsv", "index\tquestion\tsentence\tlabel", "{n}\t{a}\t{b}\t{label}", ("entailment", "not_entailment")
    ),
    "rte": Form(
        "RTE/train.tsv",
        "index\tsentence1\tsentence2\tlabel",
        "{n}\t{a}\t{b}\t{label}",
        ("entailment", "not_entailment"),
    ),
}


def lengths() -> dict[str, Any]:
    """By task: `count` of training examples, `tokens` (quantiles, marks aside) and `first`, the first text's share."""
    tasks: dict[str, Any] = json.loads(LENGTHS.read_text(encoding="utf-8"))["tasks"]
    return tasks


def write_benchmark(folder: Path, share: float = 1.0, seed: int = 1) -> None:
    """Write the training files of GLUE's tasks, a share of each."""
    words = Words()
    random = np.random.default_rng(seed)
    for task, about in lengths().items():
        count = max(round(share * about["count"]), 8)
        quantiles = np.linspace(0, 1, len(about["tokens"]))
        tokens = np.interp(random.random(count), quantiles, about["tokens"]).round().astype(np.int64)
        first = np.maximum((about["first"] * tokens).round().astype(np.int64), 1)
        texts = words.texts(np.stack([first, tokens - first], axis=1).ravel(), random)
        form = FORMS[task]
        labels = random.choice(form.labels, count)
        lines = [
            form.line.format(n=n, label=label, a=a, b=b)
            for n, (label, a, b) in enumerate(zip(labels, texts[::2], texts[1::2], strict=True))
        ]
        path = folder / form.file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join([*([form.header] if form.header else []), *lines]) + "\n", encoding="utf-8")


class Words:
    def __init__(self) -> None:
        spelled = spellings(MOST_WORDS)
        self._spelled = np.array([*spelled, *(f"{word}," for word in spelled)], dtype=object)

    def texts(self, tokens_N: NDArray[np.int64], random: np.random.Generator) -> list[str]:
        total = int(tokens_N.sum())
        rarest = (1 + MOST_WORDS / FLATTENING) ** (1 - EXPONENT)
        ranks = FLATTENING * ((1 - random.random(total) * (1 - rarest)) ** (1 / (1 - EXPONENT)) - 1)
        ranks = ranks.astype(np.int64)
        has_comma = random.random(total) < COMMAS
        used = np.cumsum(1 + (ranks >= NUM_FREQUENT) + has_comma)
        ends = np.searchsorted(used, np.cumsum(tokens_N), side="right")
        starts = np.concatenate([[0], ends[:-1]])
        words = self._spelled[ranks + MOST_WORDS * has_comma]
        return [" ".join(words[start:end]) for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]


def spellings(count: int) -> list[str]:
    syllables = chain.from_iterable(product(SYLLABLES, repeat=number) for number in (1, 2, 3))
    return ["".join(word) for word in islice(syllables, count)]


def serialized_tokenizer() -> str:
    """BERT's uncased tokenizer, with the most frequent words in its vocabulary, and syllables for the others' ends."""
    from tokenizers.implementations.bert_wordpiece import BertWordPieceTokenizer

    pieces = [*SPECIAL, *(f"##{syllable}" for syllable in SYLLABLES), *spellings(NUM_FREQUENT)]
    return str(BertWordPieceTokenizer({piece: n for n, piece in enumerate(pieces)})._tokenizer.to_str())
