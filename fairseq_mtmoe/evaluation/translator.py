"""A model that is loaded once and translates any language pair of its data directory.

The steps are those of fairseq-generate: the same batches, the task's own generator and inference step, the same way
from tokens to text, so that hypotheses are the same, and references and scores, too, where that is asked for.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from fairseq import tasks, utils
from fairseq.data import Dictionary, data_utils
from fairseq.data.iterators import EpochBatchIterator
from fairseq.dataclass.configs import FairseqConfig, GenerationConfig
from omegaconf import OmegaConf

from fairseq_mtmoe.errors import must_be
from fairseq_mtmoe.evaluation.references import FAIRSEQ, TEXT, References, Speller, find_text, load_references
from fairseq_mtmoe.evaluation.stored import build_model, change, check_pair, read, setting, task_settings
from fairseq_mtmoe.moe.gates import base_gates
from fairseq_mtmoe.protocols import NamesTasks

# Written for an unknown word of a hypothesis, because nobody else writes it. `<unk>` would be taken apart, and its
# pieces found in the references: in their `<<unk>>` above all.
UNKNOWN = "⁇"


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
            must_be("--bf16", "off with --fp16", self.bf16)


@dataclass(frozen=True)
class Translation:
    """The detokenised text of one test set, in the order of its files."""

    pair: str
    hypotheses: list[str]
    references: list[str]
    reference_file: str  # where the references are from, in the data directory
    altered: int  # references that lost words which the dictionary does not have
    untranslated: int  # sentences beyond the model's positions: their hypotheses are empty, or as fairseq does absent


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
        self.data, self.decoding, self.post_process, self.references = data, decoding, post_process, references
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
        self._models: list[Any] = []
        self._task_names: list[str] | None = None

    @property
    def trained_pairs(self) -> list[str]:
        """The language pairs that the first checkpoint was trained on, as far as it says."""
        pairs = (self._task_state or {}).get("lang_pairs") or setting(self._task_cfg, "lang_pairs")
        if pairs:
            return pairs.split(",") if isinstance(pairs, str) else list(pairs)
        source, target = setting(self._task_cfg, "source_lang"), setting(self._task_cfg, "target_lang")
        return [f"{source}-{target}"] if source and target else []

    def translate(self, pair: str, subset: str, advance: Callable[[int], None] = lambda sentences: None) -> Translation:
        """Translate the test set of one pair.

        Args:
            pair: for example `en-de`.
            subset: for example `test`.
            advance: is told the number of sentences of every finished batch.
        """
        task = self._task(pair)
        models = self._load(task)
        folder = utils.split_paths(self.data)[0]
        check_pair(folder, subset, pair, (task.source_dictionary, task.target_dictionary))
        task.load_dataset(subset)
        dataset = task.dataset(subset)
        generator = task.build_generator(models, self.generation)
        dictionary = task.target_dictionary
        spell = Speller(dictionary, self._joining(dictionary), generator.symbols_to_strip_from_output)
        references = self._references(task, pair, subset)
        as_fairseq = self.references == FAIRSEQ
        unknown = dictionary.unk_string() if as_fairseq else UNKNOWN
        hypotheses: dict[int, str] = {}
        for sample in self._batches(task, dataset, models):
            outputs = task.inference_step(generator, models, sample)
            for row, number in enumerate(sample["id"].tolist()):
                hypotheses[number] = spell(outputs[row][0]["tokens"], unknown)
            advance(len(outputs))
        compared = sorted(hypotheses) if as_fairseq else range(len(references.lines))
        return Translation(
            pair,
            [hypotheses.get(number, "") for number in compared],
            [references.lines[number] for number in compared],
            references.file,
            references.altered,
            untranslated=len(dataset) - len(hypotheses),
        )

    def check_references(self, pairs: Sequence[str], subset: str) -> None:
        """Raise `UserError` if the text in `raw/` of one of the pairs is not that of its binarized test set."""
        for pair in pairs if self.references == TEXT else ():
            if find_text(self.data, subset, pair) is not None:
                self._references(self._task(pair), pair, subset)

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
        return task

    def _load(self, task: Any) -> list[Any]:
        """The models; the first task builds them, and learns from them which tasks they tell apart."""
        if not self._models:
            self._models = [
                self._prepared(build_model(task, state, path))
                for state, path in zip(self._states, self._paths, strict=True)
            ]
            self._states = []
            self._task_names = task.task_names if isinstance(task, NamesTasks) else None
        return self._models

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

    def _batches(self, task: Any, dataset: Any, models: list[Any]) -> Iterator[dict[str, Any]]:
        numbers = self._numbers(task, dataset, models)
        batches = EpochBatchIterator(dataset, dataset.collater, numbers).next_epoch_itr(shuffle=False)
        for sample in batches:
            yield utils.move_to_cuda(sample) if self.use_cuda else sample

    def _numbers(self, task: Any, dataset: Any, models: list[Any]) -> list[np.ndarray]:
        """The sentences of each batch: fairseq-generate's, then those that it drops.

        The limit of `--max-len-a` is of a batch's longest source, so what a sentence's translation is depends on its
        batch. fairseq-generate drops the last batch if its size is not a multiple of 8.
        """
        max_tokens = self.decoding.max_tokens
        if max_tokens is None and self.decoding.batch_size is None:
            max_tokens = 12000
        positions = utils.resolve_max_positions(task.max_positions(), *[model.max_positions() for model in models])
        dataset.set_epoch(1)
        with data_utils.numpy_seed(2):  # seed + epoch, for tasks that shuffle the sentences of one length
            order = dataset.ordered_indices()
        order = task.filter_indices_by_size(order, dataset, positions, ignore_invalid_inputs=True)
        if len(order) == 0:
            return []
        batches: list[np.ndarray] = dataset.batch_by_size(
            order, max_tokens=max_tokens, max_sentences=self.decoding.batch_size, required_batch_size_multiple=8
        )
        dropped = order[sum(map(len, batches)) :]
        return [*batches, dropped] if len(dropped) else batches

    def _joining(self, dictionary: Dictionary) -> str | None:
        if self.post_process is not None:
            return None if self.post_process == "none" else self.post_process
        if os.path.exists(os.path.join(utils.split_paths(self.data)[0], "spm.model")):
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
