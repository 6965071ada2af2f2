"""The moving average of the weights, fairseq's `--store-ema`: values that it must not average."""


from torch import nn

from fairseq_mtmoe.protocols import HasConstants
from fairseq_mtmoe.slots.slot import unwrapped


def not_averaged(model: nn.Module) -> set[str]:
    """Return the names of values that an average copies: integers, and a model's constants.

    The average of equal numbers can differ from them in the last bit.
    """
    integers = {name for name, buffer in model.named_buffers() if not buffer.is_floating_point()}
    return integers | constants_of(model)


def constants_of(model: nn.Module) -> set[str]:
    """Return the names of a model's constants; see `protocols.HasConstants`."""
    inner = unwrapped(model)
    return set(inner.constants) if isinstance(inner, HasConstants) else set()
