"""Translating the test sets of several pairs together: a batch holds sentences of like lengths, of whatever pairs.

What belongs to a pair goes with its rows: language tokens, ids, and fairseq's prefix tokens. No layer looks from one
sentence to another, so hypotheses are those of `Translator.translate`, but with `--max-len-a`, where fairseq counts the
longest source of a batch: here each sentence has the limit of its own length.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from fairseq.data import data_utils
from fairseq.tasks.translation_multi_simple_epoch import TranslationMultiSimpleEpochTask

from fairseq_mtmoe.data.mixtures.dataset import sizes_of
from fairseq_mtmoe.data.translation.collating import merged
from fairseq_mtmoe.data.translation.vocabulary import ends_of
from fairseq_mtmoe.errors import raise_invalid
from fairseq_mtmoe.evaluation.beam_search import BeamSearch
from fairseq_mtmoe.evaluation.translator import Batch, Decoding, Direction, Sentence, Translation, Translator

# In a batch, where no option says how large it is. Of 50 test sets together thousands of sentences are so short that
# one batch would hold them all, with room for all their hypotheses.
MOST_SENTENCES = 1000


class Mixture:
    """The test sets of several pairs, each once, ready to be translated together."""

    def __init__(self, translator: Translator, pairs: Sequence[str], subset: str) -> None:
        self._translator = translator
        self._directions = {pair: translator.direction(pair, subset) for pair in pairs}
        self._search = BeamSearch(self._directions[pairs[0]].generator)  # all have one target dictionary
        self._batches = _batches(self._directions.values(), translator.decoding)
        self.sentences = sum(map(len, self._batches))

    def __len__(self) -> int:
        return len(self._batches)

    def translate(
        self, note: Callable[[Batch], object] = lambda batch: None, known: Batch = MappingProxyType({})
    ) -> Iterator[Translation]:
        return self._translator.translations(self._directions, self._batches, self.translate_batch, note, known)

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


def _batches(directions: Iterable[Direction], decoding: Decoding) -> list[list[Sentence]]:
    """All sentences that are not too long, in batches, the longest first, so that what does not fit shows at once."""
    sentences: dict[tuple[Any, ...], list[Sentence]] = {}
    for direction in directions:
        kept = direction.fitting(np.arange(len(direction.dataset)))
        # A search has one token in the place of ends, and the same first words, for a whole batch
        alone = direction.pair if _replaces_ends(direction.task) else None
        ends = ends_of(direction.task.state.state_dict, direction.pair.partition("-")[2])
        together = sentences.setdefault((alone, ends), [])
        data = direction.dataset
        lengths = data.sizes_of(kept) if hasattr(data, "sizes_of") else sizes_of(data)[kept]
        for number, sizes in zip(kept.tolist(), lengths.tolist(), strict=True):
            together.append(Sentence(direction.pair, number, sizes[0], max(sizes)))
    is_free = (decoding.max_tokens, decoding.batch_size) == (None, None)
    limits = decoding.tokens_of_a_batch, MOST_SENTENCES if is_free else decoding.batch_size
    batches = [batch for together in sentences.values() if together for batch in cut(together, *limits)]
    return sorted(batches, key=lambda batch: -max(sentence.source for sentence in batch))


def cut(sentences: list[Sentence], max_tokens: int | None, max_sentences: int | None) -> Iterator[list[Sentence]]:
    ordered = sorted(sentences, key=lambda one: (one.source, one.tokens))
    tokens = np.array([sentence.tokens for sentence in ordered], dtype=np.int64)
    if max_tokens is not None and tokens.max() > max_tokens:
        raise_invalid("--max-tokens", f"at least {tokens.max()}, the length of the longest sentence", max_tokens)
    numbers = np.arange(len(ordered), dtype=np.int64)
    for batch in data_utils.batch_by_size(numbers, None, tokens, max_tokens, max_sentences):
        yield [ordered[int(index)] for index in batch]


def _collated(directions: Mapping[str, Direction], batch: Sequence[Sentence]) -> tuple[list[Sentence], dict[str, Any]]:
    """The sentences, longest source first, and their batch, collated to the same lengths by each direction's data."""
    pad_to = {"source": max(one.source for one in batch), "target": max(one.tokens for one in batch)}
    rank = {pair: index for index, pair in enumerate(directions)}
    parts, sentences = [], []
    in_order = sorted(batch, key=lambda one: rank[one.pair])
    for pair, group in groupby(in_order, key=lambda one: one.pair):
        dataset, of_pair = directions[pair].dataset, {sentence.number: sentence for sentence in group}
        parts.append(dataset.collater([dataset[number] for number in of_pair], pad_to_length=pad_to))
        sentences += [of_pair[number] for number in parts[-1]["id"].tolist()]
    order = sorted(range(len(sentences)), key=lambda row: -sentences[row].source)
    return [sentences[row] for row in order], merged(parts, torch.tensor(order))


def _prefix(task: Any) -> int | None:
    """The token of the target language that fairseq's multilingual tasks have the decoder write first."""
    if not isinstance(task, TranslationMultiSimpleEpochTask) or _replaces_ends(task):
        return None
    spec = task.args.langtoks["main"][1]
    return int(task.data_manager.get_decoder_langtok(task.args.target_lang, spec)) if spec else None


def _replaces_ends(task: Any) -> bool:
    """Whether language tokens stand in the place of the sentences' ends, of which a search of fairseq's knows one."""
    return bool(getattr(getattr(task, "args", None), "lang_tok_replacing_bos_eos", False))
