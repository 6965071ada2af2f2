"""`--task text_to_text`: a task of the table that is asked in text and answered in text, as T5 is trained.

PEMT, §3.1: every task is text to text in T5's form. One row of the table is trained in a run: as a source, whose
adapters others borrow, or as a target. What is to be learned is a batch of fairseq's form of translation.
"""

from __future__ import annotations

import json
import math
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fairseq.data import Dictionary
from fairseq.tasks import register_task
from torch import Tensor, nn

from fairseq_mtmoe.backbones.t5.model import T5Model, note_sizes
from fairseq_mtmoe.backbones.t5.model_file import PretrainedT5
from fairseq_mtmoe.data.nlu.loader import BenchmarkLoader, drawn_examples
from fairseq_mtmoe.data.nlu.table import Kind, TaskRow
from fairseq_mtmoe.data.nlu.text_split import Pieces, TextCollate, TextDataset, TextSplit, TextTokenizer, text_split
from fairseq_mtmoe.errors import UserError, raise_invalid
from fairseq_mtmoe.protocols import TaskDescription
from fairseq_mtmoe.slots.slot import unwrapped
from fairseq_mtmoe.task_types.text import NO_LABEL, TextTaskType, has_labels, metrics_of_text
from fairseq_mtmoe.tasks._benchmark.config import TextToTextConfig
from fairseq_mtmoe.tasks._benchmark.task import BenchmarkTask
from fairseq_mtmoe.tasks._multitask.groups import Group, log_groups
from fairseq_mtmoe.tasks._multitask.initial_checkpoint import checkpoint_of
from fairseq_mtmoe.tasks.text_to_text.t5_source import (
    PIECES,
    as_tensor,
    begun_dictionary,
    fill_dictionary,
    of_tensor,
    t5_source,
)

OPTIONS = ("source_task", "target_task")
# Of a mixture of one, in which there is nothing to sample.
OF_ONE_TASK = {
    "sampling_method": "concat",
    "sampling_temperature": 1.0,
    "heating_coefficient": 0.0,
    "heating_epochs": None,
    "heating_updates": None,
    "natural_from_epoch": None,
    "sampling_weights": None,
    "virtual_data_size": None,
    "given_duration": False,
}


@register_task("text_to_text", dataclass=TextToTextConfig)
class TextToTextTask(BenchmarkTask):
    """One task of the table.

    Attributes:
        name: of the task.
        row: of the task.
        is_source: whether later tasks are to borrow from it.
        pretrained: the T5 that a new model begins with; None where a checkpoint's weights follow.
        begins_with_checkpoint: a new model gets a checkpoint's weights, too, before it is trained.
    """

    config = TextToTextConfig
    named_by, backbone_option = "--source-task or --target-task", "--init-model"

    def __init__(self, args: Namespace) -> None:
        super().__init__(args)
        self.name, self.row = _chosen_row(self.table, args)
        self.is_source = args.source_task is not None
        for option in ("max_source_positions", "max_target_positions"):
            if getattr(args, option) < 2:
                raise_invalid(f"--{option.replace('_', '-')}", "at least 2, a token and an end", getattr(args, option))
        if args.train_examples is not None and args.train_examples < 1:
            raise_invalid("--train-examples", "at least 1", args.train_examples)
        self.set_up_rows({self.name: self.row}, {self.name: metrics_of_text(self.row)})
        self._pieces: Pieces | None = None
        self._task_type: TextTaskType | None = None
        self.dictionary = begun_dictionary()
        self.pretrained: PretrainedT5 | None = None
        self.begins_with_checkpoint = False

    @classmethod
    def setup_task(cls, cfg: Any, **kwargs: Any) -> TextToTextTask:
        """Called by fairseq.

        Raises:
            UserError: an option is wrong, or a table, the data directory or a package is missing.
        """
        return cls(cls.plain_options(cfg, **OF_ONE_TASK))

    def about_checkpoint(self, cfg: Mapping[str, Any]) -> dict[str, Any]:
        """Sizes of its T5, and the task that it was trained on."""
        t5, task = json.loads(cfg["model"]["t5"]), cfg["task"]
        return {
            "t5": {"layers": t5["num_layers"], "width": t5["d_model"]},
            "trained_tasks": [task["source_task"] or task["target_task"]],
            "max_source_positions": self.row.max_positions or self.args.max_source_positions,
            "max_target_positions": self.args.max_target_positions,
        }

    def described(self) -> TaskDescription:
        """What the task asks; see `protocols.DescribesTask`."""
        text = self.row.prompt or self.row.description
        return TaskDescription(self.name, text, self.pieces.numbers(text), self.is_source)

    # ---- model ----

    @property
    def source_dictionary(self) -> Dictionary:
        """Of what is read and written: T5's pieces under their numbers."""
        return self.dictionary

    @property
    def target_dictionary(self) -> Dictionary:
        """The same."""
        return self.dictionary

    def build_model(self, cfg: Any, from_checkpoint: bool = False) -> Any:
        """As fairseq's; a new model begins with the pretrained T5."""
        if not from_checkpoint:
            self.pretrained = t5_source(self.args)
            self.begins_with_checkpoint = checkpoint_of(self.args) is not None
            note_sizes(cfg, self.pretrained.config)
            self.state.merge_state_dict({PIECES: as_tensor(self.pretrained.sentencepiece)})
        model = super().build_model(cfg, from_checkpoint)
        if not isinstance(model, T5Model):
            raise_invalid("--path", "a checkpoint of a model on a T5", getattr(cfg, "_name", None))
        # After it, because a damaged checkpoint may name any size.
        fill_dictionary(self.dictionary, self.pieces, model.config.vocab_size)
        self.first_token: int = model.config.decoder_start_token_id
        self.pretrained = None
        return model

    @property
    def pieces(self) -> Pieces:
        """Those of the T5; known once a model was built, or a checkpoint loaded."""
        if self._pieces is None:
            self._pieces = Pieces(of_tensor(getattr(self.state, PIECES)))
        return self._pieces

    # ---- data ----

    def load_dataset(self, split: str, epoch: int = 1, combine: bool = False, **kwargs: Any) -> None:
        """Load a split of the task.

        Raises:
            UserError: there is no such data, a file is not what the table says, or the scores of a validation cannot
                be written to `--results-path`.
        """
        self.expect_split(split)
        root = Path(self.args.data)

        def read(name: str, row: TaskRow, key: str) -> TextSplit:
            return text_split(root, name, row, key, self.tokenizer_of(row), self.token_cache)

        loader = BenchmarkLoader(self.rows, split, read, TextDataset)
        if split == self.args.train_subset:
            loader.keep(self._few_of)
        self.mix(loader, self.collate, epoch)

    @property
    def collate(self) -> TextCollate:
        """What makes batches."""
        return TextCollate(self.pieces.padding, self.first_token)

    def tokenizer_of(self, row: TaskRow) -> TextTokenizer:
        """How a task's texts become tokens of the T5."""
        return TextTokenizer(
            self.pieces, row.max_positions or self.args.max_source_positions, self.args.max_target_positions
        )

    def _few_of(self, name: str, split: TextSplit) -> TextSplit:
        """The examples that `--train-examples` leaves."""
        count = self.args.train_examples
        if count is None or count >= len(split):
            return split
        row = self.rows[name]
        labels_E = np.zeros(len(split)) if row.is_open else split.labels_E  # its candidates have no label in common
        is_regression = row.kind is Kind.regression
        return split.chosen(drawn_examples(labels_E, count, self.args.train_examples_seed, is_regression))

    def about_the_run(self) -> dict[str, Any]:
        """Also whether it is of a source, and how few examples it was to have."""
        count, seed = self.args.train_examples, self.args.train_examples_seed
        drawn = {} if count is None else {"train_examples": count, "train_examples_seed": seed}
        return {**super().about_the_run(), "is_source": self.is_source, **drawn}

    def uncertainties(
        self, sample: dict[str, Any], model: nn.Module, criterion: Any, under_dropout: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Never asked for: there are no candidates."""
        raise AssertionError("one task has nothing to choose from")

    # ---- writing ----

    def inference_step(
        self, generator: Any, models: Sequence[Any], sample: dict[str, Any], prefix_tokens: Any = None,
        constraints: Any = None,
    ) -> Any:  # fmt: skip
        """As fairseq's, with T5's first token, which the decoder reads before it writes."""
        with torch.no_grad():
            return generator.generate(
                models, sample, prefix_tokens=prefix_tokens, constraints=constraints, bos_token=self.first_token
            )

    def write(self, model: Any, sample: dict[str, Any]) -> Tensor:
        """What a model writes greedily of a batch's examples: tokens with an end, (E, L), filled up with NaN."""
        most = self.scored(self.name).most_tokens
        longest = self.args.max_target_positions - 1 if most is None else most
        generator = self.build_generator([model], Namespace(beam=1, max_len_a=0, max_len_b=longest))
        hypotheses = self.inference_step(generator, [model], sample)
        tokens = [of_one[0]["tokens"].float() for of_one in hypotheses]
        return nn.utils.rnn.pad_sequence(tokens, batch_first=True, padding_value=math.nan)

    # ---- validation ----

    def scored(self, name: str) -> TextTaskType:
        """See `BenchmarkTask`."""
        if self._task_type is None:
            self._task_type = TextTaskType(self.rows[name], self.pieces)
        return self._task_type

    def metrics_of(self, key: str) -> list[str]:
        """Also the share of answers that are no label, where answers are labels."""
        return [*super().metrics_of(key), *([NO_LABEL] if has_labels(self.row) else [])]

    def valid_step(self, sample: dict[str, Any], model: Any, criterion: Any, **kwargs: Any) -> Any:
        """As fairseq's, with what is written of the batch's set in the logging output."""
        loss, sample_size, logging_output = super().valid_step(sample, model, criterion, **kwargs)
        if sample:
            logging_output = self.with_predictions(logging_output, sample, self.write(unwrapped(model), sample))
        return loss, sample_size, logging_output

    def log_figures(self, logging_outputs: list[dict[str, Any]]) -> None:
        """Also the loss and perplexity of each set."""
        log_groups(logging_outputs, [Group(key, (key,)) for key in self.evaluated])
        super().log_figures(logging_outputs)


def _chosen_row(table: Mapping[str, TaskRow], args: Namespace) -> tuple[str, TaskRow]:
    """The task that the options name.

    Raises:
        UserError: they name none, or two, or one that cannot be trained as text.
    """
    named = {option: name for option, name in vars(args).items() if option in OPTIONS and name is not None}
    if len(named) != 1:
        raise UserError(
            f"`--task text_to_text` must have either `--source-task` or `--target-task`, but has {len(named)} of them."
        )
    ((option, name),) = named.items()
    shown = f"--{option.replace('_', '-')}"
    known = [other for other, row in table.items() if row.text_form is not None and row.sets("train")]
    if name not in known:
        raise_invalid(shown, f"a task with a text form and training data ({', '.join(known)})", name)
    return name, table[name]
