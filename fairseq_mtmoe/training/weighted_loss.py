"""Losses with a weight, which criterions add to their own."""

from typing import Any, Dict, Mapping, Sequence, Tuple

from fairseq.logging import metrics
from torch import Tensor


def add_weighted(
    loss: Tensor, sample_size: Any, logged: Dict[str, Any], name: str, extra: Tensor, weight: float
) -> Tuple[Tensor, Any, Dict[str, Any]]:
    """Add weight · sample size · loss; the trainer divides by the sample size again."""
    return (
        loss + weight * extra * sample_size,
        sample_size,
        {**logged, name: extra.detach() * sample_size},
    )


def log_weighted(logging_outputs: Sequence[Mapping[str, Any]], name: str) -> None:
    """Log the average of a weighted loss, if there is one."""
    if any(name in log for log in logging_outputs):
        sample_size = sum(log.get("sample_size", 0) for log in logging_outputs)
        total = sum(log.get(name, 0) for log in logging_outputs)
        metrics.log_scalar(name, total / sample_size, sample_size, round=4)
