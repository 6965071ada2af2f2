"""A model that is loaded once and translates any language pair of its data directory.

The steps are those of fairseq-generate: the same batches, the task's own generator and inference step, the same way
from tokens to text, so that hypotheses are the same, and references and scores, too, where that is asked for.
`mixing.py` has the same with sentences of several pairs in a batch.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from fairseq import tasks, utils
from fairseq.data import Dictionary, data_utils
from fairseq.dataclass.configs import FairseqConfig, GenerationConfig
from omegaconf import OmegaConf

from fairseq_mtmoe.data.translation.recorded_sizes import with_shards
from fairseq_mtmoe.errors import raise_invalid
from fairseq_mtmoe.evaluation.stored import build_model, change, check_pair, placed, read, setting, task_settings
from fairseq_mtmoe.evaluation.test_sets import FAIRSEQ, TEXT, References, Speller, load_references, load_sources
from fairseq_mtmoe.moe.gates import base_gates
from fairseq_mtmoe.protocols import NamesTasks

# Written for an unknown word of a hypothesis, because nobody else writes it. `<unk>` would be taken apart, and its
# pieces found in the references: in their `<<unk>>` above all.
UNKNOWN = "⁇"

# The hypotheses of a batch, by pair and by their sentences' numbers in the pair's files.
Batch = Mapping[str, Mapping[int, str]]


@dataclass(frozen=True)
class Decoding:
    """Options of fairseq-generate, with its names and defaults; and how BASE layers route, as trained if None.

    Raises:
        UserError: there are two types of half precision at once.
    """

    beam: int = 5
    lenpen: float = 1.0
    max_len_a: float = 0.0
    max_len_b: int = 200
    max_tokens: int | None = None
    batch_size: int | None = None
    fp16: bool = False
    bf16: bool = False
    cpu: bool = False
    base_evaluation: str | None = None

    def __post_init__(self) -> None:
        if self.fp16 and self.bf16:
            raise_invalid("--bf16", "off with --fp16", self.bf16)

    @property
    def tokens_of_a_batch(self) -> int | None:
        """At most so many: 12000 where nothing else limits a batch, as in fairseq."""
        return 12000 if self.max_tokens is None and self.batch_size is None else self.max_tokens


@dataclass(frozen=True)
class Translation:
    """The detokenised text of one test set, in the order of its files."""

    pair: str
    hypotheses: list[str]
    references: list[str]
    reference_file: str  # where the references are from, in the data directory
    altered: int  # references that lost words which the dictionary does not have
    untranslated: int  # sentences beyond the model's positions: their hypotheses are empty, or as fairseq does absent
    more_references: tuple[list[str], ...] = ()  # further ones of every sentence, "" where it has none
    numbers: Sequence[int] = ()  # of the sentences, in the test set
    left_out: int = 0  # sentences of which fairseq-generate wrote nothing, for whatever reason


@dataclass(frozen=True)
class Direction:
    """The test set of one pair with everything that translates it: fairseq's task, data set and generator.

    `limits` are the positions that task and models have; hypotheses are compared as `compares` says, `TEXT` or
    `FAIRSEQ`.
    """

    pair: str
    task: Any
    dataset: Any
    generator: Any
    limits: Any
    references: References
    spell: Speller
    compares: str

    def fitting(self, order: np.ndarray) -> np.ndarray:
        """Those sentences of `order` that are not too long, which are read where the data set reads ahead."""
        kept: np.ndarray = self.task.filter_indices_by_size(
            order, self.dataset, self.limits, ignore_invalid_inputs=True
        )
        if len(kept) and self.dataset.supports_prefetch:  # the older formats read nothing before
            self.dataset.prefetch(kept)
        return kept

    def text(self, output: Sequence[Mapping[str, Any]]) -> str:
        """The best of a sentence's hypotheses."""
        unknown = str(self.task.target_dictionary.unk_string()) if self.compares == FAIRSEQ else UNKNOWN
        return self.spell(output[0]["tokens"], unknown)

    def translation(self, hypotheses: Mapping[int, str]) -> Translation:
        """What is compared, of the hypotheses of all sentences that were not too long."""
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
    """Models (several are an ensemble) and the settings that they were trained with.

    Args:
        langs: replaces the checkpoint's list of languages, for a checkpoint whose list is not found any more.
        post_process: how fairseq puts words together (`sentencepiece`, `subword_nmt`, …); found out if not given.
        references: `text`, or `fairseq` for what fairseq-generate compares: binarized references, with `<unk>` in
            hypotheses and without the sentences that are left out.

    Raises:
        UserError: a checkpoint is missing, damaged, not a translation model's, or does not fit the data directory.
    """

    def __init__(
        self,
        data: str,
        checkpoints: Sequence[str],
        decoding: Decoding,
        langs: Sequence[str] = (),
        post_process: str | None = None,
        references: str = TEXT,
    ) -> None:
        self.data = with_shards(data)
        self.decoding, self.post_process, self.references = decoding, post_process, references
        self.use_cuda = torch.cuda.is_available() and not decoding.cpu
        self.generation = GenerationConfig(
            beam=decoding.beam, lenpen=decoding.lenpen, max_len_a=decoding.max_len_a, max_len_b=decoding.max_len_b
        )
        self._paths = list(checkpoints)
        self._states = [read(path) for path in checkpoints]
        self._task_cfg = task_settings(self._states[0], checkpoints[0])
        if langs:
            as_text = isinstance(setting(self._task_cfg, "langs"), str)
            change(self._task_cfg, langs=",".join(langs) if as_text else list(langs), lang_dict=None)
        self._task_state = self._states[0].get("task_state")
        self.models: list[Any] = []  # from the first direction on
        self._task_names: list[str] | None = None
        self._dictionaries: list[Dictionary] = []

    @property
    def trained_pairs(self) -> list[str]:
        """The language pairs that the first checkpoint was trained on, as far as it says."""
        pairs = (self._task_state or {}).get("lang_pairs") or setting(self._task_cfg, "lang_pairs")
        if pairs:
            return pairs.split(",") if isinstance(pairs, str) else list(pairs)
        source, target = setting(self._task_cfg, "source_lang"), setting(self._task_cfg, "target_lang")
        return [f"{source}-{target}"] if source and target else []

    def translate(
        self,
        pair: str,
        subset: str,
        note: Callable[[Batch], object] = lambda batch: None,
        known: Mapping[int, str] = MappingProxyType({}),
    ) -> Translation:
        """Translate the test set of one pair, in the batches of fairseq-generate.

        `note` is told the hypotheses of every finished batch; batches of nothing but `known` ones are not translated
        again.
        """
        direction = self.direction(pair, subset)
        hypotheses = dict(known)
        for numbers in self._batches(direction):
            if all(number in known for number in numbers):
                continue
            sample = self.moved(direction.dataset.collater([direction.dataset[number] for number in numbers]))
            outputs = direction.task.inference_step(direction.generator, self.models, sample)
            found = {number: direction.text(outputs[row]) for row, number in enumerate(sample["id"].tolist())}
            hypotheses.update(found)
            note({pair: found})
        return direction.translation(hypotheses)

    def direction(self, pair: str, subset: str) -> Direction:
        """Return what is needed to translate the test set of one pair.

        Raises:
            UserError: its files are damaged, or of another dictionary than the model's.
        """
        task = self._task(pair)
        self._load_models(task)
        dictionary = task.target_dictionary
        check_pair(utils.split_paths(self.data)[0], subset, pair, (task.source_dictionary, dictionary))
        task.load_dataset(subset)
        generator = task.build_generator(self.models, self.generation)
        limits = utils.resolve_max_positions(task.max_positions(), *[model.max_positions() for model in self.models])
        references = load_references(self.data, subset, pair, self._speller(dictionary), self.references)
        spell = self._speller(dictionary, generator.symbols_to_strip_from_output)
        return Direction(pair, task, task.dataset(subset), generator, limits, references, spell, self.references)

    def release(self) -> None:
        """Let the models go, and the memory that they take: what is left to do needs text alone."""
        self.models = []
        if self.use_cuda:
            torch.cuda.empty_cache()

    def moved(self, sample: dict[str, Any]) -> dict[str, Any]:
        """A batch, where the models are."""
        moved: dict[str, Any] = utils.move_to_cuda(sample) if self.use_cuda else sample
        return moved

    def sources(self, pair: str, subset: str) -> list[str]:
        """Return the source text of a pair's test set, in the order of its files; see `load_sources`."""
        return load_sources(self.data, subset, pair, self._speller(self._task(pair).source_dictionary))

    def _speller(self, dictionary: Dictionary, ignored: Sequence[int] = ()) -> Speller:
        joining = joining_of(self.data, dictionary) if self.post_process is None else self.post_process
        return Speller(dictionary, None if joining == "none" else joining, ignored)

    def _task(self, pair: str) -> Any:
        settings = copy.deepcopy(self._task_cfg)
        source, _, target = pair.partition("-")
        change(settings, data=self.data, source_lang=source, target_lang=target)
        if setting(settings, "eval_bleu"):
            change(settings, eval_bleu=False)
        task = tasks.setup_task(settings)
        if self._task_state:
            task.load_state_dict(self._task_state)
        if self._task_names is not None:
            task.task_names = self._task_names
        for lang, dictionary in getattr(task, "dicts", {}).items():
            task.dicts[lang] = self._kept(dictionary)
        return task

    def _kept(self, dictionary: Dictionary) -> Dictionary:
        """The same dictionary, once for all tasks: of 50 directions it would take gigabytes."""
        known = next((known for known in self._dictionaries if known == dictionary), None)
        if known is None:
            self._dictionaries.append(dictionary)
        return known or dictionary

    def _load_models(self, task: Any) -> None:
        """Build the models, with the first task, and learn from them which tasks they tell apart."""
        if self.models:
            return
        self.models = [
            self._prepared(build_model(task, state, path))
            for state, path in zip(self._states, self._paths, strict=True)
        ]
        self._states = []
        self._task_names = task.task_names if isinstance(task, NamesTasks) else None

    def _prepared(self, model: Any) -> Any:
        if self.decoding.base_evaluation is not None:
            for gate in base_gates(model):
                gate.routing = replace(gate.routing, evaluation=self.decoding.base_evaluation)
        placed(model, self.decoding.fp16, self.decoding.bf16, self.use_cuda)
        model.prepare_for_inference_(OmegaConf.structured(FairseqConfig(generation=self.generation)))
        return model

    def _batches(self, direction: Direction) -> Iterator[list[int]]:
        """The sentences of each batch: fairseq-generate's, then those that it drops.

        The limit of `--max-len-a` is of a batch's longest source, so what a sentence's translation is depends on its
        batch. fairseq-generate drops the last batch if its size is not a multiple of 8.
        """
        dataset = direction.dataset
        dataset.set_epoch(1)
        with data_utils.numpy_seed(2):  # seed + epoch, for tasks that shuffle the sentences of one length
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


def joining_of(data: str, dictionary: Dictionary) -> str | None:
    """How the symbols of a data directory's dictionary form words; see `subword_marks`."""
    if os.path.exists(os.path.join(utils.split_paths(data)[0], "spm.model")):
        return "sentencepiece"
    return subword_marks(dictionary)


def subword_marks(dictionary: Dictionary) -> str | None:
    """How the dictionary's symbols form words: `sentencepiece` (▁), `subword_nmt` (@@), or None: each is a word."""
    few = 0.01 * len(dictionary)
    if sum(symbol.startswith("▁") for symbol in dictionary.symbols) > few:
        return "sentencepiece"
    return "subword_nmt" if sum(symbol.endswith("@@") for symbol in dictionary.symbols) > few else None
