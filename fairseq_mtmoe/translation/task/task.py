"""`--task translation_heated`: many-language translation with heated sampling.

Every sentence has a task id.

fairseq's `translation_multi_simple_epoch` with its options, and heated sampling ("Tricks for
Training Sparse Translation Models", §2.2). It adds correct ids in mixed batches, a loss for each
language pair, and exact resumption.
"""

from __future__ import annotations

import functools
import logging
import os
from argparse import Namespace
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.sequence_scorer import SequenceScorer
from fairseq.tasks import FairseqTask, register_task
from fairseq.tasks.translation_multi_simple_epoch import TranslationMultiSimpleEpochTask
from fairseq.utils import split_paths
from torch import Tensor, nn

from fairseq_mtmoe.core.errors import UserError, raise_invalid, shortened
from fairseq_mtmoe.core.protocols import TaskDescription
from fairseq_mtmoe.core.tiers import TIER_RULE, TIERS, load_tiers
from fairseq_mtmoe.multitask.mixtures.dataset import EvaluationMixture
from fairseq_mtmoe.multitask.mixtures.training import TrainingMixture
from fairseq_mtmoe.multitask.task import Multitask
from fairseq_mtmoe.multitask.task_sampling import plan_of
from fairseq_mtmoe.multitask.validation import Group
from fairseq_mtmoe.slots.slot import takes, unwrapped
from fairseq_mtmoe.training.fairseq_readers import PiecesOfLines
from fairseq_mtmoe.training.sparsify.in_training import begin_with
from fairseq_mtmoe.translation.criterion.moe_label_smoothed_cross_entropy import sentence_entropies
from fairseq_mtmoe.translation.data.collating import PairCollate
from fairseq_mtmoe.translation.data.descriptions import description_of_pair, description_tokens
from fairseq_mtmoe.translation.data.file_names import SENTENCEPIECE, model_of_sources
from fairseq_mtmoe.translation.data.new_language import codes_of
from fairseq_mtmoe.translation.data.pairs import DataManager, PairLoader, training_sizes
from fairseq_mtmoe.translation.data.piece_sampling import PieceSampling, sampling_of
from fairseq_mtmoe.translation.data.recorded_sizes import synthetic_shares
from fairseq_mtmoe.translation.data.vocabulary import (
    KEPT,
    VOCABULARY,
    Side,
    Vocabulary,
    check_symbols,
    ends_of,
)
from fairseq_mtmoe.translation.decode.fairseq_searches import mend
from fairseq_mtmoe.translation.decode.first_words import first_words
from fairseq_mtmoe.translation.task import options
from fairseq_mtmoe.translation.task.config import TranslationHeatedConfig
from fairseq_mtmoe.translation.task.initial import InitialModel, check_places, expect_sizes, load
from fairseq_mtmoe.translation.task.new_embeddings import NewEmbeddings
from fairseq_mtmoe.translation.task.options import check_decoding
from fairseq_mtmoe.translation.task.scoring import ValidationScores, check_best_metric
from fairseq_mtmoe.translation.task.targets import check_targets

logger = logging.getLogger(__name__)

SIDES = ("source", "target")  # of a vocabulary


@register_task("translation_heated", dataclass=TranslationHeatedConfig)
class TranslationHeatedTask(Multitask, TranslationMultiSimpleEpochTask):
    """Multilingual translation; tasks are language pairs, and groups are tiers."""

    tasks_event_key = "pairs"
    groups_event_key = "tiers"

    def __init__(
        self, args: Namespace, langs: list[str], dicts: dict[str, Any], training: bool
    ) -> None:
        super().__init__(args, langs, dicts, training)
        self.set_up_tasks(options.task_names(args, langs))
        self.dictionary_sizes: dict[int, int] = {}
        self._model_langs: list[str] | None = None
        self._scores = ValidationScores(self) if args.eval_bleu or args.eval_chrf else None
        self.data_manager = DataManager(args, self.lang_pairs, langs, dicts, self.sampling_method)
        self.initial: InitialModel | None = None
        self._new_embeddings: NewEmbeddings | None = None
        if training:
            self.state.merge_state_dict(options.saved_settings(args))

    # ---- options and dictionaries ----

    @classmethod
    def add_args(cls, parser: Any) -> None:
        """Add the task's options; called by fairseq."""
        gen_parser_from_dataclass(parser, TranslationHeatedConfig())

    @classmethod
    def setup_task(
        cls, cfg: Any, vocabulary: Vocabulary | None = None, **kwargs: Any
    ) -> TranslationHeatedTask:
        """Build the task; called by fairseq.

        vocabulary: replaces a data directory's dictionaries, to translate plain text.
        """
        initial = load(cfg.init_model) if cfg.init_model and options.is_training(cfg) else None
        args = options.arguments(
            cfg, None if initial is None else initial.forms, has_data=vocabulary is None
        )
        if vocabulary is not None:
            args.source_dict, args.target_dict = SIDES
            args.fixed_dictionary = None
        sizes: dict[int, int] = {}

        @functools.cache  # a joined dictionary is large
        def of_side(side: Side) -> Any:
            return side.dictionary()

        def load_dictionary(path: str) -> Any:
            side = None if vocabulary is None else getattr(vocabulary, path)
            dictionary = cls.load_dictionary(path) if side is None else of_side(side)
            sizes.setdefault(id(dictionary), len(dictionary))
            return dictionary

        langs, dicts, training = DataManager.prepare(load_dictionary, args)
        for dictionary in dicts.values():
            options.check_language_tokens(args, dictionary)
        task = cls(args, langs, dicts, training)
        task.dictionary_sizes = sizes
        if initial is not None:
            initial.check(task.source_dictionary, task.target_dictionary, split_paths(args.data)[0])
        task.initial = initial
        if training:
            vocabulary = task._vocabulary_of_data()
            if vocabulary is not None:
                task.state.merge_state_dict({VOCABULARY: vocabulary.to_state()})
            if initial is not None:
                task._keep(initial.settings)
        return task

    @classmethod
    def check_given(cls, options: Namespace, given: Mapping[str, Any]) -> None:
        """See `TrainingTask`."""
        check_decoding(options)
        # `fairseq-validate` leaves the option out where it is not given.
        if getattr(options, "init_model", None):
            expect_sizes(options.init_model, given)

    def check_vocabulary(self, state: Mapping[str, Any] | None, path: str) -> None:
        """Compare the dictionaries with a checkpoint's vocabulary (UserError)."""
        check_symbols(
            state, (self.source_dictionary, self.target_dictionary), self.dictionary_sizes, path
        )

    def _keep(self, settings: Mapping[str, Any]) -> None:
        """Store a model's settings in checkpoints, unless they are stored already."""
        kept = {name: settings[name] for name in KEPT if name in settings}
        self.state.merge_state_dict({**kept, **self.state.state_dict})

    def _vocabulary_of_data(self) -> Vocabulary | None:
        sides = self.source_dictionary, self.target_dictionary
        symbols = [side.symbols[: self.dictionary_sizes[id(side)]] for side in sides]
        return Vocabulary.of_data(split_paths(self.args.data)[0], *symbols)

    def _piece_sampling(self) -> PieceSampling:
        folder = split_paths(self.args.data)[0]
        vocabulary = self._vocabulary_of_data()
        if vocabulary is None:
            raise UserError(
                f"`--sample-pieces` must have the data directory's {SENTENCEPIECE}, but {folder} "
                "has none."
            )
        return sampling_of(
            self.args, vocabulary, self.source_dictionary, self.target_dictionary, folder
        )

    def check_dicts(
        self, dicts: dict[str, Any], source_langs: list[str], target_langs: list[str]
    ) -> None:
        """Check that all sources, and all targets, share a dictionary (UserError)."""
        for option, langs in (("source_dict", source_langs), ("target_dict", target_langs)):
            for lang in langs if getattr(self.args, option) is None else ():
                if dicts[lang] != dicts[langs[0]]:
                    raise UserError(
                        f"`dict.{lang}.txt` and `dict.{langs[0]}.txt` must be the same "
                        "dictionary, but differ; preprocess all languages with one joined "
                        "dictionary."
                    )

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over the settings of training, before a model is built for evaluation.

        A `UserError` refuses languages that the model was not trained with, and an ensemble of
        models with different languages.
        """
        super().load_state_dict(state_dict)
        self.check_vocabulary(state_dict, "CHECKPOINT")  # fairseq does not say which
        before = self._model_langs
        now = state_dict.get("langs")  # stock fairseq does not save them
        if before and now and now != before:
            raise UserError(
                "The models of an ensemble must have the same languages in the same order, but "
                f"one has {', '.join(before)} and another {', '.join(now)}."
            )
        self._model_langs = now or before
        if not options.take_over(self.args, state_dict):
            return
        options.relabel(self.dicts, self.dictionary_sizes, self.args)
        for dictionary in self.dicts.values():
            options.check_language_tokens(self.args, dictionary, " of the checkpoint")
        self.langs = self.data_manager.langs = self.args.langs
        self.data_manager.lang_dict = self.data_manager.create_lang_dictionary(self.langs)

    def build_model(self, cfg: Any, from_checkpoint: bool = False) -> Any:
        """Build the model (UserError: a language of neither checkpoint nor data)."""
        unknown = getattr(self.args, "langs_beyond_data", [])
        if unknown and self._model_langs is None:
            names = shortened([lang for lang in self.langs if lang not in unknown], unknown[0])
            raise UserError(
                f"The language {unknown[0]} of the pair {self.lang_pairs[0]} is unknown; known "
                f"languages are {names}."
            )
        begins = self.initial if not from_checkpoint else None
        if begins is not None:
            begins.note_sizes(cfg)
        model = super().build_model(cfg, from_checkpoint)
        if self.training and not from_checkpoint:
            check_targets(self.args, self.task_id, model)
        if begins is not None and self.checkpoint_to_go_on_from() is None:
            begin_with(model, begins.weights)
        if self.training and self.args.train_only and not from_checkpoint:
            counts = options.new_symbols(begins.settings if begins else {})
            self._new_embeddings = NewEmbeddings(model, counts)
        return model

    def optimizer_step(self, optimizer: Any, model: Any, update_num: int) -> None:
        """Take an optimizer step; `--train-only` keeps the embeddings of old symbols."""
        with nullcontext() if self._new_embeddings is None else self._new_embeddings.kept():
            super().optimizer_step(optimizer, model, update_num)

    # ---- tasks and data ----

    def task_id(self, pair: str) -> int:
        """Return a language pair's task id (UserError: the model was not trained with it)."""
        source = pair.split("-")[0]
        target = pair.split("-")[-1]
        kind = self.args.task_ids if self.args.task_ids in options.TASK_IDS else "target"
        name = {
            "source": source,
            "target": options.task_of_language(self.args.task_ids, target),
            "pair": pair,
        }[kind]
        return self.id_of(name, f"the {kind} of {pair}")

    def for_models(self, sample: dict[str, Any], models: Sequence[Any]) -> dict[str, Any]:
        """Return the batch with the task and language ids that the models accept."""
        sample = super().for_models(sample, models)
        if (
            sample
            and "src_lang_id" in sample["net_input"]
            and not all(takes(m, "src_lang_id") for m in models)
        ):
            del sample["net_input"]["src_lang_id"]
        return sample

    def load_dataset(
        self, split: str, epoch: int = 1, combine: bool = False, **kwargs: Any
    ) -> None:
        """Load a split; see `PairLoader` for the errors."""
        loader = PairLoader(self.data_manager, split, combine)
        ids = [self.task_id(pair.name) for pair in loader.pairs]
        if self.training and split == self.args.train_subset:
            plan = plan_of(self.args, loader.keys, loader.shard_sizes)
            collate = PairCollate(self.data_manager._shared_collater())
            alter = self._piece_sampling() if self.args.sample_pieces else None
            self.datasets[split] = TrainingMixture(
                loader.load, plan, ids, collate, epoch, self.num_updates, alter=alter
            )
        else:
            if self._scores is not None:
                self._scores.check(loader)
            names = [pair.name for pair in loader.pairs]
            self.datasets[split] = EvaluationMixture(names, loader.load(), ids, PairCollate())

    def take_up(self, path: str, state: Mapping[str, Any], goes_on: bool) -> None:
        """See `TrainingTask`; a run may continue with more pairs, or with fewer."""
        before = (state.get("task_state") or {}).get("lang_pairs")
        now = options.all_pairs(self.args)
        if goes_on and before and not (set(before) <= set(now) or set(now) <= set(before)):
            self.refuse_other_tasks("--lang-pairs", path, before, now, ", with more or fewer pairs")
        self.check_vocabulary(state.get("task_state"), path)
        check_places(path, state, self.langs, self.task_names, goes_on)
        options.warn_of_changes(self.args, state.get("task_state") or {})
        self._keep(state.get("task_state") or {})

    def uncertainties(
        self, sample: dict[str, Any], model: nn.Module, criterion: Any, under_dropout: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the mean entropy of each sentence's target tokens."""
        assert not under_dropout
        return sample["id"], *sentence_entropies(model, sample, self.target_dictionary.pad())

    def begin_epoch(self, epoch: int, model: Any) -> None:
        """Begin an epoch (UserError: wrong options).

        Options are wrong if they are for generation, or would leave data out.
        """
        options.check_training(self.args)
        check_best_metric(self._run["options"].get("best_checkpoint_metric", "loss"), self.args)
        super().begin_epoch(epoch, model)

    # ---- a model that borrows ----

    def described(self) -> TaskDescription:
        """Return the description of the single language pair (UserError: several)."""
        pairs = options.all_pairs(self.args)
        if len(pairs) != 1:
            rule = "a single pair for a model that borrows from others"
            raise_invalid("--lang-pairs", rule, ",".join(pairs))
        text = self.args.description or description_of_pair(pairs[0])
        tokens = description_tokens(text, self.source_dictionary, split_paths(self.args.data)[0])
        dictionary = self.source_dictionary
        language_symbols = len(dictionary) - self.dictionary_sizes[id(dictionary)]
        return TaskDescription(pairs[0], text, tokens, language_symbols=language_symbols)

    # ---- the run log ----

    def about_the_run(self) -> dict[str, Any]:
        logger.info(TIER_RULE, extra={"for_screen": True})  # see training/screen.py
        shares = synthetic_shares(split_paths(self.args.data)[0])
        about: dict[str, Any] = {
            "tiers": self.pair_tiers,
            **super().about_the_run(),
            "task_ids": self.args.task_ids,
        }
        if shares:
            about["synthetic"] = shares
        return about

    def shown_name(self, key: str) -> str:
        """Return a pair without fairseq's prefix of data that is no extra data."""
        return key.removeprefix("main:")

    @property
    def validated_tasks(self) -> list[str]:
        pairs: list[str] = self.lang_pairs
        return pairs

    def groups(self) -> list[Group]:
        """Return the tiers that have pairs."""
        tiers = self.pair_tiers
        groups = []
        for tier in TIERS:
            members = tuple(pair for pair in self.lang_pairs if tiers.get(pair) == tier)
            if members:
                groups.append(Group(tier, members))
        return groups

    @functools.cached_property
    def pair_tiers(self) -> dict[str, str]:
        """The tier of each language pair, where the data determines it."""
        sizes = {**dict.fromkeys(self.lang_pairs, 0), **training_sizes(self.data_manager)}
        return load_tiers(split_paths(self.args.data)[0], sizes)

    # ---- translating in validation ----

    def valid_step(self, sample: dict[str, Any], model: Any, criterion: Any, **kwargs: Any) -> Any:
        """Run a validation step, with statistics of `--eval-bleu` and `--eval-chrf`."""
        loss, sample_size, logging_output = super().valid_step(sample, model, criterion, **kwargs)
        if self._scores is not None and "task" in sample:
            inner = unwrapped(model)
            sample = self.for_models(sample, [inner])
            logging_output |= self._scores.counts(
                sample, inner, self._evaluated_split, self.validated_tasks
            )
        return loss, sample_size, logging_output

    def log_figures(self, logging_outputs: list[dict[str, Any]]) -> None:
        super().log_figures(logging_outputs)
        if self._scores is not None:
            self._scores.log(logging_outputs, self.validated_tasks, self.groups())

    def figures(self, meters: Mapping[str, Any], name: str | None) -> dict[str, float]:
        figures = super().figures(meters, name)
        if self._scores is None:
            return figures
        groups = {group.name: group.tasks for group in self.groups()}
        pairs = self.validated_tasks if name is None else groups.get(name, (name,))
        return {**figures, **self._scores.figures(meters, pairs)}

    # ---- generation ----

    def build_generator(self, models: list[Any], args: Any, *others: Any, **kwargs: Any) -> Any:
        """Build the generator, with the repair of `fairseq_searches`.

        fairseq looks for --keep-inference-langtok in the wrong place.
        """
        kept = self.args.keep_inference_langtok
        base: Any = FairseqTask if kept else TranslationMultiSimpleEpochTask
        generator = base.build_generator(self, models, args, *others, **kwargs)
        mend(generator)
        return generator

    def build_bpe(self, args: Any) -> Any:
        """Return fairseq's BPE; by default `fairseq-interactive` uses the data's model."""
        bpe = super().build_bpe(args)
        model = str(model_of_sources(split_paths(self.args.data)[0]))
        # Other commands have loaded a data set.
        if bpe is not None or self.datasets or not os.path.isfile(model):
            return bpe
        logger.info(f"`--bpe` is not given: {model} splits lines into pieces")
        return PiecesOfLines(model)

    def inference_step(
        self, generator: Any, models: list[Any], sample: dict[str, Any], *rest: Any, **more: Any
    ) -> Any:
        """Generate within the target language's part of the vocabulary."""
        _, end = ends_of(self.state.state_dict, self.args.target_lang)
        end = None if isinstance(generator, SequenceScorer) else end  # references may have any word
        with first_words(models, end, padded=True):
            return self._infer(generator, models, sample, *rest, **more)

    def _infer(
        self, generator: Any, models: list[Any], sample: dict[str, Any], *rest: Any, **more: Any
    ) -> Any:
        """Generate; interactive batches get task ids, and empty lines stay empty."""
        if "task_ids" in sample:
            return super().inference_step(
                generator, models, self.for_models(sample, models), *rest, **more
            )
        tokens = sample["net_input"]["src_tokens"]
        sample = {
            **sample,
            "task_ids": tokens.new_full((len(tokens),), self.task_id(self.lang_pairs[0])),
        }
        hypotheses = super().inference_step(
            generator, models, self.for_models(sample, models), *rest, **more
        )
        dictionary = self.source_dictionary
        special = tokens.new_tensor([dictionary.bos(), dictionary.pad(), dictionary.eos()])
        codes = [code for lang in self.langs for code in codes_of(lang, vars(self.args))]
        is_language = torch.isin(
            tokens, tokens.new_tensor([dictionary.index(code) for code in codes])
        )
        has_text = ~(torch.isin(tokens, special) | is_language)
        for row in (~has_text.any(1)).nonzero().flatten().tolist():
            hypothesis = hypotheses[row][0]
            nothing = {
                "tokens": hypothesis["tokens"].new_tensor([self.target_dictionary.eos()]),
                "alignment": [],
            }
            scores = hypothesis["positional_scores"].new_zeros(1)
            hypotheses[row] = [
                {**hypothesis, **nothing, "positional_scores": scores, "score": scores[0]}
            ]
        return hypotheses
