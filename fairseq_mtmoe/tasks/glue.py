"""`--task glue`: language understanding, a benchmark's tasks trained together or some of them.

MT-TaG, §3.3: batches mix examples of several tasks, which share the encoder; each task has its head and its metric.
"""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fairseq.tasks import register_task
from torch import Tensor, nn

from fairseq_mtmoe.backbones.bert import encoder_file
from fairseq_mtmoe.backbones.bert.config import EncoderConfig
from fairseq_mtmoe.backbones.bert.encoder_file import PretrainedEncoder
from fairseq_mtmoe.backbones.bert.model import note_sizes
from fairseq_mtmoe.checkpoints import file_io
from fairseq_mtmoe.criterions.multitask import MultitaskCriterion
from fairseq_mtmoe.data.nlu.cache import tokenized_split
from fairseq_mtmoe.data.nlu.dataset import TaskCollate, TaskDataset
from fairseq_mtmoe.data.nlu.loader import BenchmarkLoader, few_of, shares_of
from fairseq_mtmoe.data.nlu.reading import expect_files
from fairseq_mtmoe.data.nlu.table import Kind, TaskRow, chosen_rows
from fairseq_mtmoe.data.nlu.tokenizer_files import serialized_tokenizer
from fairseq_mtmoe.data.nlu.tokenizing import TextTokenizer, TokenizedSplit
from fairseq_mtmoe.errors import UserError, raise_invalid
from fairseq_mtmoe.protocols import TaskDescription
from fairseq_mtmoe.slots.slot import unwrapped
from fairseq_mtmoe.task_types import TaskType, task_type_of
from fairseq_mtmoe.tasks._benchmark.config import GlueConfig
from fairseq_mtmoe.tasks._benchmark.task import BenchmarkTask
from fairseq_mtmoe.tasks._multitask.initial_checkpoint import check_named_checkpoints, checkpoint_of


@register_task("glue", dataclass=GlueConfig)
class GlueTask(BenchmarkTask):
    """A benchmark. Its tasks are the table's rows of `--glue-tasks`; its groups are Small and All."""

    config = GlueConfig
    named_by, backbone_option = "--glue-tasks", "--init-encoder"

    def __init__(self, args: Namespace) -> None:
        super().__init__(args)
        rows = chosen_rows(self.table, args.glue_tasks.split(","))
        self.task_types: dict[str, TaskType] = {name: task_type_of(row) for name, row in rows.items()}
        self.shares = shares_of(args.train_share, self.table)
        self.set_up_rows(rows, {name: task_type.metrics for name, task_type in self.task_types.items()})
        self.pretrained: PretrainedEncoder | None = None
        self.begins_with_checkpoint = False

    @classmethod
    def setup_task(cls, cfg: Any, **kwargs: Any) -> GlueTask:
        """Called by fairseq.

        Raises:
            UserError: an option is wrong, or a table, the data directory or a package is missing.
        """
        args = cls.plain_options(cfg, sampling_weights=None, virtual_data_size=None)
        args.given_duration = args.heating_epochs is not None or args.heating_updates is not None
        if not args.given_duration:
            args.heating_epochs = args.max_epoch or None
        return cls(args)

    def about_checkpoint(self, cfg: Mapping[str, Any]) -> dict[str, Any]:
        """See `about_encoder`."""
        own = {name: row.max_positions for name, row in self.rows.items() if row.max_positions is not None}
        of_tasks = {"max_positions_of_tasks": own} if own else {}
        return {**about_encoder(cfg), "max_positions": self.args.max_positions, **of_tasks}

    def described(self) -> TaskDescription:
        """What the task asks; see `protocols.DescribesTask`."""
        if len(self.rows) != 1:
            raise_invalid("--glue-tasks", "a single task for a model that borrows from others", ",".join(self.rows))
        ((name, row),) = self.rows.items()
        text = row.prompt or row.description
        return TaskDescription(name, text, self.tokenizer.numbers(text))

    # ---- encoder and heads ----

    def build_model(self, cfg: Any, from_checkpoint: bool = False) -> Any:
        """As fairseq's; a new model begins with the pretrained encoder, and has the heads of the tasks."""
        if not from_checkpoint:
            self.pretrained = encoder_source(self.args)
            self.begins_with_checkpoint = checkpoint_of(self.args) is not None
            self._check_lengths(self.pretrained.config.max_positions)
            self.state.merge_state_dict({TOKENIZER: self.pretrained.tokenizer[SERIALIZED]})
            note_sizes(
                cfg, self.pretrained.config, {name: task_type.head for name, task_type in self.task_types.items()}
            )
        model = super().build_model(cfg, from_checkpoint)
        self.pretrained = None
        return model

    def _check_lengths(self, most: int) -> None:
        rule = f"at most {most}, as in the encoder"
        if self.args.max_positions > most and any(row.max_positions is None for row in self.rows.values()):
            raise_invalid("--max-positions", rule, self.args.max_positions)
        for name, row in self.rows.items():
            if (row.max_positions or 0) > most:
                raise_invalid(f"{name}: max_positions", rule, row.max_positions)

    def build_criterion(self, cfg: Any) -> MultitaskCriterion:
        """As fairseq's.

        Raises:
            UserError: it is another than `multitask`, such as fairseq's default.
        """
        criterion = super().build_criterion(cfg)
        if not isinstance(criterion, MultitaskCriterion):
            raise_invalid("--criterion", "multitask, or pemt for a model that borrows", cfg._name)
        return criterion

    @property
    def tokenizer(self) -> TextTokenizer:
        """The encoder's; known once a model was built, or a checkpoint loaded."""
        return TextTokenizer(getattr(self.state, TOKENIZER), self.args.max_positions)

    def tokenizer_of(self, row: TaskRow) -> TextTokenizer:
        """The encoder's, with the limit on length that a task has."""
        return TextTokenizer(getattr(self.state, TOKENIZER), row.max_positions or self.args.max_positions)

    # ---- data ----

    def load_dataset(self, split: str, epoch: int = 1, combine: bool = False, **kwargs: Any) -> None:
        """Load a split of all tasks.

        Raises:
            UserError: a task has no such data, a file is not what the table says, or the scores of a validation cannot
                be written to `--results-path`.
        """
        self.expect_split(split)
        tokenizer, root = self.tokenizer, Path(self.args.data)
        expect_files(root, self.rows.values(), split)

        def read(name: str, row: TaskRow, key: str) -> TokenizedSplit:
            return tokenized_split(root, name, row, key, self.tokenizer_of(row), self.token_cache)

        loader = BenchmarkLoader(self.rows, split, read, TaskDataset)
        if split == self.args.train_subset:
            loader.keep(self._few_of)
        draws = [self.task_types[task].dropout_draws for task in loader.tasks]
        self.mix(loader, TaskCollate(tokenizer.padding, loader.tasks), epoch, draws)

    def _few_of(self, name: str, split: TokenizedSplit) -> TokenizedSplit:
        """The examples of a task that `--train-share` leaves."""
        share, is_regression = self.shares[name], self.rows[name].kind is Kind.regression
        return few_of(split, share, self.args.train_share_seed, is_regression) if share < 1 else split

    def uncertainties(
        self, sample: dict[str, Any], model: nn.Module, criterion: Any, under_dropout: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        """As each task's type says."""
        ids_E, found = unwrapped(criterion).uncertainties(model, sample, under_dropout)
        return ids_E, found.entropy, found.most

    def about_the_run(self) -> dict[str, Any]:
        """Also which share of the training examples it has; how many they are is said with its sampling."""
        shares = {name: self.shares[name] for name in self.rows if self.shares[name] < 1}
        drawn = {"train_shares": shares, "train_share_seed": self.args.train_share_seed} if shares else {}
        return {**super().about_the_run(), **drawn}

    def for_models(self, sample: dict[str, Any], models: Sequence[Any]) -> dict[str, Any]:
        """The batch with the task id of each row among the models' inputs."""
        if sample:
            rows = len(sample["net_input"]["src_tokens"])
            ids = sample["task_ids"].repeat_interleave(sample["candidates"], output_size=rows)
            sample = {**sample, "task_ids": ids}
        return super().for_models(sample, models)

    # ---- validation ----

    def scored(self, name: str) -> TaskType:
        """See `BenchmarkTask`."""
        return self.task_types[name]

    def valid_step(self, sample: dict[str, Any], model: Any, criterion: Any, **kwargs: Any) -> Any:
        """As fairseq's, with the predictions of the batch's set in the logging output, and the examples they are of."""
        loss, sample_size, logging_output = super().valid_step(sample, model, criterion, **kwargs)
        if sample:
            logging_output = self.with_predictions(logging_output, sample, logging_output.pop("predictions"))
        return loss, sample_size, logging_output


def about_encoder(cfg: Mapping[str, Any]) -> dict[str, Any]:
    """What a checkpoint's options say: sizes of its encoder, what of it is conditional, which tasks trained it."""
    model = cfg["model"]
    encoder = json.loads(model["encoder"])
    return {
        "conditional": model.get("conditional"),
        "encoder": {"layers": encoder["num_hidden_layers"], "width": encoder["hidden_size"]},
        "trained_tasks": list(json.loads(model["heads"])),
    }


TOKENIZER = "tokenizer"  # its name in a checkpoint's state of the task
SERIALIZED = "tokenizer.json"


def encoder_source(args: Namespace) -> PretrainedEncoder:
    """The encoder that a new model is built from; one from a checkpoint has sizes and no weights, which fairseq loads.

    Raises:
        UserError: there is none, or the file is damaged or another.
    """
    if args.init_encoder:
        found = encoder_file.load(args.init_encoder)
        return PretrainedEncoder(found.config, {SERIALIZED: serialized_tokenizer(found.tokenizer)}, found.state)
    path = checkpoint_of(args)
    if path is not None:
        return _of_checkpoint(path)
    check_named_checkpoints(args)
    raise UserError(
        "`--init-encoder` must name a file of `mtmoe import-hf`, or `--finetune-from-model` a checkpoint of "
        "`--task glue`, but both are missing."
    )


def _of_checkpoint(path: str) -> PretrainedEncoder:
    state: dict[str, Any] = file_io.load(path)
    try:
        config = EncoderConfig(**json.loads(state["cfg"]["model"]["encoder"]))
        return PretrainedEncoder(config, {SERIALIZED: state["task_state"][TOKENIZER]}, {})
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"`{path}` must be a checkpoint of `--task glue`, but has no encoder with a tokenizer."
        ) from error
