"""Merge gates and sources of a trained target into its weights.

A merged model uses its sources at no cost. Gates that read only the prompt give every sentence the
same weights (equation 2). With fixed weights, LoRA adapters are added to their matrix, K
bottlenecks become one of rank K·r, and the prompt gets its correlation with the sources. The
target's own adapters stay, because they follow the feed-forward layer with a non-linearity.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fairseq_mtmoe.core.errors import UserError, raise_invalid
from fairseq_mtmoe.moe.adapters import ADAPTERS, LORA, AdapterBank, BottleneckBank, LoraBank
from fairseq_mtmoe.pemt.base_model import CorrelatedPrompt
from fairseq_mtmoe.pemt.config import CORRELATION, PROMPT, check_options, gate_input
from fairseq_mtmoe.pemt.sources import Metadata, SourceSettings

State = Mapping[str, Tensor]
AnyModule = TypeVar("AnyModule", bound=nn.Module)

GATE = ".mixture.gate.weight"


@dataclass(frozen=True)
class Merger:
    """Merges the mixtures of a checkpoint's model."""

    metadata: Metadata
    made: SourceSettings

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Merger:
        """Return the merger for a checkpoint's options.

        Raises `UserError` if the model has no sources, or its gates have no fixed weights.
        """
        metadata = Metadata.from_text(options["pemt"]) if options.get("pemt") else None
        if metadata is None or not metadata.sources:
            raise UserError(
                "The checkpoint has no sources to merge: give one of a run with `--pemt-stage "
                "target` and `--pemt-sources`."
            )
        cfg = SimpleNamespace(**options)
        check_options(cfg)
        if gate_input(cfg) != CORRELATION:
            rule = (
                f"{CORRELATION} in a model to merge, because other gates weigh each text "
                "differently"
            )
            raise_invalid("--gate-input", rule, gate_input(cfg))
        return cls(metadata, SourceSettings.by(cfg))

    def options(self) -> dict[str, str]:
        """Return the options that differ in the merged model."""
        rank = 0 if self.made.adapter == LORA else self.made.rank * len(self.metadata.sources)
        return {"pemt": replace(self.metadata, sources=(), merged_rank=rank).to_text()}

    @torch.no_grad()
    def merged(self, state: State) -> dict[str, Tensor]:
        """Return the state without gates and sources."""
        result = dict(state)
        prompt_PH = self._prompt(state)
        for gate in state:
            if not gate.endswith(GATE):
                continue
            weights_K = F.linear(prompt_PH.mean(0), state[gate].float()).softmax(-1)
            path = gate.removesuffix(GATE)
            prefix = f"{path}.mixture.adapters."
            bank = self._bank(state, prefix)
            like = state[f"{prefix}up"]
            del result[gate]
            for name in bank.state_dict():
                del result[f"{prefix}{name}"]
            if isinstance(bank, LoraBank):
                bank.scale = self.made.alpha / self.made.rank
                fc2 = state[f"{path}.fc2.weight"]
                result[f"{path}.fc2.weight"] = (fc2.float() + bank.merged(weights_K)).to(fc2)
            elif isinstance(bank, BottleneckBank):
                for name, value in bank.merged(weights_K).state_dict().items():
                    result[f"{prefix}{name}"] = value.to(like)
        del result[f"{PROMPT}sources"]
        result[f"{PROMPT}weight"] = prompt_PH.to(state[f"{PROMPT}weight"])
        return result

    def _prompt(self, state: State) -> Tensor:
        """Return the correlated prompt, (P, H)."""
        width = state[f"{PROMPT}weight"].shape[1]
        lengths = [source.length for source in self.metadata.sources]
        prompt = CorrelatedPrompt(len(self.metadata.tokens), width, lengths)
        mixed: Tensor = _filled(prompt, state, PROMPT)()
        return mixed

    def _bank(self, state: State, prefix: str) -> AdapterBank:
        input_size = state[f"{prefix}down"].shape[2]
        output_size = state[f"{prefix}up"].shape[2]
        sizes = len(self.metadata.sources), input_size, output_size, self.made.rank
        return _filled(ADAPTERS[self.made.adapter](*sizes), state, prefix)


def _filled(module: AnyModule, state: State, prefix: str) -> AnyModule:
    """Load a module from a state and set evaluation mode."""
    values = {
        name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)
    }
    module.load_state_dict(values)
    return module.eval()
