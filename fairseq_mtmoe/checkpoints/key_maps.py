"""Names in checkpoints as tables: of sparse models and dense models.

A dense block's feed-forward layer becomes its experts' stacked parameters. All other names stay,
and gates start afresh. A checkpoint may lack the running prices of BASE gates.
"""

import copy
from collections.abc import Mapping
from typing import Any

# In the names of a sparse model's state, after the block's path:
MOE = ".moe."  # the layer that replaces the feed-forward layer
EXPERTS = ".moe.experts."  # its experts, stacked
GATE = ".moe.gate.weight"
PRICES = (".prices.total", ".prices.weight")  # of BASE gates, instead of `.weight`
# In names of a model with conditional parts:
TASK_EMBEDDINGS = "task_embeddings.weight"
VOCABULARY = ("embed_tokens.weight", "output_projection.weight")  # the two can be one tensor
# In a translator's model, whole:
ENCODER_EMBEDDINGS = "encoder.embed_tokens.weight"
DECODER_EMBEDDINGS = "decoder.embed_tokens.weight"
EMBEDDINGS = (ENCODER_EMBEDDINGS, DECODER_EMBEDDINGS)
OUTPUT = "decoder.output_projection.weight"
OUTPUT_BIAS = "decoder.output_projection.bias"
MIXTURE = ".mixture."  # the adapters beside a block's feed-forward layer
# In a checkpoint's `extra_state`:
GATE_RATE = "gate_rate"  # the gates' learning rate
AVERAGES = ("ema", "ema_fp32_params")  # moving averages of the weights
BEST = "best"  # the best validation
BEST_MEASURE = "best_measure"  # its measure
PATIENCE = "patience"  # the number of worse ones since
ENDED_VALIDATION = "ended_validation"  # the validation during which a signal ended the run
# These, and the last validation
OF_BEST = (BEST, BEST_MEASURE, PATIENCE, "val_loss")

# name in a block of the dense model -> name in the experts of the sparse block
DENSE_TO_EXPERTS = {
    name: name.replace(".", "_") for name in ("fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias")
}
FIRST_WEIGHT = EXPERTS + DENSE_TO_EXPERTS["fc1.weight"]  # of all experts of a block, (N, F, H)


def without(named: dict[str, Any], *marks: str) -> dict[str, Any]:
    """Return a model's state, with its attributes, without keys that contain a mark."""
    rest = copy.copy(named)
    for key in named:
        if any(mark in key for mark in marks):
            del rest[key]
    return rest


def without_best(extra_state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of a checkpoint's extra state without the best validation.

    It is for another model, whose validations begin anew.
    """
    return {key: value for key, value in extra_state.items() if key not in OF_BEST}
