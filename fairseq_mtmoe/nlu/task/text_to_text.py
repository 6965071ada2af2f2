"""`--task text_to_text`: a task of the table with text as input and output.

See PEMT, §3.1; T5 is trained like this. A run trains one row of the table, either as a source,
whose adapters later runs use, or as a target. Batches are those of fairseq's translation.
"""

import json
import math
from argparse import Namespace
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from fairseq.data import Dictionary
from fairseq.tasks import register_task
from torch import Tensor, nn

from fairseq_mtmoe.checkpoints.head_labels import labels_to_text
from fairseq_mtmoe.core.errors import UserError, raise_invalid, shortened
from fairseq_mtmoe.core.options import check_rules
from fairseq_mtmoe.multitask.validation import Group, log_groups
from fairseq_mtmoe.nlu.data import text_split
from fairseq_mtmoe.nlu.data.loader import drawn_examples
from fairseq_mtmoe.nlu.data.table import Kind, TaskRow
from fairseq_mtmoe.nlu.t5.config import T5Config
from fairseq_mtmoe.nlu.t5.model import T5Model, note_sizes
from fairseq_mtmoe.nlu.t5.pretrained import PretrainedT5, load
from fairseq_mtmoe.nlu.task.config import TextToTextConfig
from fairseq_mtmoe.nlu.task.task import BenchmarkTask
from fairseq_mtmoe.nlu.types.text import NO_LABEL, TextTaskType, has_labels, metrics_of_text
from fairseq_mtmoe.slots.slot import unwrapped
from fairseq_mtmoe.translation.decode.beam_search import BeamSearch
from fairseq_mtmoe.translation.decode.decode import Decoding, Direction, searched

PIECES = "sentencepiece"  # its key in a checkpoint's state of the task
SENTINELS = 100  # `<extra_id_99>` to `<extra_id_0>` follow T5's pieces; further ids are unused


@register_task("text_to_text", dataclass=TextToTextConfig)
class TextToTextTask(BenchmarkTask):
    """A single task of the table, with its `name` and `row`."""

    config = TextToTextConfig
    name_of_task = "text_to_text"
    named_by = "--source-task or --target-task"
    backbone_option = "--init-model"
    backbone = "T5 with its pieces"
    load_backbone = staticmethod(load)
    load_split, dataset_of = staticmethod(text_split.text_split), text_split.TextDataset
    evaluation_arguments: Mapping[str, Any] = {"evaluates": True}

    def __init__(self, args: Namespace) -> None:
        super().__init__(args)
        self.name, self.row = _chosen_row(self.table, args)
        self.is_source = args.source_task is not None
        check_rules(args, TextToTextConfig)
        self.set_up_rows({self.name: self.row}, metrics_of_text)
        self.head_labels = {self.name: _written_labels(self.row)}
        self.dictionary = begun_dictionary()

    def about_checkpoint(self, cfg: Mapping[str, Any]) -> dict[str, Any]:
        """Return the sizes of the T5, the task, and the maximum lengths, in tokens."""
        t5 = json.loads(cfg["model"]["t5"])
        task = cfg["task"]
        return {
            "t5": {"layers": t5["num_layers"], "width": t5["d_model"]},
            "trained_tasks": [task["source_task"] or task["target_task"]],
            "max_source_positions": self.row.max_positions or self.args.max_source_positions,
            "max_target_positions": self.args.max_target_positions,
        }

    @property
    def source_dictionary(self) -> Dictionary:
        """The dictionary of T5's pieces under their ids."""
        return self.dictionary

    target_dictionary = source_dictionary

    def backbone_of(self, state: Mapping[str, Any]) -> PretrainedT5:
        """Return a checkpoint's T5: sizes and vocabulary, without weights."""
        config = T5Config(**json.loads(state["cfg"]["model"]["t5"]))
        return PretrainedT5(config, state["task_state"][PIECES].numpy().tobytes(), {})

    def note_backbone(self, cfg: Any) -> None:
        """Store the T5's sizes, the labels and the vocabulary."""
        note_sizes(cfg, self.pretrained.config)
        cfg.head_labels = labels_to_text(self.head_labels)
        pieces = torch.frombuffer(bytearray(self.pretrained.sentencepiece), dtype=torch.uint8)
        self.state.merge_state_dict({PIECES: pieces})

    def build_model(self, cfg: Any, from_checkpoint: bool = False) -> Any:
        """Build the model and fill the dictionary (UserError: the model has no T5)."""
        model = super().build_model(cfg, from_checkpoint)
        if not isinstance(model, T5Model):
            raise_invalid("--path", "a checkpoint of a T5", getattr(cfg, "_name", None))
        # Only once the model is built: a damaged checkpoint may name any size.
        fill_dictionary(self.dictionary, self.pieces, model.config.vocab_size)
        self.first_token: int = model.config.decoder_start_token_id
        return model

    @cached_property
    def pieces(self) -> text_split.Pieces:
        """The T5's pieces, once a model was built or a checkpoint loaded."""
        return text_split.Pieces(getattr(self.state, PIECES).numpy().tobytes())

    def collate_of(self, tasks: Sequence[str]) -> text_split.TextCollate:
        """Return the collate function, the same for all tasks."""
        return text_split.TextCollate(self.pieces.padding, self.first_token)

    def token_ids(self, text: str) -> list[int]:
        """Return the token ids of a text, without an end token."""
        return self.pieces.token_ids(text)

    def tokenizer_of(self, row: TaskRow) -> text_split.TextTokenizer:
        """Return the tokenizer with the maximum lengths of a task."""
        return text_split.TextTokenizer(
            self.pieces,
            row.max_positions or self.args.max_source_positions,
            self.args.max_target_positions,
        )

    def few_of(self, name: str, split: text_split.TextSplit) -> text_split.TextSplit:
        """Return the examples, or the `--train-examples` drawn ones."""
        count = self.args.train_examples
        if count is None or count >= len(split):
            return split
        row = self.rows[name]
        # The examples of an open ranking have no labels in common.
        labels_E = np.zeros(len(split)) if row.is_open else split.labels_E
        is_regression = row.kind is Kind.regression
        return split.chosen(
            drawn_examples(labels_E, count, self.args.train_examples_seed, is_regression)
        )

    def about_the_run(self) -> dict[str, Any]:
        """Return the event's fields, with the stage and the number of examples."""
        about = {**super().about_the_run(), "is_source": self.is_source}
        if self.args.train_examples is not None:
            for name in ("train_examples", "train_examples_seed"):
                about[name] = getattr(self.args, name)
        return about

    def uncertainties(
        self, sample: dict[str, Any], model: nn.Module, criterion: Any, under_dropout: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Raise an error: a single task has no candidates to choose from."""
        raise AssertionError("one task has nothing to choose from")

    def inference_step(
        self,
        generator: Any,
        models: Sequence[Any],
        sample: dict[str, Any],
        prefix_tokens: Any = None,
        constraints: Any = None,
    ) -> Any:
        """Generate as fairseq does, from T5's decoder start token."""
        with torch.no_grad():
            return generator.generate(
                models,
                sample,
                prefix_tokens=prefix_tokens,
                constraints=constraints,
                bos_token=self.first_token,
            )

    def scored(self, row: TaskRow) -> TextTaskType:
        """Return the scorer of a task's texts."""
        return TextTaskType(row, self.pieces)

    def shape_of(self, row: TaskRow) -> object:
        """Return the kind of answer and the labels' texts in any order, if it has texts."""
        return row.text_form and (row.kind, sorted(text_split.label_texts(row)))

    def head_shapes(self, model: Any) -> Mapping[str, object]:
        """Return the form of the single task's answers: a T5 has no other heads."""
        return {self.name: self.shape_of(self.row)}

    def predicted(self, model: Any, sample: dict[str, Any], row: TaskRow, head: str) -> Tensor:
        """Return the generated tokens of each example, (E, L), padded with NaN."""
        return self.predictions(model, sample, {})

    def metrics_of(self, key: str) -> list[str]:
        """Return the metrics; if answers are labels, also the fraction that is none."""
        metrics = super().metrics_of(key)
        if has_labels(self.row):
            metrics.append(NO_LABEL)
        return metrics

    def predictions(
        self, model: Any, sample: dict[str, Any], logging_output: dict[str, Any]
    ) -> Tensor:
        """Return a batch's greedy outputs: tokens with an end, (E, L), padded with NaN."""
        most = self.scored(self.row).most_tokens
        inner = unwrapped(model)
        longest = self.args.max_target_positions - 1 if most is None else most
        decoding = Decoding(beam=1, max_len_b=longest)
        search = BeamSearch(self.build_generator([inner], decoding.generation))
        hypotheses = searched(
            search, [inner], sample, Direction(self.name, first_input=self.first_token), None
        )
        tokens = [beam[0]["tokens"].float() for beam in hypotheses]
        return nn.utils.rnn.pad_sequence(tokens, batch_first=True, padding_value=math.nan)

    def log_figures(self, logging_outputs: list[dict[str, Any]]) -> None:
        """Log each set's loss, perplexity and metrics."""
        log_groups(logging_outputs, [Group(key, (key,)) for key in self.evaluated])
        super().log_figures(logging_outputs)


def _chosen_row(table: Mapping[str, TaskRow], args: Namespace) -> tuple[str, TaskRow]:
    """Return the task that the options name (UserError: not one, or not of text)."""
    if (args.source_task is None) == (args.target_task is None):
        raise UserError(
            "`--task text_to_text` must have one of `--source-task` and `--target-task`, not both."
        )
    option = "--target-task" if args.source_task is None else "--source-task"
    name = args.source_task or args.target_task
    tasks = [other for other, row in table.items() if row.text_form and row.sets("train")]
    if name not in tasks:
        rule = f"a task with a text form and training data ({shortened(tasks, name)})"
        raise_invalid(option, rule, name)
    return name, table[name]


def _written_labels(row: TaskRow) -> list[str]:
    """Return each label with its text, or its number if answers are no labels' texts."""
    texts = text_split.label_texts(row) or range(len(row.labels))
    return [f"{label} (written {text})" for label, text in zip(row.labels, texts, strict=True)]


def begun_dictionary() -> Dictionary:
    """Return a dictionary of special pieces, which fairseq reads before a checkpoint."""
    return Dictionary(
        bos=text_split.PADDING, pad=text_split.PADDING, eos=text_split.END, unk=text_split.UNKNOWN
    )


def fill_dictionary(dictionary: Dictionary, pieces: text_split.Pieces, vocab_size: int) -> None:
    """Add the other pieces, the sentinels, and symbols for unused embeddings."""
    if len(pieces) > vocab_size:
        raise_invalid(
            "spiece.model",
            f"a model of at most {vocab_size} pieces, the number of the T5's embeddings",
            len(pieces),
        )
    if len(dictionary) == vocab_size:
        return
    named = list(pieces)
    for number in range(len(pieces), vocab_size):
        sentinel = len(pieces) + SENTINELS - 1 - number
        named.append(f"<extra_id_{sentinel}>" if sentinel >= 0 else f"<unused_{number}>")
    for symbol in named[len(dictionary) :]:
        dictionary.add_symbol(symbol)
    if len(dictionary) != vocab_size:
        raise UserError(
            "`spiece.model` must have different pieces, none of them with the name of one of T5's "
            "sentinels such as <extra_id_0>."
        )
