"""`--task translation_heated`: many-language translation with temperature heating and a task id for every sentence.

fairseq's `translation_multi_simple_epoch` with its options, and "Tricks for Training Sparse Translation Models" §2.2,
heated sampling; what it lacked: right ids in mixed batches, a loss for each language pair, exact resumption.
"""

import logging
from argparse import Namespace
from typing import Any, Dict, List, Optional

from fairseq.data.multilingual.multilingual_data_manager import MultilingualDatasetManager
from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.tasks import FairseqTask, register_task
from fairseq.tasks.translation_multi_simple_epoch import TranslationMultiSimpleEpochTask
from fairseq.utils import split_paths
from omegaconf import open_dict

from fairseq_mtmoe.data.epochs import SharedEpochIterator
from fairseq_mtmoe.data.mixtures.evaluation import EvaluationPairs
from fairseq_mtmoe.data.mixtures.training import TrainingPairs
from fairseq_mtmoe.data.translation.pairs import PairLoader, training_sizes
from fairseq_mtmoe.data.translation.tiers import TIERS, load_tiers
from fairseq_mtmoe.errors import UserError, must_be
from fairseq_mtmoe.slots.model_inputs import takes
from fairseq_mtmoe.tasks._multitask.group_metrics import add_pair_sums, group_values, log_groups
from fairseq_mtmoe.tasks._multitask.run_log import Journal, Stopwatch, start_counting, stop_counting
from fairseq_mtmoe.tasks._multitask.sampling import announce, plan_of
from fairseq_mtmoe.tasks.translation.config import TranslationHeatedConfig
from fairseq_mtmoe.tasks.translation.options import all_pairs, arguments, check_language_tokens, found_languages
from fairseq_mtmoe.tasks.translation.saved_settings import recall, relabel, remembered, warn_of_changes

logger = logging.getLogger(__name__)


@register_task("translation_heated", dataclass=TranslationHeatedConfig)
class TranslationHeatedTask(TranslationMultiSimpleEpochTask):
    """Translation between many languages.

    `task_names` are what the `task_ids` of a batch index: the languages of `--langs`, or the pairs with
    `--task-ids pair`. A model that takes task ids keeps the names of its training, and generation follows them.
    """

    def __init__(self, args: Namespace, langs: List[str], dicts: Dict[str, Any], training: bool) -> None:
        super().__init__(args, langs, dicts, training)
        self.task_names = all_pairs(args) if args.task_ids == "pair" else list(langs)
        self.dictionary_sizes: Dict[int, int] = {}
        self.journal = Journal(args.save_dir)
        self.stopwatch = Stopwatch()
        self._model_names: Optional[List[str]] = None
        self._model_langs: Optional[List[str]] = None
        self._evaluated_split = ""
        self._epoch = 1
        self._pair_tiers: Optional[Dict[str, str]] = None
        self.num_updates = 0  # our trainer says it before each epoch
        if training:
            self.state.merge_state_dict(remembered(args))

    # ---- options and dictionaries ----

    @classmethod
    def add_args(cls, parser: Any) -> None:
        """Add the options of the configuration to fairseq's command line."""
        gen_parser_from_dataclass(parser, TranslationHeatedConfig())

    @classmethod
    def setup_task(cls, cfg: Any, **kwargs: Any) -> "TranslationHeatedTask":
        """Called by fairseq.

        Raises:
            UserError: an option is wrong; see `arguments`.
        """
        args = arguments(cfg)
        sizes: Dict[int, int] = {}

        def load_dictionary(path: str) -> Any:
            dictionary = cls.load_dictionary(path)
            sizes[id(dictionary)] = len(dictionary)
            return dictionary

        langs, dicts, training = MultilingualDatasetManager.prepare(load_dictionary, args)
        for dictionary in dicts.values():
            check_language_tokens(args, dictionary)
        task = cls(args, langs, dicts, training)
        task.dictionary_sizes = sizes
        return task

    def check_dicts(self, dicts: Dict[str, Any], source_langs: List[str], target_langs: List[str]) -> None:
        """As fairseq's, which asserts: all source languages share a dictionary, and all target languages do."""
        for option, langs in (("source_dict", source_langs), ("target_dict", target_langs)):
            if getattr(self.args, option) is None:
                for lang in langs:
                    if dicts[lang] != dicts[langs[0]]:
                        raise UserError(
                            f"dict.{lang}.txt and dict.{langs[0]}.txt must be the same dictionary, but differ; "
                            "preprocess all languages with one joined dictionary."
                        )

    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        """Called by fairseq before it builds a checkpoint's model; generation takes over what training remembered.

        A run that trains on has options of its own, and its checkpoints remember these.

        Raises:
            UserError: the model was not trained with the languages of `--source-lang` and `--target-lang`, or not with
                those of the other models of an ensemble.
        """
        super().load_state_dict(state_dict)
        if self.training:
            warn_of_changes(self.args, state_dict)
            self.state.merge_state_dict(remembered(self.args))
            return
        langs = state_dict.get("langs")
        if self._model_langs and langs and langs != self._model_langs:
            raise UserError(
                f"The models of an ensemble must have the same languages in the same order, but one has "
                f"{', '.join(self._model_langs)} and another {', '.join(langs)}."
            )
        self._model_langs = langs or self._model_langs
        if not recall(self.args, state_dict):
            return
        for name in ("source_lang", "target_lang"):
            lang, known = getattr(self.args, name), self.args.langs
            if lang not in known:
                must_be(f"--{name.replace('_', '-')}", f"one of the model's languages {', '.join(known)}", lang)
        for dictionary in {id(d): d for d in self.dicts.values()}.values():
            relabel(dictionary, self.dictionary_sizes[id(dictionary)], self.args)
        self.langs = self.data_manager.langs = self.args.langs
        self.data_manager.lang_dict = self.data_manager.create_lang_dictionary(self.langs)

    # ---- task ids ----

    def build_model(self, cfg: Any, from_checkpoint: bool = False) -> Any:
        """As fairseq's; a new model that tells tasks apart learns their names, a trained one says which it knows."""
        if not from_checkpoint and not isinstance(cfg, Namespace) and "task_names" in cfg:
            with open_dict(cfg):
                cfg.task_names = ",".join(self.task_names)
        model = super().build_model(cfg, from_checkpoint)
        names = getattr(model, "task_names", None)
        if from_checkpoint and names:
            if self._model_names not in (None, names):
                raise UserError(
                    f"The models of an ensemble must tell the same tasks apart, but one knows "
                    f"{', '.join(self._model_names or ())} and another {', '.join(names)}."
                )
            self.task_names = self._model_names = list(names)
        return model

    def task_id(self, pair: str) -> int:
        """The task id of a language pair's sentences.

        Raises:
            UserError: the model was not trained with this language (or pair).
        """
        source, target = pair.split("-")[0], pair.split("-")[-1]
        name = {"source": source, "target": target, "pair": pair}[self.args.task_ids]
        if name not in self.task_names:
            known = ", ".join(self.task_names)
            must_be(f"the {self.args.task_ids} of {pair}", f"one of the model's tasks {known}", name)
        return self.task_names.index(name)

    def _for_model(self, sample: Dict[str, Any], models: List[Any]) -> Dict[str, Any]:
        """The batch with the ids among the model's inputs that the model takes."""
        if not sample:
            return sample
        net_input = dict(sample["net_input"])
        if all(getattr(model, "accepts_task_ids", False) for model in models):
            net_input["task_ids"] = sample["task_ids"]
        if "src_lang_id" in net_input and not all(takes(model, "src_lang_id") for model in models):
            del net_input["src_lang_id"]
        return {**sample, "net_input": net_input}

    # ---- data ----

    def has_sharded_data(self, split: str) -> bool:
        """False: the training data changes its shards itself, so fairseq need not load it again."""
        return False

    def load_dataset(self, split: str, epoch: int = 1, combine: bool = False, **kwargs: Any) -> None:
        """Load a split.

        Raises:
            UserError: a pair has no data, or a file is empty or truncated.
        """
        loader = PairLoader(self.data_manager, split, combine)
        tasks = [self.task_id(pair.name) for pair in loader.pairs]
        if self.training and split == self.args.train_subset:
            one_collater = self.data_manager._shared_collater()
            self.datasets[split] = TrainingPairs(
                loader, plan_of(self.args, loader), tasks, one_collater, epoch, self.num_updates
            )
        else:
            names = [pair.name for pair in loader.pairs]
            self.datasets[split] = EvaluationPairs(names, loader.load(), tasks)

    def get_batch_iterator(self, dataset: Any, *args: Any, **kwargs: Any) -> Any:
        """As fairseq's. Training batches are made anew for each epoch's sentences; others are kept."""
        if isinstance(dataset, TrainingPairs):
            return self._training_iterator(dataset, *args, **kwargs)
        loaded = [split for split, other in self.datasets.items() if other is dataset]
        self._evaluated_split = loaded[0] if loaded else ""
        if not loaded:  # interactive: one data set for each group of lines
            kwargs["disable_iterator_cache"] = True
        return FairseqTask.get_batch_iterator(self, dataset, *args, **kwargs)

    def _training_iterator(
        self,
        dataset: TrainingPairs,
        max_tokens: Optional[int] = None,
        max_sentences: Optional[int] = None,
        max_positions: Any = None,
        ignore_invalid_inputs: bool = False,
        required_batch_size_multiple: int = 1,
        seed: int = 1,
        num_shards: int = 1,
        shard_id: int = 0,
        num_workers: int = 0,
        epoch: int = 1,
        data_buffer_size: int = 0,
        disable_iterator_cache: bool = False,
        skip_remainder_batch: bool = False,
        grouped_shuffling: bool = False,
        update_epoch_batch_itr: bool = False,
    ) -> SharedEpochIterator:
        dataset.updates = self.num_updates

        def make_batches(dataset: TrainingPairs, epoch: int) -> List[Any]:
            dataset.set_epoch(epoch)
            order = dataset.order(max_positions)
            # It says which sentences are left out, or refuses them.
            self.filter_indices_by_size(order.too_long, dataset, max_positions, ignore_invalid_inputs)
            return dataset.batches(order, max_tokens, max_sentences, required_batch_size_multiple)

        return SharedEpochIterator(
            update_freq=self.args.update_freq,
            dataset=dataset,
            collate_fn=dataset.collater,
            batch_sampler=make_batches,
            seed=seed,
            num_shards=num_shards,
            shard_id=shard_id,
            num_workers=num_workers,
            epoch=epoch,
            buffer_size=data_buffer_size,
            skip_remainder_batch=skip_remainder_batch,
            grouped_shuffling=grouped_shuffling,
        )

    # ---- training ----

    def begin_epoch(self, epoch: int, model: Any) -> None:
        """Called by fairseq before it trains; says how the epoch's sentences are sampled, or why they cannot be."""
        if not self.training:
            raise UserError("`--source-lang` and `--target-lang` are for generation: train with `--lang-pairs`.")
        run = {
            "tiers": self.pair_tiers(),
            "task_names": self.task_names,
            "task_ids": self.args.task_ids,
            "seed": self.args.seed,
        }
        announce(self.journal, self.datasets[self.args.train_subset], epoch, run)

    def train_step(
        self,
        sample: Dict[str, Any],
        model: Any,
        criterion: Any,
        optimizer: Any,
        update_num: int,
        ignore_grad: bool = False,
        **kwargs: Any,
    ) -> Any:
        """As fairseq's; the clock of the run log runs."""
        if not self.stopwatch.is_running:
            stop_counting(model)
            self.stopwatch.start()
        sample = self._for_model(sample, [model])
        return super().train_step(sample, model, criterion, optimizer, update_num, ignore_grad, **kwargs)

    def sparsified(self, update: int, num_experts: int) -> None:
        """Called by our trainer when the model got its experts."""
        self.journal.write("sparsified", update=update, num_experts=num_experts)

    def expert_comm(self, **fields: Any) -> None:
        """Called by our trainer before a validation: what the expert layers sent to other processes since the last."""
        self.journal.write("expert_comm", **fields)

    def get_checkpoint_dict(self) -> Dict[str, Any]:
        """Called by fairseq when it saves: the time spent so far."""
        return {type(self).__name__: {"training_seconds": self.stopwatch.seconds}}

    def set_checkpoint_dict(self, state: Dict[str, Any]) -> None:
        """Called by fairseq when it resumes."""
        self.stopwatch.seconds = state["training_seconds"]

    # ---- validation ----

    def begin_valid_epoch(self, epoch: int, model: Any) -> None:
        """Called by fairseq before a validation."""
        self._epoch = epoch
        self.stopwatch.stop()
        start_counting(model)

    def valid_step(self, sample: Dict[str, Any], model: Any, criterion: Any, **kwargs: Any) -> Any:
        """As fairseq's, with the sums of the batch's language pair in the logging output."""
        if not sample:  # `fairseq-validate` in several processes, when one of them is out of batches
            return 0.0, 0, {}
        sample = self._for_model(sample, [model])
        loss, sample_size, logging_output = super().valid_step(sample, model, criterion, **kwargs)
        if "pair" in sample:
            add_pair_sums(logging_output, sample["pair"], self.lang_pairs)
        return loss, sample_size, logging_output

    def reduce_metrics(self, logging_outputs: List[Dict[str, Any]], criterion: Any) -> None:
        """As fairseq's, with loss and perplexity of each pair and each tier in a validation."""
        super().reduce_metrics(logging_outputs, criterion)
        if any(f"{self.lang_pairs[0]}_loss" in log for log in logging_outputs):
            log_groups(logging_outputs, {pair: [pair] for pair in self.lang_pairs})
            log_groups(logging_outputs, self._tier_pairs())

    def post_validate(self, model: Any, stats: Dict[str, Any], meters: Any) -> None:
        """Called by fairseq after the validation of each subset; writes it to the run log."""
        place = {"epoch": self._epoch, "update": stats["num_updates"], "subset": self._evaluated_split}
        minutes = self.stopwatch.seconds / 60
        groups = {
            kind: {name: group_values(meters, f"{name}_") for name in names if f"{name}_loss" in meters}
            for kind, names in (("pairs", self.lang_pairs), ("tiers", TIERS))
        }
        self.journal.write("valid", **place, minutes=minutes, **groups, all=group_values(meters, ""))
        layers = stop_counting(model)
        if layers:
            self.journal.write("experts", **place, task_names=self.task_names, layers=layers)
        start_counting(model)

    def pair_tiers(self) -> Dict[str, str]:
        """The tier of each language pair, where the data tells it."""
        if self._pair_tiers is None:
            sizes = {**dict.fromkeys(self.lang_pairs, 0), **training_sizes(self.data_manager)}
            folder = split_paths(self.args.data)[0]
            self._pair_tiers = load_tiers(folder, sizes, found_languages(folder))
        return self._pair_tiers

    def _tier_pairs(self) -> Dict[str, List[str]]:
        tiers = self.pair_tiers()
        pairs = {tier: [pair for pair in self.lang_pairs if tiers.get(pair) == tier] for tier in TIERS}
        return {tier: members for tier, members in pairs.items() if members}

    # ---- generation ----

    def build_generator(self, models: List[Any], args: Any, *others: Any, **kwargs: Any) -> Any:
        """As fairseq's, which looks for --keep-inference-langtok in the wrong place."""
        if self.args.keep_inference_langtok:
            return FairseqTask.build_generator(self, models, args, *others, **kwargs)
        return super().build_generator(models, args, *others, **kwargs)

    def inference_step(
        self,
        generator: Any,
        models: List[Any],
        sample: Dict[str, Any],
        prefix_tokens: Any = None,
        constraints: Any = None,
    ) -> Any:
        """As fairseq's; interactive batches, which fairseq makes without us, get their task ids here."""
        if "task_ids" not in sample:
            tokens = sample["net_input"]["src_tokens"]
            task_ids = tokens.new_full((len(tokens),), self.task_id(self.lang_pairs[0]))
            sample = {**sample, "task_ids": task_ids}
        return super().inference_step(generator, models, self._for_model(sample, models), prefix_tokens, constraints)
