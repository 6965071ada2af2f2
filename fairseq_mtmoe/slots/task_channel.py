"""How each sentence's task id reaches every layer.

The ids travel as an ordinary input of the encoder and in its output, so that fairseq's generators reorder them with the
beams. From there a hook hands them to each block as a keyword argument: fairseq's loops over blocks stay fairseq's, and
activation checkpointing saves the ids with the block's other arguments.
"""

import inspect
from typing import Any, Dict, Optional, Tuple

from torch import LongTensor, nn


class TaskChannel:
    """The task ids of the batch that is passing through a stack of blocks; one channel per stack."""

    def __init__(self) -> None:
        self.task_ids: Optional[LongTensor] = None

    def connect(self, block: nn.Module) -> None:
        """From now on `block` is called with `task_ids`, one id per sentence (B,), or None."""
        block.register_forward_pre_hook(self._hand_over, with_kwargs=True)

    def _hand_over(self, block: nn.Module, args: Tuple, kwargs: Dict[str, Any]) -> Tuple[Tuple, Dict[str, Any]]:
        return args, {**kwargs, "task_ids": self.task_ids}


def takes(model: Any, name: str) -> bool:
    """Whether a model, inside whatever wraps it for several processes, has an input of this name."""
    while hasattr(model, "module"):
        model = model.module
    return name in inspect.signature(model.forward).parameters
