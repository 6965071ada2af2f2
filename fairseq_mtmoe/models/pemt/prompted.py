"""What an encoder of any backbone has in addition that may read a prompt, and whose blocks may have adapters."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from fairseq_mtmoe.models.pemt import passes
from fairseq_mtmoe.models.pemt.prompts import Prompt
from fairseq_mtmoe.slots import MixturePass


class Prompted(nn.Module):
    """Mixed into a stack, before its backbone's; `PemtModel` sets what is to be set.

    Attributes:
        prompt: beside the tokens of each text; None without.
        gate_input: what gates read, one of `config.GATE_INPUTS`; None where there are none.
        wants_sparsity: whether a pass in training is to give the task sparsity loss.
    """

    prompt: Prompt | None
    gate_input: str | None
    wants_sparsity = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.prompt = self.gate_input = None

    def prompt_of_pass(self) -> Tensor | None:
        """What the prompt is in one pass, (P, H): under its dropout another one each time; None without."""
        return None if self.prompt is None else self.prompt()

    def mixture_of(self, prompt_PH: Tensor | None, padding_mask_BL: Tensor, first: int = 0) -> MixturePass | None:
        """What gates read in a pass; None where there are none. See `passes.encoder_pass`."""
        if self.gate_input is None:
            return None
        wants_similarities = self.training and self.wants_sparsity
        return passes.encoder_pass(self.gate_input, prompt_PH, padding_mask_BL, wants_similarities, first)
