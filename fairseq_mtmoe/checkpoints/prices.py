"""Prices of BASE layers in a checkpoint's state: which of its keys they are, and how they get there."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from fairseq_mtmoe.checkpoints.key_maps import GATE
from fairseq_mtmoe.checkpoints.sharding import AVERAGES, State

PRICES = (".prices.total", ".prices.weight")  # of BASE gates


def prices_of(named: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Those among a model's state."""
    return {key: value for key, value in named.items() if key.endswith(PRICES)}


def without_prices(named: dict[str, Any]) -> dict[str, Any]:
    """A model's state but for its prices, with its attributes."""
    rest = copy.copy(named)
    for key in named:
        if key.endswith(PRICES):
            del rest[key]
    return rest


def with_prices(named: dict[str, Any], prices: Mapping[str, Any]) -> dict[str, Any]:
    """A model's state with these prices alone, each behind its gate's weight, where the model has them."""
    result = without_prices(named)
    rest = dict(result)
    result.clear()
    for key, value in rest.items():
        result[key] = value
        if key.endswith(GATE):
            names = [key.removesuffix(".weight") + name for name in PRICES]
            result |= {name: prices[name] for name in names if name in prices}
    return result


def put_prices(state: State, prices: Mapping[str, Tensor], average: Mapping[str, Tensor] | None = None) -> State:
    """A checkpoint, whole or a shared part, with other prices; all else, and `state` itself, is left as it is.

    Args:
        state: the checkpoint's.
        prices: of the model, by key.
        average: of the weights' moving average, where the checkpoint has one.
    """
    result: State = {**state, "model": with_prices(state["model"], prices)}
    options = (state.get("cfg") or {}).get("model")
    if isinstance(options, dict):  # `--model-overrides` overrides what is there
        way = options.get("base_evaluation", "prices")
        result["cfg"] = {**state["cfg"], "model": {**options, "base_evaluation": way}}
    if "experts" in state:
        keys = with_prices(dict.fromkeys(state["experts"]["keys"]), prices)
        result["experts"] = {**state["experts"], "keys": list(keys)}
    if average is not None:
        extra = result["extra_state"] = dict(state["extra_state"])
        for name in AVERAGES:
            if name in extra:
                copies = {key: value.clone() for key, value in average.items()}
                extra[name] = with_prices(extra[name], copies)
    return result
