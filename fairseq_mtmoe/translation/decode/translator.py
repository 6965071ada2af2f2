"""A model that translates any language pair of its data directory.

Hypotheses equal those of fairseq-generate with one difference: `--max-len-a` counts each sentence's
own source, and in fairseq-generate the longest source of the batch.
"""

import copy
import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
import torch
from fairseq import tasks, utils
from fairseq.data import Dictionary

from fairseq_mtmoe.core.errors import UserError
from fairseq_mtmoe.core.protocols import training_task
from fairseq_mtmoe.translation.data.file_names import SENTENCEPIECE
from fairseq_mtmoe.translation.data.recorded_sizes import with_shards
from fairseq_mtmoe.translation.decode import stored
from fairseq_mtmoe.translation.decode.decode import Decoding, Direction, Row, RowDecoder, ready
from fairseq_mtmoe.translation.decode.test_sets import (
    FAIRSEQ,
    TEXT,
    References,
    Speller,
    load_references,
    load_sources,
)

# An unknown word of a hypothesis. Parts of `<unk>` would match references, above all their
# `<<unk>>`.
UNKNOWN = "⁇"
# Sentences whose pairs are translated together: enough for full batches of similar lengths
TOGETHER = 10_000
COLLATED = 1000  # sentences whose sources are read at a time


@dataclass(frozen=True)
class Translation:
    """Hypotheses and references of a pair's test set."""

    pair: str
    hypotheses: list[str]
    references: References
    # Sentences longer than the model's positions: hypotheses are empty or, for fairseq, absent
    untranslated: int
    numbers: Sequence[int]  # numbers of the sentences in the test set


@dataclass(frozen=True)
class PairData:
    """A pair's test set with its task of fairseq's or ours.

    Attributes:
        pair: such as `en-de`.
        task: has loaded the test set.
        dataset: the test set.
        fitting: numbers of the sentences that fit the model.
        references: of all sentences.
        spell: converts tokens to text.
        compares: `TEXT` or `FAIRSEQ`.
    """

    pair: str
    task: Any
    dataset: Any
    fitting: np.ndarray
    references: References
    spell: Speller
    compares: str

    def rows(self) -> list[Row]:
        """Return the sentences that fit the model."""
        direction = Direction.of(self.task, self.pair)
        padding = self.task.source_dictionary.pad()
        rows = []
        for start in range(0, len(self.fitting), COLLATED):
            items = [self.dataset[number] for number in self.fitting[start : start + COLLATED]]
            batch = self.dataset.collater(items)
            sources = zip(batch["id"].tolist(), batch["net_input"]["src_tokens"], strict=True)
            for number, tokens in sources:
                rows.append(Row((self, number), direction, tokens[tokens != padding].tolist()))
        return rows

    def text(self, tokens: Sequence[int]) -> str:
        """Return a hypothesis as text."""
        unknown = UNKNOWN
        if self.compares == FAIRSEQ:
            unknown = str(self.task.target_dictionary.unk_string())
        return self.spell(tokens, unknown)

    def translation(self, hypotheses: dict[int, str]) -> Translation:
        """Return the translation to compare, from hypotheses of all sentences that fit."""
        references = self.references
        numbers: Sequence[int] = range(len(references.lines))
        if self.compares == FAIRSEQ:
            numbers = sorted(hypotheses)
            lines = [references.lines[number] for number in numbers]
            references = replace(references, lines=lines)
        texts = [hypotheses.get(number, "") for number in numbers]
        untranslated = len(self.dataset) - len(hypotheses)
        return Translation(self.pair, texts, references, untranslated, numbers)


class Translator:
    """Translates a data directory's test sets with one model, or with an ensemble.

    Args:
        data: the directory.
        checkpoints: the models' files.
        decoding: the search's options.
        post_process: how fairseq joins words; None: found out from the data.
        references: `text`; or `fairseq`: as in fairseq-generate, binarized references, `<unk>` in
            hypotheses, and without the sentences that it leaves out.
    """

    def __init__(
        self,
        data: str,
        checkpoints: Sequence[str],
        decoding: Decoding,
        post_process: str | None = None,
        references: str = TEXT,
    ) -> None:
        self.data = with_shards(data)
        self.decoding = decoding
        self.post_process = post_process
        self.references = references
        self._paths = list(checkpoints)
        self._states = [stored.read(path) for path in checkpoints]
        self._task_cfg = stored.task_settings(self._states[0], checkpoints[0])
        self._task_state = self._states[0].get("task_state")
        stored.remember(self._task_cfg, self._task_state or {})
        self.models: list[Any] = []  # built with the first pair
        self._task_names: list[str] | None = None
        self._dictionaries: list[Dictionary] = []

    @property
    def trained_pairs(self) -> list[str]:
        """Language pairs that the first checkpoint names as trained."""
        if pairs := stored.pairs_of(self._task_cfg, self._task_state or {}):
            return pairs
        sides = [stored.setting(self._task_cfg, f"{side}_lang") for side in ("source", "target")]
        return ["-".join(sides)] if all(sides) else []

    def translations(
        self,
        pairs: Sequence[str],
        subset: str,
        advance: Callable[[int], object] = lambda count: None,
    ) -> Iterator[Translation]:
        """Yield the pairs' translations; pairs share batches.

        advance: called with each batch's number of sentences.
        """
        together: list[PairData] = []
        for pair in pairs:
            together.append(self.pair_data(pair, subset))
            count = sum(len(data.fitting) for data in together)
            if count >= TOGETHER or pair == pairs[-1]:
                yield from self._translated(together, advance)
                together = []

    def _translated(
        self, together: Sequence[PairData], advance: Callable[[int], object]
    ) -> Iterator[Translation]:
        # All tasks share a target dictionary.
        decoder = RowDecoder(together[0].task, self.models, self.decoding)
        hypotheses: dict[str, dict[int, str]] = defaultdict(dict)
        for batch in decoder.batches(chain.from_iterable(map(PairData.rows, together))):
            for row, (best, *_) in zip(batch, decoder.decode(batch), strict=True):
                data, number = row.key
                hypotheses[data.pair][number] = data.text(best.tokens)
            advance(len(batch))
        for data in together:
            yield data.translation(hypotheses[data.pair])

    def pair_data(self, pair: str, subset: str) -> PairData:
        """Return a pair's test set with its task (UserError: wrong dictionary)."""
        task = self._task(pair)
        self._load_models(task)
        dictionary = task.target_dictionary
        folder = utils.split_paths(self.data)[0]
        if not stored.check_pair(folder, subset, pair, (task.source_dictionary, dictionary)):
            raise UserError(f"`{folder}` must have both sides of {subset}.{pair}, but lacks one.")
        task.load_dataset(subset)
        references = load_references(
            self.data, subset, pair, self._speller(dictionary), self.references
        )
        generator = task.build_generator(self.models, self.decoding.generation)
        ignored = generator.symbols_to_strip_from_output
        spell = self._speller(dictionary, ignored)
        dataset = task.dataset(subset)
        return PairData(
            pair, task, dataset, self._fitting(task, dataset), references, spell, self.references
        )

    def _fitting(self, task: Any, dataset: Any) -> np.ndarray:
        """Return the numbers of the sentences that fit the models.

        Prefetch them if needed.
        """
        positions = [model.max_positions() for model in self.models]
        limits = utils.resolve_max_positions(task.max_positions(), *positions)
        numbers: np.ndarray = task.filter_indices_by_size(
            np.arange(len(dataset)), dataset, limits, ignore_invalid_inputs=True
        )
        if len(numbers) and dataset.supports_prefetch:  # older formats read nothing without it
            dataset.prefetch(numbers)
        return numbers

    def release(self) -> None:
        """Free the models' memory."""
        self.models = []
        if self.decoding.use_cuda:
            torch.cuda.empty_cache()

    def sources(self, pair: str, subset: str) -> list[str]:
        """Return the source text of a pair's test set."""
        spell = self._speller(self._task(pair).source_dictionary)
        return load_sources(self.data, subset, pair, spell)

    def _speller(self, dictionary: Dictionary, ignored: Sequence[int] = ()) -> Speller:
        joining = self.post_process or joining_of(self.data, dictionary)
        if joining == "none":
            joining = None
        return Speller(dictionary, joining, ignored)

    def _task(self, pair: str) -> Any:
        settings = copy.deepcopy(self._task_cfg)
        source, _, target = pair.partition("-")
        stored.change(settings, data=self.data, source_lang=source, target_lang=target)
        task = tasks.setup_task(settings)
        training_task(task).check_vocabulary(self._task_state, self._paths[0])
        if self._task_state:
            task.load_state_dict(self._task_state)
        if self._task_names is not None:
            task.task_names = self._task_names
        for lang, dictionary in getattr(task, "dicts", {}).items():
            task.dicts[lang] = self._shared(dictionary)
        return task

    def _shared(self, dictionary: Dictionary) -> Dictionary:
        """Return one shared copy of equal dictionaries: 50 pairs would need gigabytes."""
        if dictionary not in self._dictionaries:
            self._dictionaries.append(dictionary)
        return self._dictionaries[self._dictionaries.index(dictionary)]

    def _load_models(self, task: Any) -> None:
        """Build the models with the first task, and keep the tasks that they know."""
        if self.models:
            return
        models = []
        for state, path in zip(self._states, self._paths, strict=True):
            training_task(task).check_vocabulary(state.get("task_state"), path)
            models.append(ready(stored.build_model(task, state, path), self.decoding))
        self.models = models
        self._states = []
        self._task_names = getattr(task, "task_names", None)


def joining_of(data: str, dictionary: Dictionary) -> str | None:
    """Return how a data directory's symbols form words.

    It is `sentencepiece` with its model or marks (▁), `subword_nmt` with its marks (@@), or None.
    """
    few = 0.01 * len(dictionary)
    has_model = os.path.exists(os.path.join(utils.split_paths(data)[0], SENTENCEPIECE))
    if has_model or sum(symbol.startswith("▁") for symbol in dictionary.symbols) > few:
        return "sentencepiece"
    if sum(symbol.endswith("@@") for symbol in dictionary.symbols) > few:
        return "subword_nmt"
    return None
