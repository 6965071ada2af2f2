"""Names in checkpoints, as tables: of a sparse model's parameters, in a dense model's, and in older versions.

A dense block's feed-forward layer becomes its experts' stacked parameters; all else keeps its name, and gates start
afresh. A checkpoint need not have the running prices of BASE gates.
"""

import copy
from collections.abc import Mapping
from typing import Any

from torch import Tensor

# Within the names of a sparse model's state, after the block's path:
MOE = ".moe."  # the layer that took the place of the feed-forward one
EXPERTS = ".moe.experts."  # its experts, stacked
SHARED = ".moe.shared."  # the expert of all tokens, which has no bias of the output
GATE = ".moe.gate.weight"
PRICES = (".prices.total", ".prices.weight")  # of BASE gates, instead of `.weight`
# Within those of one that adapts to tasks: the table, and by which part of `--conditional` the others are
TASK_EMBEDDINGS = "task_embeddings.weight"
VOCABULARY = ("embed_tokens.weight", "output_projection.weight")  # which can be one tensor
CONDITIONS = {
    "attention": ".attention_bias.", "norm": "_layer_norm.film.", "alignment": ".alignment.",
    "bottleneck": ".bottleneck.",
}  # fmt: skip
MIXTURE = ".mixture."  # what stands beside the feed-forward layer of a block with adapters
SIDE_CHAIN = ".side_chain."  # the bottlenecks of an encoder in the large form
# In a checkpoint's `extra_state`:
GATE_RATE = "gate_rate"  # at which rate the gates learn
AVERAGES = ("ema", "ema_fp32_params")  # moving averages of the weights

# name within a block of the dense model -> name within the experts, and the shared one, of the same block of the sparse
DENSE_TO_EXPERTS = {name: name.replace(".", "_") for name in ("fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias")}
FIRST_WEIGHT = EXPERTS + DENSE_TO_EXPERTS["fc1.weight"]  # of all experts of a block, (N, F, H)
FIRST_SHARED = SHARED + DENSE_TO_EXPERTS["fc1.weight"]  # of the shared one, (D, H)

# criterion's class in the optimizer's history: of 0.1.0 -> since then
CRITERIONS = {"MoELabelSmoothedCrossEntropyCriterion": "LabelSmoothedCrossEntropyCriterion"}


def rename_criterions(state: dict[str, Any]) -> None:
    """Give the criterions of a checkpoint the names that they have now, in place."""
    for entry in state.get("optimizer_history", ()):
        name = entry.get("criterion_name")
        entry["criterion_name"] = CRITERIONS.get(name, name)


def without(named: dict[str, Any], *marks: str) -> dict[str, Any]:
    """A model's state, with its attributes, but for keys with one of the marks in them."""
    rest = copy.copy(named)
    for key in named:
        if any(mark in key for mark in marks):
            del rest[key]
    return rest


def prices_of(named: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {key: value for key, value in named.items() if key.endswith(PRICES)}


def without_prices(named: dict[str, Any]) -> dict[str, Any]:
    return without(named, *PRICES)


def with_prices(named: dict[str, Any], prices: Mapping[str, Any]) -> dict[str, Any]:
    """A model's state with these prices alone, each behind its gate's weight, where the model has them."""
    rest, result = without_prices(named), copy.copy(named)
    result.clear()
    for key, value in rest.items():
        result[key] = value
        if key.endswith(GATE):
            names = [key.removesuffix(".weight") + name for name in PRICES]
            result |= {name: prices[name] for name in names if name in prices}
    return result


def put_prices(
    state: dict[str, Any], prices: Mapping[str, Tensor], average: Mapping[str, Tensor] | None = None
) -> dict[str, Any]:
    """A copy of a checkpoint, whole or a shared part, with other prices; `average`: those of its moving average."""
    result = {**state, "model": with_prices(state["model"], prices)}
    options = (state.get("cfg") or {}).get("model")
    if isinstance(options, dict):  # `--model-overrides` overrides what is there
        way = options.get("base_evaluation", "prices")
        result["cfg"] = {**state["cfg"], "model": {**options, "base_evaluation": way}}
    if "experts" in state:
        keys = with_prices(dict.fromkeys(state["experts"]["keys"]), prices)
        result["experts"] = {**state["experts"], "keys": list(keys)}
    if average is not None:
        result["extra_state"] = extra = dict(state["extra_state"])
        for name in AVERAGES:
            if name in extra:
                extra[name] = with_prices(extra[name], {key: value.clone() for key, value in average.items()})
    return result
