"""The toy's row in the battery."""

import torch
from fairseq_mtmoe.toy.config import ToyConfig
from fairseq_mtmoe.toy.model import ToyModel
from torch import nn

from tests.helpers.models import SIZES, batch, dense_model, perturb, stub_task
from tests.systems.rows.base_sparse import copy_loss, in_decoder, output
from tests.systems.system import System, with_experts_of


def build(seed: int, **options: float) -> nn.Module:
    torch.manual_seed(seed)
    return ToyModel.build_model(ToyConfig(**{**SIZES, "num_experts": 4, **options}), stub_task()).eval()


def dense_twin() -> nn.Module:
    return perturb(dense_model())


def of_dense(dense: nn.Module) -> nn.Module:
    return with_experts_of(dense, build(1, num_experts=1, dense_updates=1))


ROWS = [System("toy", build, dense_twin, of_dense, batch, output, copy_loss, in_decoder)]
