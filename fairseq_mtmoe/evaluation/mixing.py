"""Translate several pairs' test sets together, in batches of similar lengths.

Language tokens, ids and fairseq's prefix tokens go with each row. No layer mixes sentences, so hypotheses equal those
of `Translator.translate`. An exception is `--max-len-a`: fairseq takes the longest source of a batch, while here each
sentence has the limit of its own length.
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

# Limit of a batch without options. Otherwise thousands of short sentences of 50 test sets would share a batch, and its
# hypotheses would fill the memory.
MOST_SENTENCES = 1000


class Mixture:
    """The test sets of several pairs, ready to be translated together."""

    def __init__(self, translator: Translator, pairs: Sequence[str], subset: str) -> None:
        self._translator = translator
        self._directions = {pair: translator.direction(pair, subset) for pair in pairs}
        self._search = BeamSearch(self._directions[pairs[0]].generator)  # all share a target dictionary
        self._batches = _batches(self._directions.values(), translator.decoding)
        self.sentences = sum(map(len, self._batches))

    def __len__(self) -> int:
        """Return the number of batches."""
        return len(self._batches)

    def translate(
        self, note: Callable[[Batch], object] = lambda batch: None, known: Batch = MappingProxyType({})
    ) -> Iterator[Translation]:
        """Yield the translations of each pair; see `Translator.translations`."""
        return self._translator.translations(self._directions, self._batches, self.translate_batch, note, known)

    def translate_batch(self, number: int) -> Batch:
        """Return the hypotheses of a batch; the first batch has the longest sentences."""
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
    """Return batches of all sentences that fit the model, the longest first.

    So a batch that does not fit the memory fails at once.
    """
    sentences: dict[tuple[Any, ...], list[Sentence]] = {}
    for direction in directions:
        kept = direction.fitting(np.arange(len(direction.dataset)))
        # In a batch, a search has one token instead of ends, and one vocabulary.
        alone = direction.pair if _replaces_ends(direction.task) else None
        ends = ends_of(direction.task.state.state_dict, direction.pair.partition("-")[2])
        together = sentences.setdefault((alone, ends), [])
        data = direction.dataset
        lengths = data.sizes_of(kept) if hasattr(data, "sizes_of") else sizes_of(data)[kept]
        for number, sizes in zip(kept.tolist(), lengths.tolist(), strict=True):
            together.append(Sentence(direction.pair, number, sizes[0], max(sizes)))
    batches = [batch for together in sentences.values() if together for batch in cut(together, *limits_of(decoding))]
    return sorted(batches, key=lambda batch: -max(sentence.source for sentence in batch))


def limits_of(decoding: Decoding) -> tuple[int | None, int | None]:
    """Return the limits of tokens and sentences of a batch."""
    is_free = (decoding.max_tokens, decoding.batch_size) == (None, None)
    return decoding.tokens_of_a_batch, MOST_SENTENCES if is_free else decoding.batch_size


def cut(sentences: list[Sentence], max_tokens: int | None, max_sentences: int | None) -> Iterator[list[Sentence]]:
    """Yield batches of sentences of similar lengths within both limits."""
    ordered = sorted(sentences, key=lambda one: (one.source, one.tokens))
    tokens = np.array([sentence.tokens for sentence in ordered], dtype=np.int64)
    if max_tokens is not None and tokens.max() > max_tokens:
        raise_invalid("--max-tokens", f"at least {tokens.max()}, the length of the longest sentence", max_tokens)
    numbers = np.arange(len(ordered), dtype=np.int64)
    for batch in data_utils.batch_by_size(numbers, None, tokens, max_tokens, max_sentences):
        yield [ordered[int(index)] for index in batch]


def _collated(directions: Mapping[str, Direction], batch: Sequence[Sentence]) -> tuple[list[Sentence], dict[str, Any]]:
    """Return the sentences, longest source first, and their padded batch."""
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
    """Return the target's language token that fairseq's tasks force first, if any."""
    if not isinstance(task, TranslationMultiSimpleEpochTask) or _replaces_ends(task):
        return None
    spec = task.args.langtoks["main"][1]
    return int(task.data_manager.get_decoder_langtok(task.args.target_lang, spec)) if spec else None


def _replaces_ends(task: Any) -> bool:
    """Return whether language tokens replace sentences' ends; a search knows one end."""
    return bool(getattr(getattr(task, "args", None), "lang_tok_replacing_bos_eos", False))
