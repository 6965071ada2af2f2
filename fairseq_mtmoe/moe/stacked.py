"""Base of banks of experts and adapters.

The first dimension of every parameter is the member.
"""

import hashlib
import math

import torch
from torch import Tensor, nn

from fairseq_mtmoe.moe.device_kind import is_on_cpu


class StackedBank(nn.Module):
    """Members of equal shape with stacked parameters, which a subclass defines.

    Each member is initialized by its own generator, seeded by the bank's `seed`: equal on any
    number of ranks.
    """

    def __init__(self) -> None:
        super().__init__()
        self.seed = int(torch.randint(2**62, (), device="cpu"))

    def generator(self, index: int) -> torch.Generator:
        """Return the CPU generator of one member; `index` counts members over all ranks."""
        # A hash, because torch keeps 32 bits of a seed: sums of both numbers would repeat seeds
        # in other banks.
        digest = hashlib.blake2b(f"{self.seed} {index}".encode(), digest_size=4).digest()
        return torch.Generator("cpu").manual_seed(int.from_bytes(digest, "little"))

    def member(self, index: int) -> dict[str, Tensor]:
        """Return one member's parameters by name, as views."""
        return {name: parameter[index] for name, parameter in self.named_parameters(recurse=False)}


@torch.no_grad()
def draw_linear_(
    weight_OI: Tensor, bias_O: Tensor | None = None, generator: torch.Generator | None = None
) -> None:
    """Initialize a linear map as `nn.Linear` does, uniform within ±1/√I."""
    bound = 1 / math.sqrt(weight_OI.shape[1])
    for values in (weight_OI,) if bias_O is None else (weight_OI, bias_O):
        if generator is None or is_on_cpu(values):
            values.uniform_(-bound, bound, generator=generator)
        elif not values.is_meta:  # the same numbers on every device
            drawn = torch.empty_like(values, device="cpu")
            values.copy_(drawn.uniform_(-bound, bound, generator=generator))
