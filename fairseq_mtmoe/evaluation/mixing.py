"""Translating the test sets of several pairs together: a batch holds sentences of like lengths, of whatever pairs.

What belongs to a pair goes with its rows: the language token of the source and the ids of task and languages with the
sentence, the token that the decoder begins with by fairseq's prefix tokens. No layer of this package looks from one
sentence to another when it evaluates, so hypotheses are those of `Translator.translate`, which a test compares: there
fairseq searches, here `beam_search.py`, which finds the same.

`--max-len-a` is the exception: fairseq counts the longest source of a batch. Here each sentence has the limit of its
own length, whatever it is translated with.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from fairseq.data import data_utils
from fairseq.tasks.translation_multi_simple_epoch import TranslationMultiSimpleEpochTask
from torch import Tensor

from fairseq_mtmoe.data.mixtures.dataset import sizes_of
from fairseq_mtmoe.errors import raise_invalid
from fairseq_mtmoe.evaluation.beam_search import BeamSearch
from fairseq_mtmoe.evaluation.translator import Batch, Decoding, Direction, Translation, Translator

Known = Mapping[str, Mapping[int, str]]

# In a batch, where nobody says how large it is: as in a test set by itself. Of 50 together thousands are so short that
# a batch would hold them all, with room for the words of all their hypotheses.
MOST_SENTENCES = 1000


@dataclass(frozen=True)
class _Sentence:
    """One to translate: of which pair, which line, how long its source is and the longer of its sides."""

    pair: str
    number: int
    source: int
    tokens: int


class Mixture:
    """The test sets of several pairs, each once, ready to be translated together.

    Raises:
        UserError: see `Translator.direction`; or a sentence is longer than `--max-tokens`.
    """

    def __init__(self, translator: Translator, pairs: Sequence[str], subset: str) -> None:
        self._translator = translator
        self._directions = {pair: translator.direction(pair, subset) for pair in pairs}
        self._search = BeamSearch(self._directions[pairs[0]].generator)  # all have one target dictionary
        self._batches = _batches(self._directions.values(), translator.decoding)

    @property
    def sentences(self) -> int:
        """How many there are to translate."""
        return sum(map(len, self._batches))

    def __len__(self) -> int:
        """How many batches there are."""
        return len(self._batches)

    def translate(
        self, note: Callable[[Batch], object] = lambda batch: None, known: Known = MappingProxyType({})
    ) -> Iterator[Translation]:
        """The translations of each pair, as soon as its last sentence is there; see `Translator.translate`."""
        hypotheses = {pair: dict(known.get(pair, {})) for pair in self._directions}
        left = Counter(sentence.pair for batch in self._batches for sentence in batch)
        yield from (direction.translation({}) for pair, direction in self._directions.items() if not left[pair])
        for number, batch in enumerate(self._batches):
            if not all(one.number in hypotheses[one.pair] for one in batch):
                found = self.translate_batch(number)
                for pair, texts in found.items():
                    hypotheses[pair].update(texts)
                note(found)
            pairs = Counter(sentence.pair for sentence in batch)
            left.subtract(pairs)
            for pair in filter(pairs.__contains__, self._directions):
                if left[pair] == 0:
                    yield self._directions[pair].translation(hypotheses[pair])

    def translate_batch(self, number: int) -> Batch:
        """The hypotheses of a batch; the first has the longest sentences."""
        batch = self._batches[number]
        rows, sample = _collated(self._directions, batch)
        sample = self._translator.moved(sample)
        prefixes = [_prefix(self._directions[sentence.pair].task) for sentence in rows]
        tokens = sample["net_input"]["src_tokens"]
        prefix = None if None in prefixes else torch.tensor(prefixes, device=tokens.device).unsqueeze(1)
        task = self._directions[batch[0].pair].task
        outputs = task.inference_step(self._search, self._translator.models, sample, prefix_tokens=prefix)
        found: dict[str, dict[int, str]] = {}
        for sentence, output in zip(rows, outputs, strict=True):
            found.setdefault(sentence.pair, {})[sentence.number] = self._directions[sentence.pair].text(output)
        return found


def _batches(directions: Iterable[Direction], decoding: Decoding) -> list[list[_Sentence]]:
    """All sentences that are not too long, in batches, the longest first: what does not fit into memory shows at once.

    Which these are depends on the data and the options alone.
    """
    sentences: dict[str | None, list[_Sentence]] = {}
    for direction in directions:
        kept = direction.fitting(np.arange(len(direction.dataset)))
        # fairseq's search takes one token in the place of ends for a whole batch
        together = sentences.setdefault(direction.pair if _replaces_ends(direction.task) else None, [])
        for number, sizes in zip(kept.tolist(), _sizes(direction, kept).tolist(), strict=True):
            together.append(_Sentence(direction.pair, number, sizes[0], max(sizes)))
    is_free = (decoding.max_tokens, decoding.batch_size) == (None, None)
    limits = decoding.tokens_of_a_batch, MOST_SENTENCES if is_free else decoding.batch_size
    batches = [batch for together in sentences.values() if together for batch in _cut(together, *limits)]
    return sorted(batches, key=lambda batch: -max(sentence.source for sentence in batch))


def _sizes(direction: Direction, numbers: np.ndarray) -> np.ndarray:
    """(n, S) the lengths of sentences, of source and target."""
    dataset = direction.dataset
    sizes: np.ndarray = dataset.sizes_of(numbers) if hasattr(dataset, "sizes_of") else sizes_of(dataset)[numbers]
    return sizes


def _cut(sentences: list[_Sentence], max_tokens: int | None, max_sentences: int | None) -> Iterator[list[_Sentence]]:
    """Batches of sentences of like lengths."""
    ordered = sorted(sentences, key=lambda one: (one.source, one.tokens))
    tokens = np.array([sentence.tokens for sentence in ordered], dtype=np.int64)
    if max_tokens is not None and tokens.max() > max_tokens:
        raise_invalid("--max-tokens", f"at least {tokens.max()}, the length of the longest sentence", max_tokens)
    numbers = np.arange(len(ordered), dtype=np.int64)
    for batch in data_utils.batch_by_size(numbers, None, tokens, max_tokens, max_sentences):
        yield [ordered[int(place)] for place in batch]


def _collated(
    directions: Mapping[str, Direction], batch: Sequence[_Sentence]
) -> tuple[list[_Sentence], dict[str, Any]]:
    """The sentences, longest source first, and the batch of fairseq's form whose rows they are.

    Each direction's own data set collates its sentences, to the same lengths.
    """
    pad_to = {"source": max(one.source for one in batch), "target": max(one.tokens for one in batch)}
    places = {pair: place for place, pair in enumerate(directions)}
    parts, sentences = [], []
    in_order = sorted(batch, key=lambda one: places[one.pair])
    for pair, group in groupby(in_order, key=lambda one: one.pair):
        dataset, of_pair = directions[pair].dataset, {sentence.number: sentence for sentence in group}
        parts.append(dataset.collater([dataset[number] for number in of_pair], pad_to_length=pad_to))
        sentences += [of_pair[number] for number in parts[-1]["id"].tolist()]
    order = sorted(range(len(sentences)), key=lambda row: -sentences[row].source)
    return [sentences[row] for row in order], _merged(parts, torch.tensor(order))


def _merged(parts: Sequence[dict[str, Any]], order: Tensor) -> dict[str, Any]:
    """One batch of several, with whatever has a row for each sentence."""
    merged: dict[str, Any] = {}
    for name, value in parts[0].items():
        values = [part[name] for part in parts]
        if isinstance(value, Mapping):
            merged[name] = _merged(values, order)
        elif isinstance(value, Tensor):
            merged[name] = torch.cat(values).index_select(0, order)
    return merged


def _prefix(task: Any) -> int | None:
    """The token of the target language that fairseq's multilingual tasks have the decoder write first."""
    if not isinstance(task, TranslationMultiSimpleEpochTask) or _replaces_ends(task):
        return None
    spec = task.args.langtoks["main"][1]
    return int(task.data_manager.get_decoder_langtok(task.args.target_lang, spec)) if spec else None


def _replaces_ends(task: Any) -> bool:
    """Whether language tokens stand in the place of the sentences' ends, of which a search of fairseq's knows one."""
    return bool(getattr(getattr(task, "args", None), "lang_tok_replacing_bos_eos", False))
