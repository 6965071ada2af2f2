"""The systems of `bench_adapters.py`: T5s of the same weights that learn a task by adapters."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from types import SimpleNamespace

import torch
from fairseq.data import Dictionary
from fairseq.sequence_generator import SequenceGenerator
from peft import LoraConfig, inject_adapter_in_model
from timing import ROOT
from torch import Tensor, nn
from torch.nn import functional as F

from fairseq_mtmoe.moe.adapters import LORA
from fairseq_mtmoe.nlu.t5.config import T5Config
from fairseq_mtmoe.nlu.t5.model import T5Model, shifted
from fairseq_mtmoe.pemt.base_model import adapter_plan
from fairseq_mtmoe.pemt.config import SOURCE, TARGET, PemtOptions
from fairseq_mtmoe.pemt.model import PemtT5Model
from fairseq_mtmoe.pemt.sources import LoadedSources, Metadata, SourceMetadata
from fairseq_mtmoe.slots import adapter_blocks

sys.path.insert(0, str(ROOT))

from tests.helpers.t5 import dictionary

RANK = 64  # and alpha, in the paper as here
SPARSITY_WEIGHT = 0.1
PEER, OURS = "LoRA (peft)", "LoRA (ours)"
SIX, MERGED = "6 sources", "6 sources, merged"


@dataclasses.dataclass(frozen=True)
class Size:
    """What is measured."""

    config: T5Config
    batch: int = 8  # texts in a step
    positions: int = 256  # which the encoder has for each text, its prompt among them
    prompt: int = 32  # vectors
    answer: int = 4  # words of an answer in training
    written: int = 16  # words that are written of each text


class System:
    """A T5, and what it does with a batch of texts of this length in tokens."""

    def __init__(self, model: T5Model, length: int, size: Size) -> None:
        self.module = model
        self.size = size
        shape = (size.batch, length)
        generator = torch.Generator().manual_seed(1)
        self.texts = torch.randint(3, size.config.vocab_size, shape, generator=generator)
        self.answers = torch.randint(3, size.config.vocab_size, (size.batch, size.answer), generator=generator)
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._optimizer = torch.optim.AdamW(trained, lr=1e-5, fused=True)
        self._generator = SequenceGenerator(
            [model], model.encoder.dictionary, beam_size=4, max_len_b=size.written, min_len=size.written
        )

    def loss(self) -> Tensor:
        """Negative log-likelihood, and the task sparsity loss where there are sources: equation 6."""
        scores, extra = self.module(self.texts, None, shifted(self.answers, self.size.config))
        loss = F.cross_entropy(scores.flatten(0, 1), self.answers.flatten())
        return loss + SPARSITY_WEIGHT * extra["task_sparsity"] if "task_sparsity" in extra else loss

    def prepare(self) -> None:
        self.module.train()
        self.module.zero_grad(set_to_none=True)

    def step(self) -> None:
        self.loss().backward()
        self._optimizer.step()

    def write(self) -> list[Tensor]:
        """The best answer to each text."""
        self.module.eval()
        sample = {"net_input": {"src_tokens": self.texts, "src_lengths": torch.full((len(self.texts),), 1)}}
        return [found[0]["tokens"] for found in self._generator.generate([self.module], sample)]

    @property
    def held(self) -> int:
        """Bytes of parameters, and of what trains once more for its gradient and twice for the optimizer."""
        parameters = list(self.module.parameters())
        return sum(one.numel() * one.element_size() * (4 if one.requires_grad else 1) for one in parameters)

    @property
    def trained(self) -> int:
        return sum(one.numel() for one in self.module.parameters() if one.requires_grad)


def pemt(size: Size, symbols: Dictionary, stage: str, sources: int = 0) -> PemtT5Model:
    """PEMT's T5 in either of its stages, as `--arch pemt_t5_base` is; in stage 1 without a prompt, plain LoRA."""
    options = {field.name: field.default for field in dataclasses.fields(PemtOptions)}
    options |= {"pemt_stage": stage, "adapter": LORA, "adapter_rank": RANK, "no_prompt": stage == SOURCE}
    options |= {"adapter_alpha": float(RANK), "pemt_sources": ",".join(f"{k}.pt" for k in range(sources))}
    cfg = SimpleNamespace(**options)
    words = tuple(range(3, 3 + size.prompt))
    about = Metadata("target", "", words, tuple(SourceMetadata(f"{k}", "", size.prompt) for k in range(sources)))
    plan = adapter_plan(cfg, about, size.config.d_model)
    blocks = max(size.config.num_layers, size.config.num_decoder_layers)
    model = PemtT5Model(size.config, symbols, dict.fromkeys(range(blocks), plan))
    model.finish_building(cfg, LoadedSources(about, {}))
    return model


@torch.no_grad()
def merged(model: T5Model) -> T5Model:
    """A model whose gates are fixed by its prompt, with matrices of its own, as `mtmoe merge` leaves it."""
    summary = model.eval().encoder.prompt().mean(0)
    for block in adapter_blocks(model).values():
        mixture = block.mixture
        block.fc2.weight.data = block.fc2.weight + mixture.adapters.merged(mixture.gate(summary))
        mixture.adapters = mixture.gate = mixture.recorded_weights = None
    model.encoder.gate_input = None
    return model


def systems(size: Size) -> dict[str, System]:
    """All of them, of the same backbone; in ours every adapter says something."""
    symbols, texts = dictionary(size.config), size.positions - size.prompt
    torch.manual_seed(1)
    backbone = T5Model(size.config, symbols).state_dict()
    lora = LoraConfig(r=RANK, lora_alpha=RANK, lora_dropout=0.0, target_modules=["fc2"])  # each block's second matrix
    peer = with_backbone(inject_adapter_in_model(lora, T5Model(size.config, symbols)), backbone)
    ours = with_backbone(pemt(size, symbols, SOURCE), backbone)
    _take_lora_of(peer, ours)
    mixture, to_merge = (with_backbone(pemt(size, symbols, TARGET, sources=6), backbone) for _ in range(2))
    return {
        PEER: System(peer, size.positions, size),
        OURS: System(ours, size.positions, size),
        SIX: System(mixture, texts, size),
        MERGED: System(merged(to_merge), texts, size),
    }


@torch.no_grad()
def with_backbone(model: T5Model, backbone: Mapping[str, Tensor]) -> T5Model:
    """The model with this backbone, whose tensors it holds itself where it trains them; all else is random."""
    if isinstance(model, PemtT5Model):
        model.load_state_dict(dict(backbone))
    torch.manual_seed(1)
    for name, parameter in model.named_parameters():
        plain = name.replace("fc2.base_layer", "fc2")
        if plain not in backbone:
            nn.init.normal_(parameter, std=0.02)
        else:
            parameter.data = backbone[plain].clone() if parameter.requires_grad else backbone[plain]
    return model


@torch.no_grad()
def _take_lora_of(peer: T5Model, ours: T5Model) -> None:
    """Give our LoRA the peer's matrices."""
    adapted = [module for module in peer.modules() if hasattr(module, "lora_A")]
    for block, theirs in zip(adapter_blocks(ours).values(), adapted, strict=True):
        block.mixture.adapters.down.copy_(theirs.lora_A["default"].weight.unsqueeze(0))
        block.mixture.adapters.up.copy_(theirs.lora_B["default"].weight.t().unsqueeze(0))
