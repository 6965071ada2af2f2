"""A model that translates any language pair of its data directory.

Batches, generator, inference step and spelling are fairseq-generate's, and so hypotheses are equal; with an option,
references and scores, too. `mixing.py` does the same with several pairs in a batch.
"""

import copy
import math
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from fairseq import tasks, utils
from fairseq.data import Dictionary, data_utils
from fairseq.dataclass.configs import FairseqConfig, GenerationConfig
from omegaconf import OmegaConf

from fairseq_mtmoe.data.translation.file_names import SENTENCEPIECE
from fairseq_mtmoe.data.translation.recorded_sizes import with_shards
from fairseq_mtmoe.errors import UserError, flag, raise_invalid
from fairseq_mtmoe.evaluation import stored
from fairseq_mtmoe.evaluation.stored import Inference, change, expect_counts, setting
from fairseq_mtmoe.evaluation.test_sets import FAIRSEQ, TEXT, References, Speller, load_references, load_sources
from fairseq_mtmoe.moe.gates import base_gates
from fairseq_mtmoe.protocols import ChecksVocabulary, NamesTasks

# An unknown word of a hypothesis. Parts of `<unk>` would match references, above all their `<<unk>>`.
UNKNOWN = "⁇"

Batch = Mapping[str, Mapping[int, str]]  # hypotheses by pair and by number in the pair's files


class Sentence(NamedTuple):
    """A sentence to translate: pair, line, and lengths of source and longer side.

    Lengths are set if batches depend on them.
    """

    pair: str
    number: int
    source: int = 0
    tokens: int = 0


@dataclass(frozen=True)
class Decoding(Inference):
    """fairseq-generate's options, and BASE layers' routing; None: as trained."""

    beam: int = 5
    lenpen: float = 1.0
    max_len_a: float = 0.0
    max_len_b: int = 200
    base_evaluation: str | None = None
    sampling: bool = False  # draw words instead of searching for the best
    sampling_topk: int | None = None
    seed: int = 1  # of random draws

    def __post_init__(self) -> None:
        super().__post_init__()
        expect_counts(beam=self.beam, sampling_topk=self.sampling_topk)
        if self.sampling_topk is not None and not self.sampling:
            raise_invalid("--sampling-topk", "absent without `--sampling`", self.sampling_topk)
        for name in ("lenpen", "max_len_a", "max_len_b"):
            value = getattr(self, name)
            if not math.isfinite(value) or (name != "lenpen" and value < 0):
                rule = "a finite number" if name == "lenpen" else "a finite number of at least 0"
                raise_invalid(flag(name), rule, value)

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Self:
        """Return the decoding of a command's options; those that it lacks have their defaults."""
        return cls(**{one.name: options[one.name] for one in fields(cls) if one.name in options})

    @property
    def tokens_of_a_batch(self) -> int | None:
        """Limit of tokens: 12000 if nothing else limits a batch, as in fairseq."""
        return 12000 if self.max_tokens is None and self.batch_size is None else self.max_tokens


@dataclass(frozen=True)
class Translation:
    """Hypotheses and references of a pair's test set."""

    pair: str  # in two steps ha-en-zu
    hypotheses: list[str]
    references: list[str]
    reference_file: str  # the references' file in the data directory
    altered: int  # references that lost words outside the dictionary
    untranslated: int  # sentences longer than the model's positions: hypotheses are empty or, for fairseq, absent
    more_references: tuple[list[str], ...] = ()  # further references of every sentence, or ""
    numbers: Sequence[int] = ()  # numbers of the sentences in the test set
    left_out: int = 0  # sentences without output of fairseq-generate

    @property
    def direction(self) -> str:
        """Source and target language, such as `ha-zu`, also with a pivot."""
        codes = self.pair.split("-")
        return f"{codes[0]}-{codes[-1]}"


@dataclass(frozen=True)
class Direction:
    """A pair's test set with fairseq's task, data set and generator."""

    pair: str
    task: Any
    dataset: Any
    generator: Any
    limits: Any  # positions of task and models
    references: References
    spell: Speller
    compares: str  # `TEXT` or `FAIRSEQ`

    def fitting(self, order: np.ndarray) -> np.ndarray:
        """Return the sentences of `order` that fit the model; prefetch them if needed."""
        kept: np.ndarray = self.task.filter_indices_by_size(
            order, self.dataset, self.limits, ignore_invalid_inputs=True
        )
        if len(kept) and self.dataset.supports_prefetch:  # older formats read nothing without it
            self.dataset.prefetch(kept)
        return kept

    def text(self, output: Sequence[Mapping[str, Any]]) -> str:
        """Return the best hypothesis of a sentence as text."""
        unknown = str(self.task.target_dictionary.unk_string()) if self.compares == FAIRSEQ else UNKNOWN
        return self.spell(output[0]["tokens"], unknown)

    def translation(self, hypotheses: Mapping[int, str]) -> Translation:
        """Return the translation to compare, from hypotheses of all sentences that fit."""
        references = self.references
        compared = sorted(hypotheses) if self.compares == FAIRSEQ else range(len(references.lines))
        return Translation(
            self.pair,
            [hypotheses.get(number, "") for number in compared],
            [references.lines[number] for number in compared],
            references.file,
            references.altered,
            untranslated=len(self.dataset) - len(hypotheses),
            more_references=tuple([lines[number] for number in compared] for lines in references.more),
            numbers=list(compared),
        )


class Translator:
    """Models (several are an ensemble) that translate a data directory's test sets.

    Args:
        data: the directory.
        checkpoints: the models' files.
        decoding: the search's options.
        langs: languages instead of the checkpoint's list.
        post_process: how fairseq joins words; None: found out from the data.
        references: `text`; or `fairseq`: as in fairseq-generate, binarized references, `<unk>` in hypotheses, and
            without the sentences that it leaves out.
    """

    def __init__(
        self, data: str, checkpoints: Sequence[str], decoding: Decoding, langs: Sequence[str] = (),
        post_process: str | None = None, references: str = TEXT,
    ) -> None:  # fmt: skip
        self.data = with_shards(data)
        self.decoding, self.post_process, self.references = decoding, post_process, references
        self.moved = decoding.moved
        self.generation = GenerationConfig(
            beam=decoding.beam, lenpen=decoding.lenpen, max_len_a=decoding.max_len_a, max_len_b=decoding.max_len_b
        )
        self._paths = list(checkpoints)
        self._states = [stored.read(path) for path in checkpoints]
        self._task_cfg = stored.task_settings(self._states[0], checkpoints[0])
        self._task_state = self._states[0].get("task_state")
        stored.remember(self._task_cfg, self._task_state or {}, langs)
        self.models: list[Any] = []  # built with the first direction
        self._task_names: list[str] | None = None
        self._dictionaries: list[Dictionary] = []

    @property
    def trained_pairs(self) -> list[str]:
        """Language pairs that the first checkpoint names as trained."""
        if pairs := stored.pairs_of(self._task_cfg, self._task_state or {}):
            return pairs
        source, target = setting(self._task_cfg, "source_lang"), setting(self._task_cfg, "target_lang")
        return [f"{source}-{target}"] if source and target else []

    def translate(
        self, pair: str, subset: str, note: Callable[[Batch], object] = lambda batch: None,
        known: Mapping[int, str] = MappingProxyType({}),
    ) -> Translation:  # fmt: skip
        """Translate one pair's test set in fairseq-generate's batches; see `translations`."""
        direction = self.direction(pair, subset)
        batches = [[Sentence(pair, number) for number in numbers] for numbers in self._batches(direction)]

        def translate(batch: int) -> Batch:
            items = [direction.dataset[one.number] for one in batches[batch]]
            sample = self.moved(direction.dataset.collater(items))
            outputs = direction.task.inference_step(direction.generator, self.models, sample)
            numbers = sample["id"].tolist()
            return {pair: {number: direction.text(output) for number, output in zip(numbers, outputs, strict=True)}}

        (text,) = self.translations({pair: direction}, batches, translate, note, {pair: known})
        return text

    def direction(self, pair: str, subset: str) -> Direction:
        """Return a pair's test set with task and generator (UserError: wrong dictionary)."""
        task = self._task(pair)
        self._load_models(task)
        dictionary = task.target_dictionary
        folder = utils.split_paths(self.data)[0]
        if not stored.check_pair(folder, subset, pair, (task.source_dictionary, dictionary)):
            raise UserError(f"`{folder}` must have both sides of {subset}.{pair}, but lacks one.")
        task.load_dataset(subset)
        generator = task.build_generator(self.models, self.generation)
        limits = utils.resolve_max_positions(task.max_positions(), *[model.max_positions() for model in self.models])
        references = load_references(self.data, subset, pair, self._speller(dictionary), self.references)
        spell = self._speller(dictionary, generator.symbols_to_strip_from_output)
        return Direction(pair, task, task.dataset(subset), generator, limits, references, spell, self.references)

    @staticmethod
    def translations(
        directions: Mapping[str, Direction], batches: Sequence[Sequence[Sentence]], translate: Callable[[int], Batch],
        note: Callable[[Batch], object], known: Mapping[str, Mapping[int, str]],
    ) -> Iterator[Translation]:  # fmt: skip
        """Yield each pair's translation as soon as its last sentence is translated.

        Args:
            directions: by pair.
            batches: of sentences.
            translate: returns the hypotheses of a batch, by its number.
            note: is called with each batch's hypotheses.
            known: hypotheses that need no translation.
        """
        hypotheses = {pair: dict(known.get(pair, {})) for pair in directions}
        left = Counter(sentence.pair for batch in batches for sentence in batch)
        yield from (direction.translation(hypotheses[pair]) for pair, direction in directions.items() if not left[pair])
        for number, batch in enumerate(batches):
            if not all(one.number in hypotheses[one.pair] for one in batch):
                found = translate(number)
                for pair, texts in found.items():
                    hypotheses[pair].update(texts)
                note(found)
            pairs = Counter(sentence.pair for sentence in batch)
            left.subtract(pairs)
            for pair in filter(pairs.__contains__, directions):
                if left[pair] == 0:
                    yield directions[pair].translation(hypotheses[pair])

    def release(self) -> None:
        """Free the models' memory."""
        self.models = []
        if self.decoding.use_cuda:
            torch.cuda.empty_cache()

    def sources(self, pair: str, subset: str) -> list[str]:
        """Return the source text of a pair's test set."""
        return load_sources(self.data, subset, pair, self._speller(self._task(pair).source_dictionary))

    def _speller(self, dictionary: Dictionary, ignored: Sequence[int] = ()) -> Speller:
        joining = joining_of(self.data, dictionary) if self.post_process is None else self.post_process
        return Speller(dictionary, None if joining == "none" else joining, ignored)

    def _task(self, pair: str) -> Any:
        settings = copy.deepcopy(self._task_cfg)
        source, _, target = pair.partition("-")
        change(settings, data=self.data, source_lang=source, target_lang=target)
        task = tasks.setup_task(settings)
        if isinstance(task, ChecksVocabulary):
            task.check_vocabulary(self._task_state, self._paths[0])
        if self._task_state:
            task.load_state_dict(self._task_state)
        if self._task_names is not None:
            task.task_names = self._task_names
        for lang, dictionary in getattr(task, "dicts", {}).items():
            task.dicts[lang] = self._kept(dictionary)
        return task

    def _kept(self, dictionary: Dictionary) -> Dictionary:
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
            if isinstance(task, ChecksVocabulary):
                task.check_vocabulary(state.get("task_state"), path)
            models.append(ready(stored.build_model(task, state, path), self.decoding, self.generation))
        self.models, self._states = models, []
        self._task_names = task.task_names if isinstance(task, NamesTasks) else None

    def _batches(self, direction: Direction) -> Iterator[list[int]]:
        """Yield the sentences of fairseq-generate's batches, which affect translations.

        The last one has the sentences that it drops.
        """
        dataset = direction.dataset
        dataset.set_epoch(1)
        with data_utils.numpy_seed(2):  # seed + epoch, for tasks that shuffle sentences of equal length
            order = direction.fitting(dataset.ordered_indices())
        if len(order) == 0:
            return
        batches: list[np.ndarray] = dataset.batch_by_size(
            order,
            max_tokens=self.decoding.tokens_of_a_batch,
            max_sentences=self.decoding.batch_size,
            required_batch_size_multiple=8,
        )
        dropped = order[sum(map(len, batches)) :]
        yield from ([int(number) for number in batch] for batch in (*batches, dropped) if len(batch))


def ready(model: Any, decoding: Decoding, generation: GenerationConfig) -> Any:
    """Return the model ready to generate with these options."""
    if decoding.base_evaluation is not None:
        for gate in base_gates(model):
            gate.routing = replace(gate.routing, evaluation=decoding.base_evaluation)
    stored.placed(model, decoding.fp16, decoding.bf16, decoding.use_cuda)
    model.prepare_for_inference_(OmegaConf.structured(FairseqConfig(generation=generation)))
    return model


def joining_of(data: str, dictionary: Dictionary) -> str | None:
    """Return how a data directory's symbols form words; see `subword_marks`."""
    has_model = os.path.exists(os.path.join(utils.split_paths(data)[0], SENTENCEPIECE))
    return "sentencepiece" if has_model else subword_marks(dictionary.symbols)


def subword_marks(symbols: Sequence[str]) -> str | None:
    """Return the subword format: `sentencepiece` (▁), `subword_nmt` (@@), or None."""
    few = 0.01 * len(symbols)
    if sum(symbol.startswith("▁") for symbol in symbols) > few:
        return "sentencepiece"
    return "subword_nmt" if sum(symbol.endswith("@@") for symbol in symbols) > few else None
