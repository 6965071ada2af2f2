"""The moving average of the weights, fairseq's `--store-ema`.

The functions set its initial values, and exclude tensors that must not be averaged.
"""

import logging
from collections.abc import Mapping
from typing import Any

from torch import nn

from fairseq_mtmoe.checkpoints.file_io import are_finite
from fairseq_mtmoe.checkpoints.head_labels import match_labels
from fairseq_mtmoe.checkpoints.key_maps import EXPERTS
from fairseq_mtmoe.checkpoints.loading import load_ema
from fairseq_mtmoe.checkpoints.rebuild import sparsify_like
from fairseq_mtmoe.core.protocols import training_model, training_task
from fairseq_mtmoe.slots.slot import unwrapped

logger = logging.getLogger(__name__)


def begin(trainer: Any) -> None:
    """Set up a new average: the values to copy, and `--ema-seed-model`'s weights."""
    average = trainer.ema
    options = trainer.cfg.ema
    # The average of equal numbers can differ from them in the last bit.
    integers = {
        name
        for name, buffer in trainer.get_model().named_buffers()
        if not buffer.is_floating_point()
    }
    average.skip_keys = integers | constants_of(trainer.get_model())
    if options.ema_seed_model is None:
        return
    state = load_ema(options.ema_seed_model)
    match_labels(options.ema_seed_model, state, training_task(trainer.task).head_labels)
    sparsify_like(average.get_model(), state)
    average.get_model().load_state_dict(state["model"], strict=True)
    if options.ema_fp32:
        average.build_fp32_params()


def restore(trainer: Any, extra_state: Mapping[str, Any]) -> None:
    """Load a checkpoint's average.

    If the checkpoint has no average of this model, begin with its weights; fairseq would fail.
    """
    options = trainer.cfg.ema
    average = extra_state.get("ema")
    model = trainer.get_model()
    if not options.store_ema:
        return
    experts = {name for name, _ in model.named_parameters() if EXPERTS in name}
    if average is None or not (
        constants_of(model) | experts <= average.keys() and are_finite(average.values())
    ):
        logger.warning(
            "the checkpoint has no finite moving average of this model: the average begins with "
            "its weights"
        )
        trainer._build_ema()
        return
    trainer.ema.restore(average)
    if options.ema_fp32:
        trainer.ema.build_fp32_params(extra_state.get("ema_fp32_params"))


def constants_of(model: nn.Module) -> set[str]:
    """Return the names of a model's constants."""
    return set(training_model(unwrapped(model)).constants)
