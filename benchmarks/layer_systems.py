"""The systems that `bench_layer.py` compares: one feed-forward layer each, with the inputs that it takes in turn.

The bound is what no expert layer can be faster than: batched matrix products of the same shapes, with tokens that are
grouped already, no gate and no biases. Peers get experts of the same sizes; where they choose two experts for a token,
they do twice the work that is asked for, and their time counts half.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, distributed, nn
from torch.profiler import ProfilerActivity, profile

from fairseq_mtmoe.moe import ExpertBank, MoELayer, Routing, build_gate

NUM_TASKS = 8
SENTENCE = 32  # tokens in a row that belong to one task
SLICE = 32  # tokens that are checked
GATES = {"ours, BASE gate": "base", "ours, task gate": "task"}
DENSE = "dense"
BOUNDS = ("bare products (N,I,O)", "bare products (N,O,I)")


@dataclass(frozen=True)
class Sizes:
    """T tokens of H values, F values within an expert, on a device."""

    tokens: int
    hidden: int
    inner: int
    device: str = "cpu"

    @property
    def dtype(self) -> torch.dtype:
        return torch.float32 if self.device == "cpu" else torch.bfloat16

    def inputs(self, number: int) -> list[Tensor]:
        """Different batches of random tokens, (T, H): a layer that remembers the last one gains nothing from it."""
        return [torch.randn(self.tokens, self.hidden).to(self.device, self.dtype) for _ in range(number)]


class System:
    """A layer and its inputs; `step` is one forward and backward pass, with all gradients.

    Args:
        call: the layer's output, (T, H), for an input (T, H).
        experts_per_token: how many experts each token is meant to have.
    """

    def __init__(
        self, module: nn.Module, inputs: Sequence[Tensor], call: Callable[[Tensor], Tensor], experts_per_token: int = 1
    ) -> None:
        self.module = module
        self.call = call
        self.experts_per_token = experts_per_token
        self._inputs = inputs
        self._turn = 0
        self._gradient_TH = torch.randn(inputs[0].shape).to(inputs[0])
        self.input_TH = inputs[0]

    def prepare(self) -> None:
        """Take the next input, and free the gradients as a trainer does before each step."""
        self.input_TH = self._inputs[self._turn % len(self._inputs)].detach().requires_grad_()
        self._turn += 1
        self.module.zero_grad(set_to_none=True)

    def step(self) -> None:
        """Forward and backward: gradients of the input and of every weight."""
        self.call(self.input_TH).backward(self._gradient_TH)


class Bare(nn.Module):
    """Batched products with grouped tokens; weights are stored (N, inputs, outputs) or transposed."""

    def __init__(self, num_experts: int, sizes: Sizes, transposed: bool) -> None:
        super().__init__()
        self.transposed = transposed
        self.fc1_weight, self.fc2_weight = (
            nn.Parameter(torch.randn(num_experts, *(shape[::-1] if transposed else shape)) / shape[0] ** 0.5)
            for shape in ((sizes.hidden, sizes.inner), (sizes.inner, sizes.hidden))
        )

    def forward(self, x_TH: Tensor) -> Tensor:
        weights = (self.fc1_weight, self.fc2_weight)
        fc1_NHF, fc2_NFH = (weight.transpose(1, 2) for weight in weights) if self.transposed else weights
        x_NCH = x_TH.view(len(fc1_NHF), -1, x_TH.shape[1])
        return torch.bmm(torch.bmm(x_NCH, fc1_NHF).relu(), fc2_NFH).view_as(x_TH)


def dense_layer(sizes: Sizes) -> nn.Module:
    return nn.Sequential(nn.Linear(sizes.hidden, sizes.inner), nn.ReLU(), nn.Linear(sizes.inner, sizes.hidden))


def our_layer(name: str, num_experts: int, sizes: Sizes) -> MoELayer:
    """One of `GATES`, as it is initialised, but for gates with a say (`blend`)."""
    gate = build_gate(GATES[name], num_experts, sizes.hidden, NUM_TASKS)
    layer = MoELayer(gate, ExpertBank(num_experts, sizes.hidden, sizes.inner))
    nn.init.constant_(layer.blend, 0.5)  # at its initial 0 the gates' gradients would be zeros
    return layer


def task_ids(sizes: Sizes) -> Tensor:
    sentences = torch.randint(NUM_TASKS, (-(-sizes.tokens // SENTENCE),))
    return sentences.repeat_interleave(SENTENCE)[: sizes.tokens].to(sizes.device)


def own_systems(num_experts: int, sizes: Sizes, inputs: Sequence[Tensor]) -> dict[str, System]:
    task_T = task_ids(sizes)
    dense = dense_layer(sizes).to(sizes.device, sizes.dtype)
    found = {DENSE: System(dense, inputs, dense)}
    for name in GATES:
        layer = our_layer(name, num_experts, sizes).to(sizes.device, sizes.dtype)
        found[name] = System(layer, inputs, lambda x_TH, layer=layer: layer(x_TH, x_TH, task_ids=task_T))
    for name in BOUNDS:
        bare = Bare(num_experts, sizes, name.endswith("(N,O,I)")).to(sizes.device, sizes.dtype)
        found[name] = System(bare, inputs, bare)
    return found


def peer_systems(num_experts: int, sizes: Sizes, inputs: Sequence[Tensor]) -> dict[str, System]:
    """Expert layers of others, by name. None of their tokens is dropped, as with ours."""
    from fairscale.nn.moe import MOELayer, Top2Gate
    from transformers import NllbMoeConfig, SwitchTransformersConfig
    from transformers.models.nllb_moe.modeling_nllb_moe import NllbMoeSparseMLP
    from transformers.models.switch_transformers.modeling_switch_transformers import SwitchTransformersSparseMLP

    if not distributed.is_initialized():  # fairscale's tokens go through an exchange between processes, here of one
        distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    experts = nn.ModuleList([dense_layer(sizes) for _ in range(num_experts)])
    fairscale = MOELayer(Top2Gate(sizes.hidden, num_experts), experts)
    switch_config = SwitchTransformersConfig(
        d_model=sizes.hidden, d_ff=sizes.inner, num_experts=num_experts, expert_capacity=sizes.tokens,
        router_jitter_noise=0.0, dropout_rate=0.0, dense_act_fn="relu",
    )  # fmt: skip
    switch = SwitchTransformersSparseMLP(switch_config)
    nllb_config = NllbMoeConfig(
        d_model=sizes.hidden, num_experts=num_experts, expert_capacity=sizes.tokens, activation_dropout=0.0,
        moe_token_dropout=0.0, activation_function="relu",
    )  # fmt: skip
    nllb = NllbMoeSparseMLP(nllb_config, sizes.inner)
    # fairscale's first of three dimensions must be divisible by the number of experts.
    return {
        "fairscale, top 2": System(fairscale, inputs, lambda x_TH: fairscale(x_TH.unsqueeze(1)).squeeze(1), 2),
        "HF Switch, top 1": System(switch, inputs, lambda x_TH: switch(x_TH.unsqueeze(0)).squeeze(0), 1),
        "HF NLLB-MoE, top 2": System(nllb, inputs, lambda x_TH: nllb(x_TH.unsqueeze(0)).squeeze(0), 2),
    }


# ---- whether what is timed computes what it should ----


@torch.no_grad()
def check_in_place(system: System) -> None:
    """At full size, some tokens' outputs are those of the experts that the gate chose for them."""
    layer = system.module
    assert isinstance(layer, MoELayer) and layer.blend is not None
    seen: list[Routing] = []
    handle = layer.gate.register_forward_hook(lambda module, args, routing: seen.append(routing))
    output_TH = system.call(system.input_TH)
    handle.remove()
    routing, bank = seen[0], layer.experts
    for token in torch.linspace(0, len(output_TH) - 1, SLICE).long().tolist():
        scale = 1 + layer.blend.float() * (routing.gate_T[token] / routing.uniform_gate - 1)
        expert = int(routing.expert_T[token])
        inner_F = bank.activation(bank.fc1_weight[expert] @ system.input_TH[token] + bank.fc1_bias[expert])
        assert_near(output_TH[token], scale * (bank.fc2_weight[expert] @ inner_F + bank.fc2_bias[expert]))


@torch.no_grad()
def check_bound(system: System, num_experts: int) -> None:
    """The bare products give each group of tokens what its own weights say."""
    bare, x_TH = system.module, system.input_TH
    assert isinstance(bare, Bare)
    output_TH = bare(x_TH)
    for token in torch.linspace(0, len(x_TH) - 1, SLICE).long().tolist():
        expert = token // (len(x_TH) // num_experts)
        fc1, fc2 = bare.fc1_weight[expert], bare.fc2_weight[expert]
        if bare.transposed:
            fc1, fc2 = fc1.t(), fc2.t()
        assert_near(output_TH[token], (x_TH[token] @ fc1).relu() @ fc2)


def assert_near(found: Tensor, expected: Tensor) -> None:
    """Equal but for rounding, which bfloat16 does at every hundredth part."""
    tolerance = 1e-4 if found.dtype == torch.float32 else 5e-2
    torch.testing.assert_close(found.float(), expected.float(), rtol=tolerance, atol=tolerance)


def peak_memory(system: System) -> int:
    """Bytes that one step holds at its peak beyond its weights, their gradients and its input.

    The profiler reports what is allocated and freed. What in the end holds a weight's gradient is left out by its
    address; a copy of weights or a second gradient on the way is not.
    """
    system.prepare()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
        system.step()
    gradients = {
        value.grad.untyped_storage().data_ptr() for value in system.module.parameters() if value.grad is not None
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        found.export_chrome_trace(str(path))
        events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    changes = [event["args"] | {"ts": event["ts"]} for event in events if event.get("name") == "[memory]"]
    changes = [change for change in changes if change["Device Type"] == 0]
    changes.sort(key=lambda change: change["ts"])
    return peak([(change["Addr"], change["Bytes"]) for change in changes], gradients)


def peak(changes: list[tuple[int, int]], kept: set[int]) -> int:
    """The most bytes that are allocated at a time, by (address, bytes; negative when freed), in order of time.

    Left out: the last allocation at each of the addresses `kept`, if it is never freed; frees of what came before.
    """
    last = {address: index if size > 0 else None for index, (address, size) in enumerate(changes)}
    left_out = {last.get(address) for address in kept}
    held: dict[int, int] = {}
    most = now = 0
    for index, (address, size) in enumerate(changes):
        if size > 0 and index not in left_out:
            held[address] = size
            now += size
        elif size < 0:
            now -= held.pop(address, 0)
        most = max(most, now)
    return most
