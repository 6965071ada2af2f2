"""`--ddp-backend pytorch_ddp`, fairseq's default, with `--cpu`: fairseq then names a GPU, which torch refuses."""

from typing import Any

from fairseq.models import distributed_fairseq_model
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def install() -> None:
    """Put `data_parallel` where fairseq wraps models. Safe to call any number of times."""
    distributed_fairseq_model.DistributedDataParallel = data_parallel


def data_parallel(module: nn.Module, **options: Any) -> DistributedDataParallel:
    """torch's wrapper with fairseq's options; a module on the CPU gets no device."""
    if all(parameter.device.type == "cpu" for parameter in module.parameters()):
        options |= {"device_ids": None, "output_device": None}
    return DistributedDataParallel(module, **options)
