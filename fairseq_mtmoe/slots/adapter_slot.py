"""A feed-forward layer with source adapters and a target adapter of PEMT.

§3.1 and §3.2 of the paper. A gate weights several source adapters. The block's module `mixture`
contains `adapters`, `gate` and `target_adapter`.
"""

from dataclasses import dataclass

from torch import Tensor, nn

from fairseq_mtmoe.moe.adapters import LORA, AdapterBank, BottleneckBank, LoraBank
from fairseq_mtmoe.moe.mixture import AdapterMixture, MixtureGate, TargetAdapter
from fairseq_mtmoe.slots.slot import BatchContext, Block


@dataclass(frozen=True)
class AdapterPlan:
    """The adapters of one block's feed-forward layer."""

    kind: str  # `lora` or `bottleneck`
    rank: int
    num_adapters: int = 1  # K; 0: only a target adapter
    alpha: float = 64.0  # LoRA outputs are scaled by alpha/rank
    # Width d of the gate's input; None: no gate, all adapters have weight 1
    summary_size: int | None = None
    target_size: int | None = None  # inner width of the target adapter; None: no target adapter

    def fill(self, block: Block) -> None:
        """Add the adapters to a block, with its feed-forward layer's device and dtype."""
        weight = block.fc2.weight
        K = self.num_adapters
        adapters = self._adapters(block) if K else None
        gate = MixtureGate(K, self.summary_size) if self.summary_size is not None else None
        target = None if self.target_size is None else TargetAdapter(len(weight), self.target_size)
        block.mixture = AdapterMixture(adapters, gate, target).to(weight).train(block.training)
        block.slot = adapted

    def _adapters(self, block: Block) -> AdapterBank:
        H, F = block.fc2.weight.shape
        if self.kind == LORA:
            return LoraBank(self.num_adapters, F, H, self.rank, self.alpha / self.rank)
        return BottleneckBank(self.num_adapters, block.fc1.in_features, H, self.rank)


def adapted(block: Block, hidden: Tensor, branch_input: Tensor, context: BatchContext) -> Tensor:
    """Compute a feed-forward layer with adapters; see `Slot`."""
    mixture = block.mixture
    adapter_pass = context.adapter_pass
    inner = block.inner(branch_input)
    branch: Tensor = block.fc2(inner)
    if mixture.adapters is not None:
        read = inner if mixture.adapters.reads_inner else branch_input
        narrow = mixture.adapters.narrow(read)
        weights = None
        if mixture.gate is not None:
            assert adapter_pass is not None, "a gate reads the pass's summary"
            assert mixture.recorded_weights is not None
            # False for later words in incremental decoding
            is_new = block not in adapter_pass.weights
            weights = adapter_pass.weights_of(block, mixture.gate, branch_input)
            if is_new:
                mixture.recorded_weights.record(weights)
            weights = adapter_pass.expand_to_beam(weights)
            if adapter_pass.wants_similarities:
                adapter_pass.narrow[block] = narrow
        branch = mixture.adapters.widen(narrow, weights, branch)
    if mixture.target_adapter is not None:
        branch = mixture.target_adapter(branch)
    return branch


def adapter_blocks(model: nn.Module) -> dict[str, Block]:
    """Return the blocks with adapters by dotted path: `encoder.layers.0`, …"""
    return {
        path: block
        for path, block in model.named_modules()
        if isinstance(block, Block) and block.slot is adapted
    }
