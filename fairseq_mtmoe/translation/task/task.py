"""`--task translation_heated`: many-language translation with heated sampling.

The task has all options of fairseq's `translation_multi_simple_epoch`. It adds heated sampling
("Tricks for Training Sparse Translation Models", §2.2), a task id for each sentence, correct
language ids in mixed batches, a loss for each language pair, and exact resumption.
"""

from __future__ import annotations

import functools
import logging
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
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
from fairseq_mtmoe.core.tiers import TIERS, load_tiers
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
from fairseq_mtmoe.translation.decode.fairseq_searches import repair_ngram_blocker
from fairseq_mtmoe.translation.decode.limited_vocabulary import limited_vocabulary
from fairseq_mtmoe.translation.task import options
from fairseq_mtmoe.translation.task.config import TranslationHeatedConfig
from fairseq_mtmoe.translation.task.initial import InitialModel, check_places, expect_sizes, load
from fairseq_mtmoe.translation.task.new_embeddings import NewEmbeddings
from fairseq_mtmoe.translation.task.options import check_decoding
from fairseq_mtmoe.translation.task.scoring import ValidationScores, check_best_metric
from fairseq_mtmoe.translation.task.targets import check_targets

logger = logging.getLogger(__name__)


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
        # The context of an optimizer step
        self._step_context: Callable[[], AbstractContextManager[None]] = nullcontext
        if training:
            self.state.merge_state_dict(options.saved_settings(args))

    @property
    def _folder(self) -> str:
        """The first data directory."""
        folder: str = split_paths(self.args.data)[0]
        return folder

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
        initial = None
        forms: Mapping[str, Any] = {}
        if cfg.init_model and options.is_training(cfg):
            initial = load(cfg.init_model)
            forms = initial.forms
        args = options.arguments(cfg, forms, has_data=vocabulary is None)
        if vocabulary is not None:
            args.source_dict, args.target_dict = "source", "target"
            args.fixed_dictionary = None
        sizes: dict[int, int] = {}
        dictionary_of = functools.cache(Side.dictionary)  # a joined dictionary is large

        def load_dictionary(path: str) -> Any:
            if vocabulary is None:
                dictionary = cls.load_dictionary(path)
            else:
                dictionary = dictionary_of(getattr(vocabulary, path))
            sizes.setdefault(id(dictionary), len(dictionary))
            return dictionary

        langs, dicts, training = DataManager.prepare(load_dictionary, args)
        for dictionary in dicts.values():
            options.check_language_tokens(args, dictionary)
        task = cls(args, langs, dicts, training)
        task.dictionary_sizes = sizes
        if initial is not None:
            initial.check(task.source_dictionary, task.target_dictionary, task._folder)
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
        return Vocabulary.of_data(self._folder, *symbols)

    def _piece_sampling(self) -> PieceSampling:
        vocabulary = self._vocabulary_of_data()
        if vocabulary is None:
            raise UserError(
                f"`--sample-pieces` requires a data directory with {SENTENCEPIECE}, which "
                f"{self._folder} lacks."
            )
        return sampling_of(
            self.args, vocabulary, self.source_dictionary, self.target_dictionary, self._folder
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
            langs = [lang for lang in self.langs if lang not in unknown]
            raise options.unknown_in_pair(unknown[0], self.lang_pairs[0], langs)
        if self.initial is not None and not from_checkpoint:
            self.initial.note_sizes(cfg)
        if self.training and not from_checkpoint:
            self._take_over_tasks()
        model = super().build_model(cfg, from_checkpoint)
        if from_checkpoint or not self.training:
            return model
        check_targets(self.args, self.task_id, model)
        settings: Mapping[str, Any] = {}
        if self.initial is not None:
            settings = self.initial.settings
            if self.checkpoint_to_go_on_from() is None:
                begin_with(model, self.initial.weights)
        if self.args.train_only:
            self._step_context = NewEmbeddings(model, options.new_symbols(settings)).old_rows_kept
        return model

    def _take_over_tasks(self) -> None:
        """Take the tasks of the checkpoint to go on from, if it has all of this run's.

        It may come from a run with more pairs, or from a version with a task for each language.
        """
        before = self.options_to_go_on_with().get("task_names")
        if before and set(self.task_names) <= set(before.split(",")):
            self.task_names = before.split(",")

    def optimizer_step(self, optimizer: Any, model: Any, update_num: int) -> None:
        """Take an optimizer step; `--train-only` keeps the embeddings of old symbols."""
        with self._step_context():
            super().optimizer_step(optimizer, model, update_num)

    # ---- tasks and data ----

    def task_id(self, pair: str) -> int:
        """Return a language pair's task id (UserError: the model was not trained with it)."""
        source = pair.split("-")[0]
        target = pair.split("-")[-1]
        kind = self.args.task_ids
        if kind not in options.TASK_IDS:
            kind = "target"
        name = {
            "source": source,
            "target": options.task_of_language(self.args.task_ids, target),
            "pair": pair,
        }[kind]
        if name not in self.task_names:
            known = shortened(self.task_names, name)
            kinds = "pairs" if kind == "pair" else f"{kind} languages"
            raise UserError(f"`{pair}` must have one of the model's {kinds} ({known}).")
        return self.task_names.index(name)

    def for_models(self, sample: dict[str, Any], models: Sequence[Any]) -> dict[str, Any]:
        """Return the batch with the task and language ids that the models accept."""
        sample = super().for_models(sample, models)
        if sample and not all(takes(model, "src_lang_id") for model in models):
            sample["net_input"].pop("src_lang_id", None)
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
            alter = None
            if self.args.sample_pieces:
                alter = self._piece_sampling()
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
        saved = state.get("task_state") or {}
        before = saved.get("lang_pairs")
        now = options.all_pairs(self.args)
        if goes_on and before and not (set(before) <= set(now) or set(now) <= set(before)):
            self.refuse_other_tasks("--lang-pairs", path, before, now, ", with more or fewer pairs")
        self.check_vocabulary(saved, path)
        check_places(path, state, self.langs, self.task_names, goes_on)
        options.warn_of_changes(self.args, saved)
        self._keep(saved)

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

    # ---- PEMT ----

    def described(self) -> TaskDescription:
        """Return the description of the single language pair (UserError: several)."""
        pairs = options.all_pairs(self.args)
        if len(pairs) != 1:
            rule = "a single pair with PEMT"
            raise_invalid("--lang-pairs", rule, ",".join(pairs))
        text = self.args.description or description_of_pair(pairs[0])
        tokens = description_tokens(text, self.source_dictionary, self._folder)
        dictionary = self.source_dictionary
        language_symbols = len(dictionary) - self.dictionary_sizes[id(dictionary)]
        return TaskDescription(pairs[0], text, tokens, language_symbols=language_symbols)

    # ---- the run log ----

    def about_the_run(self) -> dict[str, Any]:
        """Return the facts of the run log's first event, with tiers and synthetic data."""
        shares = synthetic_shares(self._folder)
        about: dict[str, Any] = {
            "tiers": self.pair_tiers,
            **super().about_the_run(),
            "task_ids": self.args.task_ids,
        }
        if shares:
            about["synthetic"] = shares
        return about

    def shown_name(self, key: str) -> str:
        """Return a pair's name without fairseq's prefix `main:`."""
        return key.removeprefix("main:")

    @property
    def validated_tasks(self) -> list[str]:
        """Return the language pairs."""
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
        return load_tiers(self._folder, sizes)

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
        """Log what all tasks log, and scores of translations."""
        super().log_figures(logging_outputs)
        if self._scores is not None:
            self._scores.log(logging_outputs, self.validated_tasks, self.groups())

    def figures(self, meters: Mapping[str, Any], name: str | None) -> dict[str, float]:
        """Return the figures of all pairs, of a tier or of a pair, with their scores."""
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
        repair_ngram_blocker(generator)
        return generator

    def build_bpe(self, args: Any) -> Any:
        """Return fairseq's BPE; by default `fairseq-interactive` uses the data's model."""
        bpe = super().build_bpe(args)
        model = model_of_sources(self._folder)
        # Other commands have loaded a data set.
        if bpe is not None or self.datasets or not model.is_file():
            return bpe
        logger.info(f"`--bpe` is not given: {model} splits lines into pieces")
        return PiecesOfLines(str(model))

    def inference_step(
        self, generator: Any, models: list[Any], sample: dict[str, Any], *rest: Any, **more: Any
    ) -> Any:
        """Generate within the target language's part of the vocabulary.

        Interactive batches get task ids, and empty lines stay empty.
        """
        _, end = ends_of(self.state.state_dict, self.args.target_lang)
        if isinstance(generator, SequenceScorer):  # references may have any word
            end = None
        tokens = sample["net_input"]["src_tokens"]
        is_interactive = "task_ids" not in sample
        if is_interactive:
            task_ids = tokens.new_full((len(tokens),), self.task_id(self.lang_pairs[0]))
            sample = {**sample, "task_ids": task_ids}
        sample = self.for_models(sample, models)
        with limited_vocabulary(models, end, padded=True):
            hypotheses = super().inference_step(generator, models, sample, *rest, **more)
        if is_interactive:
            for row in self._rows_without_text(tokens):
                hypothesis = hypotheses[row][0]
                end_of_text = hypothesis["tokens"].new_tensor([self.target_dictionary.eos()])
                scores = hypothesis["positional_scores"].new_zeros(1)
                nothing = {"tokens": end_of_text, "alignment": [], "score": scores[0]}
                hypotheses[row] = [{**hypothesis, **nothing, "positional_scores": scores}]
        return hypotheses

    def _rows_without_text(self, tokens: Tensor) -> list[int]:
        dictionary = self.source_dictionary
        without_text = [dictionary.bos(), dictionary.pad(), dictionary.eos()]
        for lang in self.langs:
            without_text += map(dictionary.index, codes_of(lang, vars(self.args)))
        is_empty = torch.isin(tokens, tokens.new_tensor(without_text)).all(1)
        rows: list[int] = is_empty.nonzero().flatten().tolist()
        return rows
