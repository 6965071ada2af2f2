"""Predict a directory's sets with a model of `--task glue` or `text_to_text`.

Labels are ignored. Steps and batches are those of fairseq-validate, so predictions have the score
that it reports. An exception is `--base-evaluation balanced`, which routes whole batches:
predictions are routed by prices instead.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from fairseq import tasks

from fairseq_mtmoe.core.errors import UserError, raise_invalid
from fairseq_mtmoe.moe.evaluation_routing import route_by_prices_
from fairseq_mtmoe.multitask.mixtures.dataset import EvaluationMixture
from fairseq_mtmoe.nlu.data.answers import expect_different_keys, submission_of, written
from fairseq_mtmoe.nlu.data.reading import TaskSet, sets_of
from fairseq_mtmoe.nlu.data.table import Submission, TaskRow
from fairseq_mtmoe.nlu.types.task_type import Predictions, flattened, only_answer
from fairseq_mtmoe.translation.decode import stored
from fairseq_mtmoe.translation.decode.stored import Inference

logger = logging.getLogger(__name__)

BATCH_MULTIPLE = 8  # fairseq-validate's default for --required-batch-size-multiple


@dataclass(frozen=True)
class PredictedSet(TaskSet):
    """A set to predict; `head` names the head's task."""

    head: str

    @property
    def submission(self) -> Submission:
        """The file of predictions."""
        return submission_of(self.name, self.row, self.split)


@dataclass(frozen=True)
class Choice:
    """The sets to predict, tasks with data but without a head, and sets without data."""

    sets: list[PredictedSet]
    headless: list[str]
    absent: list[str]


class Predictor:
    """Predicts with a checkpoint's model; `task_table` replaces the run's tables."""

    def __init__(
        self, data: str, checkpoint: str, inference: Inference, task_table: str | None = None
    ) -> None:
        self.inference = inference
        self.checkpoint = checkpoint
        self._root = Path(data)
        state = stored.read(checkpoint)
        settings = stored.task_settings(
            state, checkpoint, ("glue", "text_to_text"), "language understanding"
        )
        stored.change(settings, data=data)
        if task_table is not None:
            stored.change(settings, task_table=task_table)
        self._task: Any = tasks.setup_task(settings)
        self._task.load_state_dict(state["task_state"])
        self.table: Mapping[str, TaskRow] = self._task.table  # all known tasks, by name
        model = stored.build_model(self._task, state, checkpoint).eval()
        route_by_prices_(model)
        self.model = stored.placed(model, inference.fp16, inference.bf16, inference.use_cuda)

    def choose(self, subset: str) -> Choice:
        """Return the sets with data that a head of the same shape predicts.

        The head is the task's own, or the one that its row names.
        """
        choice = Choice([], [], [])
        heads = self._task.head_shapes(self.model)
        for name, row in self.table.items():
            shape = self._task.shape_of(row)
            fitting = [task for task in (name, row.head) if task in heads and heads[task] == shape]
            for task_set in sets_of(self._root, {name: row}, subset):
                is_present = task_set.place is not None
                if is_present and fitting:
                    choice.sets.append(PredictedSet(**vars(task_set), head=fitting[0]))
                elif is_present and name not in choice.headless:
                    choice.headless.append(name)
                elif name in fitting:
                    choice.absent.append(task_set.key)
        if not choice.sets:
            rule = f"{subset} data of one of the model's tasks ({', '.join(heads)})"
            raise UserError(f"`{self._root}` contains no {rule}.")
        files: dict[str, str] = {}
        for chosen in choice.sets:
            file = chosen.submission.file
            if (other := files.setdefault(file, chosen.key)) != chosen.key:
                raise_invalid(
                    f"{chosen.key}: submissions: file", f"another file than that of {other}", file
                )
        return choice

    def read(self, sets: Sequence[PredictedSet]) -> list[Any]:
        """Return the tokenized examples of sets."""
        task = self._task
        examples = []
        for chosen in sets:
            tokenizer = task.tokenizer_of(chosen.row)
            examples.append(task.load_split(chosen, tokenizer, task.token_cache, labelled=False))
        return examples

    @torch.no_grad()
    def predict(
        self,
        chosen: PredictedSet,
        examples: Any,
        advance: Callable[[int], None] = lambda count: None,
    ) -> str:
        """Return a set's predictions file; `advance` gets each batch's number of examples."""
        keys = examples.keys_E.tolist()
        expect_different_keys(chosen.key, chosen.submission.form, keys)
        parts = []
        for sample in self.batches(chosen, examples):
            predictions = self._task.predicted(self.model, sample, chosen.row, chosen.head)
            parts.append(flattened(sample["id"], predictions))
            advance(len(sample["id"]))
        labels = chosen.submission.labels or chosen.row.labels
        scored = self._task.scored(chosen.row)
        texts = scored.label_text(examples, Predictions.gathered(torch.cat(parts)), labels)
        if only := only_answer(texts):
            logger.warning(f"{chosen.key}: every prediction is {only!r:.80}")
        return written(chosen.submission, keys, texts)

    def batches(self, chosen: PredictedSet, examples: Any) -> Iterator[dict[str, Any]]:
        """Yield the batches of a set on the model's device."""
        task_id = self._task.id_of(chosen.head, "a task of the model")
        data = self._task.dataset_of(examples)
        collate = self._task.collate_of([chosen.head])
        batches = self._task.get_batch_iterator(
            EvaluationMixture([chosen.key], [data], [task_id], collate),
            max_tokens=self.inference.max_tokens,
            max_sentences=self.inference.batch_size,
            required_batch_size_multiple=BATCH_MULTIPLE,
        )
        for sample in batches.next_epoch_itr(shuffle=False):
            yield self._task.for_models(self.inference.to_device(sample), [self.model])
