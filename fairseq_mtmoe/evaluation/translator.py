"""A model that is loaded once and translates any language pair of its data directory.

The steps are those of fairseq-generate: the same batches, the task's own generator and inference step, the same way
from tokens to text, so that hypotheses are the same, and references and scores, too, where that is asked for.
`mixing.py` has the same with sentences of several pairs in a batch.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Mapping, Sequence
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
from fairseq_mtmoe.evaluation.references import FAIRSEQ, TEXT, References, Speller, load_references, load_sources
from fairseq_mtmoe.evaluation.stored import build_model, change, check_pair, read, setting, task_settings
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
class Direction:
    """The test set of one pair with everything that translates it: fairseq's task, data set and generator."""

    pair: str
    task: Any
    dataset: Any
    generator: Any
    spell: Speller
    references: References


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


class Translator:
    """Models (several are an ensemble) and the settings that they were trained with.

    Args:
        data: the data directory, as fairseq takes it.
        checkpoints: files of one model each.
        decoding: how to search.
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
            change(self._task_cfg, langs=_like(setting(self._task_cfg, "langs"), langs), lang_dict=None)
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

        Args:
            pair: for example `en-de`.
            subset: for example `test`.
            note: is told the hypotheses of every finished batch.
            known: hypotheses that were noted before; batches of nothing else are not translated again.
        """
        direction = self.direction(pair, subset)
        hypotheses = dict(known)
        for numbers in self._numbers(direction):
            if all(int(number) in known for number in numbers):
                continue
            sample = self.moved(direction.dataset.collater([direction.dataset[int(number)] for number in numbers]))
            outputs = direction.task.inference_step(direction.generator, self.models, sample)
            found = {
                number: direction.spell(outputs[row][0]["tokens"], self.unknown(direction))
                for row, number in enumerate(sample["id"].tolist())
            }
            hypotheses.update(found)
            note({pair: found})
        return self.translation(direction, hypotheses)

    def direction(self, pair: str, subset: str) -> Direction:
        """What is needed to translate the test set of one pair.

        Raises:
            UserError: its files are damaged, or of another dictionary than the model's.
        """
        task = self._task(pair)
        models = self._load(task)
        folder = utils.split_paths(self.data)[0]
        check_pair(folder, subset, pair, (task.source_dictionary, task.target_dictionary))
        task.load_dataset(subset)
        generator = task.build_generator(models, self.generation)
        dictionary = task.target_dictionary
        spell = Speller(dictionary, self._joining(dictionary), generator.symbols_to_strip_from_output)
        return Direction(pair, task, task.dataset(subset), generator, spell, self._references(task, pair, subset))

    def fitting(self, direction: Direction, order: np.ndarray) -> np.ndarray:
        """Those sentences of `order` that are not longer than task and models can take."""
        positions = [model.max_positions() for model in self.models]
        limits = utils.resolve_max_positions(direction.task.max_positions(), *positions)
        kept: np.ndarray = direction.task.filter_indices_by_size(
            order, direction.dataset, limits, ignore_invalid_inputs=True
        )
        return kept

    def unknown(self, direction: Direction) -> str:
        """What an unknown word of a hypothesis is written as."""
        return str(direction.task.target_dictionary.unk_string()) if self.references == FAIRSEQ else UNKNOWN

    def release(self) -> None:
        """Let the models go, and the memory that they take: what is left to do needs text alone."""
        self.models = []
        if self.use_cuda:
            torch.cuda.empty_cache()

    def moved(self, sample: dict[str, Any]) -> dict[str, Any]:
        """A batch, where the models are."""
        moved: dict[str, Any] = utils.move_to_cuda(sample) if self.use_cuda else sample
        return moved

    def translation(self, direction: Direction, hypotheses: Mapping[int, str]) -> Translation:
        """What is compared, of the hypotheses of all sentences that were not too long."""
        references = direction.references
        compared = sorted(hypotheses) if self.references == FAIRSEQ else range(len(references.lines))
        return Translation(
            direction.pair,
            [hypotheses.get(number, "") for number in compared],
            [references.lines[number] for number in compared],
            references.file,
            references.altered,
            untranslated=len(direction.dataset) - len(hypotheses),
            more_references=tuple([lines[number] for number in compared] for lines in references.more),
            numbers=list(compared),
        )

    def sources(self, pair: str, subset: str) -> list[str]:
        """The source text of a pair's test set, in the order of its files.

        Raises:
            UserError: the text in `raw/` is not that of the binarized file.
        """
        dictionary = self._task(pair).source_dictionary
        return load_sources(self.data, subset, pair, Speller(dictionary, self._joining(dictionary)))

    def _references(self, task: Any, pair: str, subset: str) -> References:
        dictionary = task.target_dictionary
        spell = Speller(dictionary, self._joining(dictionary))
        return load_references(self.data, subset, pair, spell, self.references)

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
        for known in self._dictionaries:
            if known == dictionary:
                return known
        self._dictionaries.append(dictionary)
        return dictionary

    def _load(self, task: Any) -> list[Any]:
        """The models; the first task builds them, and learns from them which tasks they tell apart."""
        if not self.models:
            self.models = [
                self._prepared(build_model(task, state, path))
                for state, path in zip(self._states, self._paths, strict=True)
            ]
            self._states = []
            self._task_names = task.task_names if isinstance(task, NamesTasks) else None
        return self.models

    def _prepared(self, model: Any) -> Any:
        if self.decoding.base_evaluation is not None:
            for gate in base_gates(model):
                gate.routing = replace(gate.routing, evaluation=self.decoding.base_evaluation)
        if self.decoding.fp16:
            model.half()
        if self.decoding.bf16:
            model.bfloat16()
        if self.use_cuda:
            model.cuda()
        model.prepare_for_inference_(OmegaConf.structured(FairseqConfig(generation=self.generation)))
        return model

    def _numbers(self, direction: Direction) -> list[np.ndarray]:
        """The sentences of each batch: fairseq-generate's, then those that it drops.

        The limit of `--max-len-a` is of a batch's longest source, so what a sentence's translation is depends on its
        batch. fairseq-generate drops the last batch if its size is not a multiple of 8.
        """
        dataset = direction.dataset
        dataset.set_epoch(1)
        with data_utils.numpy_seed(2):  # seed + epoch, for tasks that shuffle the sentences of one length
            order = dataset.ordered_indices()
        order = self.fitting(direction, order)
        if len(order) == 0:
            return []
        if dataset.supports_prefetch:  # the older formats read nothing before
            dataset.prefetch(order)
        batches: list[np.ndarray] = dataset.batch_by_size(
            order,
            max_tokens=self.decoding.tokens_of_a_batch,
            max_sentences=self.decoding.batch_size,
            required_batch_size_multiple=8,
        )
        dropped = order[sum(map(len, batches)) :]
        return [*batches, dropped] if len(dropped) else batches

    def _joining(self, dictionary: Dictionary) -> str | None:
        if self.post_process is not None:
            return None if self.post_process == "none" else self.post_process
        return joining_of(self.data, dictionary)


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


def _like(old: Any, names: Sequence[str]) -> Any:
    """Names as the task's setting has them: a string with commas in a configuration, else a list."""
    return ",".join(names) if isinstance(old, str) else list(names)
