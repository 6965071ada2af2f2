"""What processes tell each other that is no tensor, of which fairseq sends 16 KiB, and by way of GPUs alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from fairseq import utils
from torch import distributed as dist


def of_any_size(original: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
    """fairseq's `all_gather_list`, for its trainer and `fairseq-validate`.

    What a validation tells of many tasks, or of every word of a batch, is more than fairseq's buffers take.
    """

    def all_gather_list(data: Any, group: Any = None, max_size: int = 16384) -> list[Any]:
        """As fairseq's: the data of all processes. `max_size` is no limit here."""
        gathered: list[Any] = [None] * dist.get_world_size(group)
        data = utils.move_to_cpu(data) if torch.cuda.is_available() else data
        dist.all_gather_object(gathered, data, group=group)
        return gathered

    return all_gather_list
