"""Validation loss and perplexity of each language pair and each tier, next to fairseq's total.

A validation batch holds one pair. Its sums go into the logging output under the pair's name, with zeros for all others:
fairseq adds logging outputs up over processes, and these must have the same keys, of the same types, on each.
"""

import math
from typing import Any, Dict, Iterable, List, Mapping

import torch
from fairseq import utils
from fairseq.logging import metrics

SUMS = ("loss", "nll_loss", "sample_size", "ntokens")


def add_pair_sums(logging_output: Dict[str, Any], pair: str, pairs: Iterable[str]) -> None:
    """Add this batch's sums as those of `pair`, and zeros as those of the other pairs."""
    sums = {name: logging_output.get(name, logging_output.get("loss")) for name in SUMS}
    for other in pairs:
        for name, value in sums.items():
            zero = torch.zeros_like(value) if torch.is_tensor(value) else 0
            logging_output[f"{other}_{name}"] = value if other == pair else zero


def log_groups(logging_outputs: List[Mapping[str, Any]], groups: Mapping[str, List[str]]) -> None:
    """Log loss, nll_loss (base 2) and ppl of each group of pairs: a pair alone under its name, or a tier's pairs."""
    for group, pairs in groups.items():
        sums = {
            name: sum(utils.item(log.get(f"{pair}_{name}", 0)) for log in logging_outputs for pair in pairs)
            for name in SUMS
        }
        if not sums["sample_size"] or not sums["ntokens"]:
            continue
        loss = sums["loss"] / sums["sample_size"] / math.log(2)
        nll_loss = sums["nll_loss"] / sums["ntokens"] / math.log(2)
        metrics.log_scalar(f"{group}_loss", loss, sums["sample_size"], priority=1000, round=3)
        metrics.log_scalar(f"{group}_nll_loss", nll_loss, sums["ntokens"], priority=1000, round=3)
        key = f"{group}_nll_loss"
        metrics.log_derived(f"{group}_ppl", lambda meters, key=key: utils.get_perplexity(meters[key].avg), 1000)


def group_values(meters: Mapping[str, Any], prefix: str) -> Dict[str, float]:
    """Loss, nll_loss, ppl and tokens of a group (or, with an empty prefix, of everything) as logged, unrounded."""
    loss = meters[f"{prefix}loss"]
    nll_loss = meters.get(f"{prefix}nll_loss", loss)
    bits = float(nll_loss.avg)
    return {
        "loss": float(loss.avg),
        "nll_loss": bits,
        "ppl": 2.0**bits if bits < 1000 else math.inf,
        "tokens": int(nll_loss.count),
    }
