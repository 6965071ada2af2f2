"""`--ddp-backend fully_sharded`: what fairscale's wrapper cannot do is said when it gets a model, before it touches it.

It spreads each parameter over all processes, which take it to be the same in all of them, and it computes with CUDA's
streams even where there is no GPU. Experts in wrappers of their own would train all right, but a checkpoint needs their
parameters and moments by name, and the wrapper keeps both as shards of one nameless vector.
"""

from typing import Any

import torch
from fairseq.distributed import fully_sharded_data_parallel as fairseq_sharding
from torch import nn

from fairseq_mtmoe.errors import must_be
from fairseq_mtmoe.training.unsupported import BACKENDS
from fairseq_mtmoe.training.zero_sharding import is_sharded


class CheckedFullSharding(fairseq_sharding.FullyShardedDataParallel):
    """fairseq's wrapper.

    Raises:
        UserError: the module has experts that other processes do not have, or there is no GPU.
    """

    def __init__(self, module: nn.Module, *args: Any, **kwargs: Any) -> None:
        if any(is_sharded(parameter) for parameter in module.parameters()):
            rule = f"one of {', '.join(BACKENDS)} with experts in several processes"
            must_be("--ddp-backend", rule, "fully_sharded")
        if not torch.cuda.is_available():
            must_be("--ddp-backend", f"one of {', '.join(BACKENDS)} on a machine without CUDA", "fully_sharded")
        super().__init__(module, *args, **kwargs)
