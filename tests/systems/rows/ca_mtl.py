"""Conditionally adaptive encoders: the base and the large form, and each part alone, as in the paper's ablation."""

from functools import partial
from typing import Any

import torch
from torch import nn

from tests.helpers.encoders import conditional_encoder, dense_encoder, tag_model, task_batch
from tests.helpers.models import perturb
from tests.systems.rows.mt_tag import of_dense as of_dense_with_experts
from tests.systems.rows.mt_tag import output, task_losses
from tests.systems.system import System, with_weights_of

# A row's name -> its options on the 2-block encoder of tests/helpers/encoders.py.
OPTIONS: dict[str, dict[str, Any]] = {
    "ca_mtl": dict(),
    "ca_mtl, large": dict(large=True),
    **{f"ca_mtl, {part} alone": dict(conditional=part) for part in ("attention", "norm", "alignment", "bottleneck")},
}


def dense_twin(large: bool) -> nn.Module:
    """The encoder with the same heads. The large form's output has H/3 dimensions: so has then this one's."""
    dense = perturb(dense_encoder())
    if large:
        _, narrow = _narrow(dense)
        norm = dense.encoder.layers[-1].final_layer_norm
        with torch.no_grad():
            norm.weight[narrow:], norm.bias[narrow:] = 0, 0
    return dense


def of_dense(options: dict[str, Any], dense: nn.Module) -> nn.Module:
    """As it begins; in the large form with bottlenecks that hand on the last block's output alone."""
    model = with_weights_of(dense, conditional_encoder(2, **options))
    if model.encoder.side_chain is not None:
        width, narrow = _narrow(model)
        with torch.no_grad():
            for bottleneck in model.encoder.side_chain[:-1]:
                bottleneck.up.weight.zero_()
            last = model.encoder.side_chain[-1]
            last.down.weight.copy_(torch.eye(width)[:narrow])
            last.up.weight.copy_(torch.eye(width)[:, :narrow])
    return model


def _narrow(model: nn.Module) -> tuple[int, int]:
    width = model.encoder.config.hidden_size
    return width, width // 3


def upper_half_and_conditions(name: str) -> bool:
    """As `--freeze-layers half` has it."""
    frozen = ("encoder.embed_", "encoder.layernorm_embedding", "encoder.layers.0.")
    return not name.startswith(frozen) or ".attention_bias." in name


COMMON = dict(batch=task_batch, output=output, loss=task_losses, trainable=upper_half_and_conditions)
# What no paper tried: conditional parts and task-gated experts in one model.
BESIDE_EXPERTS = dict(conditional="attention,norm,alignment,bottleneck")
ROWS = [
    System(
        "ca_mtl, beside experts", partial(tag_model, **BESIDE_EXPERTS), partial(dense_twin, large=False),
        partial(of_dense_with_experts, BESIDE_EXPERTS), **COMMON,
    ),
    *(
        System(
            name, partial(conditional_encoder, **options), partial(dense_twin, options.get("large", False)),
            partial(of_dense, options), **COMMON,
        )
        for name, options in OPTIONS.items()
    ),
]  # fmt: skip
