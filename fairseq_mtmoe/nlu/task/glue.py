"""`--task glue`: a benchmark's tasks in mixed batches (MT-TaG, §3.3).

Each task has a head and a metric.
"""

import json
from argparse import Namespace
from collections.abc import Mapping, Sequence
from typing import Any

from fairseq.tasks import register_task
from torch import Tensor, nn

from fairseq_mtmoe.checkpoints.head_labels import labels_to_text
from fairseq_mtmoe.core.errors import UserError, raise_invalid
from fairseq_mtmoe.nlu.bert.config import EncoderConfig
from fairseq_mtmoe.nlu.bert.model import note_sizes
from fairseq_mtmoe.nlu.bert.pretrained import PretrainedEncoder, load
from fairseq_mtmoe.nlu.criterion import MultitaskCriterion
from fairseq_mtmoe.nlu.data.cache import tokenized_split
from fairseq_mtmoe.nlu.data.dataset import TaskCollate, TaskDataset
from fairseq_mtmoe.nlu.data.loader import few_of, shares_of
from fairseq_mtmoe.nlu.data.table import Kind, TaskRow, chosen_rows
from fairseq_mtmoe.nlu.data.tokenizer_files import serialized_tokenizer
from fairseq_mtmoe.nlu.data.tokenizing import TextTokenizer, TokenizedSplit
from fairseq_mtmoe.nlu.task.config import GlueConfig
from fairseq_mtmoe.nlu.task.task import BenchmarkTask
from fairseq_mtmoe.nlu.types import labels_of_outputs, task_type_of
from fairseq_mtmoe.nlu.types.task_type import TaskType
from fairseq_mtmoe.slots.slot import unwrapped

TOKENIZER = "tokenizer"  # its key in a checkpoint's state of the task
SERIALIZED = "tokenizer.json"


@register_task("glue", dataclass=GlueConfig)
class GlueTask(BenchmarkTask):
    """A benchmark of the rows of `--glue-tasks`, with the groups Small and All."""

    config = GlueConfig
    name_of_task = "glue"
    named_by = "--glue-tasks"
    backbone_option = "--init-encoder"
    backbone = "encoder with a tokenizer"
    load_split, dataset_of = staticmethod(tokenized_split), TaskDataset

    def __init__(self, args: Namespace) -> None:
        super().__init__(args)
        rows = chosen_rows(self.table, args.glue_tasks.split(","))
        self.task_types: dict[str, TaskType] = {
            name: task_type_of(row) for name, row in rows.items()
        }
        self.head_labels = {name: labels_of_outputs(row) for name, row in rows.items()}
        self.shares = shares_of(args.train_share, self.table)
        self.set_up_rows(rows, lambda row: task_type_of(row).metrics)

    def about_checkpoint(self, cfg: Mapping[str, Any]) -> dict[str, Any]:
        """Return the encoder's fields and the maximum lengths, in tokens."""
        about = {**about_encoder(cfg), "max_positions": self.args.max_positions}
        lengths = {name: row.max_positions for name, row in self.rows.items() if row.max_positions}
        if lengths:
            about["max_positions_of_tasks"] = lengths
        return about

    def load_backbone(self, path: str) -> PretrainedEncoder:
        """Return the encoder in a file, with its tokenizer."""
        encoder = load(path)
        return PretrainedEncoder(
            encoder.config, {SERIALIZED: serialized_tokenizer(encoder.tokenizer)}, encoder.state
        )

    def backbone_of(self, state: Mapping[str, Any]) -> PretrainedEncoder:
        """Return a checkpoint's encoder: sizes and tokenizer, without weights."""
        config = EncoderConfig(**json.loads(state["cfg"]["model"]["encoder"]))
        return PretrainedEncoder(config, {SERIALIZED: state["task_state"][TOKENIZER]}, {})

    def note_backbone(self, cfg: Any) -> None:
        """Store sizes, heads and tokenizer (UserError: sequences are too long)."""
        encoder = self.pretrained
        for name, row in self.rows.items():
            length = row.max_positions or self.args.max_positions
            if length > encoder.config.max_positions:
                where = f"{name}: max_positions" if row.max_positions else "--max-positions"
                rule = f"at most {encoder.config.max_positions}, as in the encoder"
                raise_invalid(where, rule, length)
        self.state.merge_state_dict({TOKENIZER: encoder.tokenizer[SERIALIZED]})
        note_sizes(
            cfg,
            encoder.config,
            {name: task_type.head for name, task_type in self.task_types.items()},
        )
        cfg.head_labels = labels_to_text(self.head_labels)

    def build_criterion(self, cfg: Any) -> MultitaskCriterion:
        """Build the criterion (UserError: neither multitask nor pemt)."""
        criterion = super().build_criterion(cfg)
        if not isinstance(criterion, MultitaskCriterion):
            raise_invalid("--criterion", "multitask, or pemt with a PEMT model", cfg._name)
        return criterion

    @property
    def tokenizer(self) -> TextTokenizer:
        """The encoder's tokenizer, once a model was built or a checkpoint loaded."""
        return TextTokenizer(getattr(self.state, TOKENIZER), self.args.max_positions)

    def tokenizer_of(self, row: TaskRow) -> TextTokenizer:
        """Return the encoder's tokenizer with the maximum length of a task."""
        return TextTokenizer(
            getattr(self.state, TOKENIZER), row.max_positions or self.args.max_positions
        )

    def token_ids(self, text: str) -> list[int]:
        """Return the token ids of a text, without an end token."""
        return self.tokenizer.token_ids(text)

    def few_of(self, name: str, split: TokenizedSplit) -> TokenizedSplit:
        """Return a task's examples, or the share of them in `--train-share`."""
        share = self.shares[name]
        if share == 1:
            return split
        is_regression = self.rows[name].kind is Kind.regression
        return few_of(split, share, self.args.train_share_seed, is_regression)

    def collate_of(self, tasks: Sequence[str]) -> TaskCollate:
        """Return the collate function of sets of these tasks."""
        return TaskCollate(self.tokenizer.padding, tasks)

    def dropout_draws(self, tasks: Sequence[str]) -> list[int]:
        """Return the number of outputs under dropout for each task's uncertainty."""
        return [self.task_types[task].dropout_draws for task in tasks]

    def uncertainties(
        self, sample: dict[str, Any], model: nn.Module, criterion: Any, under_dropout: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return examples' ids, entropies and maximal entropies, (E,) each."""
        ids_E, uncertainty = unwrapped(criterion).uncertainties(model, sample, under_dropout)
        return ids_E, uncertainty.entropy, uncertainty.most

    def about_the_run(self) -> dict[str, Any]:
        """Return the run log's fields, with the fraction of each task's examples."""
        about = super().about_the_run()
        shares = {name: self.shares[name] for name in self.rows if self.shares[name] < 1}
        if shares:
            about |= {"train_shares": shares, "train_share_seed": self.args.train_share_seed}
        return about

    def for_models(self, sample: dict[str, Any], models: Sequence[Any]) -> dict[str, Any]:
        """Return the batch with each row's task id among the models' inputs."""
        if sample:
            rows = len(sample["net_input"]["src_tokens"])
            ids = sample["task_ids"].repeat_interleave(sample["candidates"], output_size=rows)
            sample = {**sample, "task_ids": ids}
        return super().for_models(sample, models)

    def scored(self, row: TaskRow) -> TaskType:
        """Return the type of a task."""
        return task_type_of(row)

    def shape_of(self, row: TaskRow) -> object:
        """Return the size of a task's head."""
        return task_type_of(row).head

    def head_shapes(self, model: Any) -> Mapping[str, object]:
        """Return the sizes of the model's heads by task."""
        return {task: head.size for task, head in model.heads.items()}

    def predicted(self, model: Any, sample: dict[str, Any], row: TaskRow, head: str) -> Tensor:
        """Return the predictions by a head, (E, …), with its labels in the task's order."""
        logits = model(**sample["net_input"])[head]
        if not logits.isfinite().all():
            raise UserError(f"The head of {head} returns logits that are not finite.")
        labels = labels_of_outputs(row)
        head_labels = labels_of_outputs(self.table[head])
        if labels != head_labels and sorted(labels) == sorted(head_labels):
            logits = logits[..., list(map(head_labels.index, labels))]
        return task_type_of(row).predictions(logits)

    def predictions(
        self, model: Any, sample: dict[str, Any], logging_output: dict[str, Any]
    ) -> Tensor:
        """Return the predictions, (E, …), which the criterion has computed."""
        predictions: Tensor = logging_output.pop("predictions")
        return predictions


def about_encoder(cfg: Mapping[str, Any]) -> dict[str, Any]:
    """Return an encoder's sizes, conditional parts and trained tasks from its options."""
    model = cfg["model"]
    encoder = json.loads(model["encoder"])
    return {
        "conditional": model.get("conditional"),
        "encoder": {"layers": encoder["num_hidden_layers"], "width": encoder["hidden_size"]},
        "trained_tasks": list(json.loads(model["heads"])),
    }
