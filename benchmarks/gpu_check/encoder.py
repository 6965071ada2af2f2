"""Part `encoder`: BERT's encoder, dense and with experts: right, waiting for nothing, and how fast.

Right means: what a CPU computes in float32. Experts that are copies of a feed-forward layer give what it gives, and
their gradients in sum are its own, whichever expert a token has: so rounding that changes a gate's mind changes nothing
here. (Part `reference` has experts that differ.) Where transformers is there, Hugging Face's model of the same weights
is another one to compare with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import product
from statistics import median
from typing import Any

import torch
from timing import Ratio, interleaved
from torch import Tensor, nn

from fairseq_mtmoe.backbones.bert.config import BERT, BERT_BASE, MINILM, ROBERTA, EncoderConfig
from fairseq_mtmoe.backbones.bert.encoder import BertEncoder
from fairseq_mtmoe.backbones.bert.key_map import our_key
from fairseq_mtmoe.moe.gates import BaseGate, SwitchGate, TaskGate
from fairseq_mtmoe.slots import ExpertPlan, expert_slots
from gpu_check.device import DTYPES, free, peak_bytes, short
from gpu_check.reference import difference
from gpu_check.rows import Check, Row, Setting, Skipped, measured, passed
from gpu_check.waits import waits_for_nothing, waits_of

DENSE = "dense"
GATES = {"task": TaskGate, "switch": SwitchGate, "base": BaseGate}
KINDS = (DENSE, *GATES)
EXPERTS, TASKS = 4, 8  # MT-TaG's, and GLUE's without WNLI
SMALL = EncoderConfig(
    vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
    max_position_embeddings=40, layer_norm_eps=1e-5, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
)  # fmt: skip
CONFIGS = {BERT: SMALL, ROBERTA: replace(SMALL, model_type=ROBERTA, pad_token_id=1, type_vocab_size=1)}
SPEEDS = (("MiniLM", MINILM, 32), ("MiniLM", MINILM, 256), ("BERT base", BERT_BASE, 32), ("BERT base", BERT_BASE, 256))
TOY_SPEEDS = (("tiny", SMALL, 4),)
LENGTHS, TOY_LENGTHS = (32, 128), (5, 12)  # shortest and longest sentence
REPETITIONS, WARMUPS = 11, 3


def checks(setting: Setting) -> Iterator[Check]:
    for dtype, kind in product(DTYPES, KINDS):
        for model_type in (BERT, ROBERTA) if kind == DENSE else (BERT,):
            name = f"{model_type}, {kind}, {short(dtype)}"
            yield Check(name, partial(is_a_cpus, setting, name, model_type, kind, dtype))
    yield Check("Hugging Face's", partial(is_hugging_faces, setting))
    for kind, dtype in product(KINDS, DTYPES):
        name = f"waits, {kind}, {short(dtype)}, a training pass"
        yield Check(name, partial(pass_waits, setting, name, kind, dtype))
    for title, config, batch_size in TOY_SPEEDS if setting.toy else SPEEDS:
        yield Check(f"{title}, {batch_size} sentences", partial(compared, setting, title, config, batch_size))


def encoder_of(kind: str, config: EncoderConfig, seed: int = 0) -> BertEncoder:
    """A dense encoder, or one whose experts are copies of its feed-forward layers; the weights are the seed's."""
    torch.manual_seed(seed)
    plans = {}
    if kind != DENSE:
        plan = ExpertPlan(GATES[kind], EXPERTS, "preserving", TASKS, starts_dense=True)
        plans = dict.fromkeys(range(config.num_hidden_layers), plan)
    encoder = BertEncoder(config, plans)
    with torch.no_grad():
        for parameter in encoder.parameters():  # biases and norms matter, too
            parameter += 0.05 * torch.randn(parameter.shape)
    for path, slot in expert_slots(encoder).items():
        slot.sparsify(encoder.get_submodule(path))
    return encoder


def batch_of(config: EncoderConfig, lengths: Tensor) -> dict[str, Tensor]:
    shape = (len(lengths), int(lengths.max()))
    padding = torch.arange(shape[1]) >= lengths.unsqueeze(1)
    tokens = torch.randint(config.pad_token_id + 1, config.vocab_size, shape)
    return {
        "tokens": tokens.masked_fill(padding, config.pad_token_id),
        "token_type_ids": torch.randint(config.type_vocab_size, shape),
        "padding_mask": padding,
        "task_ids": torch.arange(len(lengths)) % TASKS,
    }


def moved(setting: Setting, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.to(setting.device) for name, value in inputs.items()}


# ---- numbers ----


def is_a_cpus(setting: Setting, name: str, model_type: str, kind: str, dtype: torch.dtype) -> list[Row]:
    """States, pooled states, and every gradient."""
    config = CONFIGS[model_type]
    right_encoder = encoder_of(DENSE, config).to(dtype).float()
    encoder = encoder_of(kind, config).to(dtype)
    torch.manual_seed(1)
    inputs = batch_of(config, torch.tensor([9, 4, 12, 1]))
    right = results(right_encoder, inputs)
    found = as_dense(results(encoder.to(setting.device), moved(setting, inputs)))
    return [passed(name, f"largest difference {apart(found, right, dtype):.1e} of the largest value")]


def results(encoder: nn.Module, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """States and pooled states, and all gradients of a loss to which each of their numbers contributes."""
    encoded = encoder(**inputs)
    loss = torch.zeros((), device=encoded.hidden.device)
    for value in (encoded.hidden, encoded.pooled):
        loss = loss + (value.float() * torch.arange(value.numel(), device=value.device).view_as(value).sin()).sum()
    loss.backward()
    gradients = {name: parameter.grad for name, parameter in encoder.named_parameters() if parameter.grad is not None}
    return {"states": encoded.hidden.detach(), "pooled states": encoded.pooled.detach(), **gradients}


def as_dense(found: dict[str, Tensor]) -> dict[str, Tensor]:
    """Gradients of copied experts as that of the layer which they are copies of; gates have none there."""
    joined = {name: value for name, value in found.items() if ".moe." not in name}
    for name, value in found.items():
        path, _, parameter = name.partition(".moe.experts.")
        if parameter:
            joined[f"{path}.{parameter.replace('_', '.')}"] = value.sum(0)
    return joined


def apart(found: dict[str, Tensor], right: dict[str, Tensor], dtype: torch.dtype) -> float:
    """The largest difference over the largest value of each; raises AssertionError where that is more than rounding."""
    assert found.keys() == right.keys(), f"gradients of {sorted(found.keys() ^ right.keys())} are on one side alone"
    worst = 0.0
    for name, value in right.items():
        # All scores of a query shift alike with the keys' bias: its gradient is 0, but for what rounding leaves.
        size = float(right[name.replace("k_proj.bias", "q_proj.bias")].abs().max())
        worst = max(worst, difference(name, found[name], value.to(dtype), dtype, size))
    return worst


def hugging_faces(config: EncoderConfig) -> Any:
    try:
        from transformers import BertConfig, BertModel
    except ImportError:
        raise Skipped("transformers cannot be imported here") from None
    sizes = config.for_hugging_face()
    del sizes["architectures"], sizes["model_type"]
    return BertModel(BertConfig(**sizes))


def is_hugging_faces(setting: Setting) -> list[Row]:
    torch.manual_seed(2)
    theirs = hugging_faces(SMALL).eval()
    ours = BertEncoder(SMALL).eval()
    ours.load_state_dict({our_key(name): value for name, value in theirs.state_dict().items()})
    inputs = moved(setting, batch_of(SMALL, torch.tensor([9, 4, 12, 1])))
    states = call_of(theirs.to(setting.device), inputs)().masked_fill(inputs["padding_mask"].unsqueeze(-1), 0)
    found = ours.to(setting.device)(**inputs).hidden
    worst = difference("states", found.detach(), states.detach().cpu(), torch.float32)
    return [passed("states are Hugging Face's", f"largest difference {worst:.1e} of the largest value")]


# ---- what the host waits for ----


def pass_waits(setting: Setting, name: str, kind: str, dtype: torch.dtype) -> list[Row]:
    config = replace(SMALL, hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1)
    encoder = encoder_of(kind, config).to(setting.device, dtype).train()
    inputs = moved(setting, batch_of(config, torch.tensor([9, 4, 12, 1])))
    work = lambda: encoder(**inputs).hidden.float().square().sum().backward()  # noqa: E731
    nothing = kind == DENSE or waits_for_nothing(setting, kind, dtype, training=True)
    return waits_of(setting, name, work, nothing, f"{config.num_hidden_layers} blocks, forward and backward")


# ---- times ----


class Pass:
    """A forward and a backward pass in training, with all gradients."""

    def __init__(self, module: nn.Module, call: Callable[[], Tensor], gradient: Tensor) -> None:
        self.module, self.call, self.gradient = module, call, gradient

    def prepare(self) -> None:
        self.module.zero_grad(set_to_none=True)

    def __call__(self) -> None:
        self.call().backward(self.gradient)


def call_of(module: nn.Module, inputs: dict[str, Tensor]) -> Callable[[], Tensor]:
    """The states (B, L, H) of a batch, by ours or Hugging Face's."""
    if isinstance(module, BertEncoder):
        return lambda: module(**inputs).hidden
    mask = (~inputs["padding_mask"]).long()
    return lambda: module(inputs["tokens"], mask, inputs["token_type_ids"]).last_hidden_state


def compared(setting: Setting, title: str, config: EncoderConfig, batch_size: int) -> list[Row]:
    """Milliseconds and memory of a pass: Hugging Face's, ours dense, and with four experts in every block."""
    dtype = torch.float32 if setting.device == "cpu" else torch.bfloat16
    torch.manual_seed(3)
    shortest, longest = TOY_LENGTHS if setting.toy else LENGTHS
    lengths = torch.randint(shortest, longest + 1, (batch_size,))
    lengths[0] = longest
    inputs = moved(setting, batch_of(config, lengths))
    modules: dict[str, nn.Module] = {kind: encoder_of(kind, config) for kind in (DENSE, "task", "switch")}
    with suppress(Skipped):  # its own check says so
        modules["Hugging Face's"] = hugging_faces(config)
    gradient = torch.randn(batch_size, longest, config.hidden_size).to(setting.device, dtype)
    works = {}
    for name, module in modules.items():
        module.to(setting.device, dtype).train()
        works[name] = Pass(module, call_of(module, inputs), gradient)
    repetitions, warmups = (2, 1) if setting.toy else (REPETITIONS, WARMUPS)
    prepare = {name: work.prepare for name, work in works.items()}
    seconds = interleaved(works, repetitions, warmups, setting.device, prepare)
    rows = []
    for name, own in seconds.items():
        what = f"{title}, {batch_size} sentences, {short(dtype)}, {name}"
        note = f"{int(lengths.sum()) / median(own):,.0f} tokens/s; {Ratio.of(own, seconds[DENSE])} of dense's time"
        rows.append(measured(what, 1000 * median(own), "ms", note))
        works[name].prepare()
        peak = peak_bytes(setting.device, works[name])
        if peak is not None:
            rows.append(measured(f"{what}: memory", peak / 2**30, "GiB", "at its peak, beyond weights; gradients too"))
        works[name].prepare()
    del modules, works, prepare
    free(setting)
    return rows
