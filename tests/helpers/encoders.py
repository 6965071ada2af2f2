"""Tiny multi-task encoders and batches, without a data directory."""

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from fairseq_mtmoe import register
from fairseq_mtmoe.nlu.bert.model import note_sizes
from fairseq_mtmoe.nlu.bert.pretrained import PretrainedEncoder
from fairseq_mtmoe.nlu.types.task_type import Classification, Ranking, Regression, WordPair

register()

from fairseq_mtmoe.nlu.ca_mtl import CAMTLModel  # noqa: E402
from fairseq_mtmoe.nlu.ca_mtl.model import CAMTLConfig  # noqa: E402
from fairseq_mtmoe.nlu.mt_tag import MTDenseModel, MTSwitchModel, MTTaGModel  # noqa: E402
from fairseq_mtmoe.nlu.mt_tag.model import MTDenseConfig, MTSwitchConfig, MTTaGConfig  # noqa: E402
from tests.helpers.bert import TINY, tiny_encoder  # noqa: E402

ANSWERS = {"three": Classification(3), "value": Regression(), "choice": Ranking(), "words": WordPair(2)}
HEADS = {task: answer.head for task, answer in ANSWERS.items()}
TARGET = {
    "three": torch.tensor([2.0, 0.0]),
    "value": torch.tensor([3.5]),
    "choice": torch.tensor([[0.0, 1.0]]),
    "words": torch.tensor([1.0]),
}
NO_DROPOUT = {"dropout": 0.0, "attention_dropout": 0.0}


def built(model: Any, config: Any, seed: int) -> Any:
    """A model with a tiny pretrained encoder, in evaluation mode, without dropout."""
    pretrained = PretrainedEncoder(TINY, {}, tiny_encoder(seed=seed).state_dict())
    note_sizes(config, TINY, HEADS)
    torch.manual_seed(seed)
    return model.build_model(config, SimpleNamespace(pretrained=pretrained, begins_with_checkpoint=False)).eval()


def tag_model(seed: int = 1, switch: bool = False, **options: Any) -> MTTaGModel:
    """A 2-block encoder with 4 experts in each block."""
    model, config = (MTSwitchModel, MTSwitchConfig) if switch else (MTTaGModel, MTTaGConfig)
    return built(model, config(task_names=",".join(HEADS), **NO_DROPOUT, **options), seed)


def dense_encoder(seed: int = 1, **options: Any) -> MTDenseModel:
    return built(MTDenseModel, MTDenseConfig(**NO_DROPOUT, **options), seed)


def conditional_encoder(seed: int = 1, large: bool = False, **options: Any) -> CAMTLModel:
    """A 2-block encoder that adapts to tasks; no block is frozen unless `options` say so."""
    given = {"conditional_form": "large" if large else "base", "freeze_layers": "0", **NO_DROPOUT, **options}
    return built(CAMTLModel, CAMTLConfig(task_names=",".join(HEADS), **given), seed)


def task_batch() -> dict[str, Any]:
    """Five examples of four tasks, one of them with two candidates, as a `net_input`; padded."""
    generator = torch.Generator().manual_seed(3)
    tokens = torch.randint(5, TINY.vocab_size, (6, 8), generator=generator)
    for row, length in enumerate((8, 5, 6, 8, 7, 4)):
        tokens[row, length:] = TINY.pad_token_id
    segments = (torch.arange(8) >= 4).long().expand(6, 8) * tokens.ne(TINY.pad_token_id)
    no_words = torch.empty(1, 0, 2, dtype=torch.long)
    rows = {"three": [[0], [4]], "value": [[1]], "choice": [[2, 3]], "words": [[5]]}
    return {
        "src_tokens": tokens,
        "segments": segments,
        "rows": {task: torch.tensor(numbers) for task, numbers in rows.items()},
        "spans": {"three": no_words.expand(2, 0, 2), "value": no_words, "choice": no_words,
                  "words": torch.tensor([[[1, 3], [2, 4]]])},
        "task_ids": torch.tensor([0, 1, 2, 2, 0, 3]),
    }  # fmt: skip


def all_numbers(outputs: dict[str, Tensor]) -> Tensor:
    return torch.cat([numbers.flatten() for numbers in outputs.values()])
