"""What trains in each of PEMT's two stages: all else has no gradient, and an optimizer keeps nothing of it.

Stage 1 trains a source task's adapters and its prompt. Stage 2 trains the target's prompt, the gates, the target's own
adapters, and the layer norms (the last is the authors' code). Of an encoder both train the task's head.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from torch import Tensor, nn

from fairseq_mtmoe.backbones.bert.transfer import HEADS
from fairseq_mtmoe.checkpoints.key_maps import MIXTURE, TASK_EMBEDDINGS, VOCABULARY
from fairseq_mtmoe.models.pemt.config import SOURCE, TARGET

PROMPT = "encoder.prompt."
SOURCE_PROMPTS = "encoder.prompt.sources"
FINGERPRINT = "backbone_fingerprint"

_TRAINS = {
    SOURCE: re.compile(r"heads\..*|encoder\.prompt\.weight|.*\.mixture\.adapters\..*"),
    TARGET: re.compile(
        r"heads\..*|encoder\.prompt\.weight|.*\.mixture\.(gate|target_adapter)\..*|.*layer_?norm\w*\.(weight|bias)"
    ),
}


def trains(name: str, stage: str) -> bool:
    """Whether a parameter of this name trains in a stage."""
    return bool(_TRAINS[stage].fullmatch(name))


def freeze(model: nn.Module, stage: str) -> None:
    """Leave gradients to what trains in a stage."""
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(trains(name, stage))


def is_added(name: str) -> bool:
    """Whether this is the name of what a model has beside its backbone: prompts, adapters, gates."""
    return MIXTURE in name or name.startswith(PROMPT) or name == FINGERPRINT


def backbone(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The parameters of a model's backbone by their names, each once; heads are the tasks' own."""
    parameters = model.named_parameters()
    return ((name, value) for name, value in parameters if not is_added(name) and not name.startswith(HEADS))


def rows_of_languages(parameters: Iterable[tuple[str, Tensor]], symbols: int) -> dict[str, int]:
    """Return the number of last rows that stand for languages or tasks, by the name of the backbone's tensor.

    `mtmoe add-task` adds to these; adapters of other languages do not depend on what it adds.

    Args:
        parameters: of the backbone.
        symbols: number of symbols at the end of the vocabulary that stand for languages.
    """
    counts = {name: symbols for name, _ in parameters if name.endswith(VOCABULARY) and symbols}
    return counts | {name: len(value) for name, value in parameters if name.endswith(TASK_EMBEDDINGS)}
