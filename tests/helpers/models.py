"""Tiny models and batches, without a data directory."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from fairseq.data import Dictionary
from fairseq.models.transformer import TransformerModelBase
from torch import Tensor

from fairseq_mtmoe import register
from fairseq_mtmoe.core.transformer_options import nested_options
from fairseq_mtmoe.moe import remember_prices, running_prices
from tests.helpers.bert import AnyModule

register()

from fairseq_mtmoe.translation.base_sparse import BaseDenseModel, BaseMoEModel  # noqa: E402
from fairseq_mtmoe.translation.base_sparse.model import BaseMoEConfig, DenseConfig  # noqa: E402

TASKS = ("aa", "bb", "cc")
SIZES: dict[str, Any] = dict(
    encoder_embed_dim=16, encoder_ffn_embed_dim=24, encoder_attention_heads=2, encoder_layers=2,
    decoder_embed_dim=16, decoder_ffn_embed_dim=24, decoder_attention_heads=2, decoder_layers=2,
    decoder_input_dim=16, decoder_output_dim=16, share_all_embeddings=True, dropout=0.0,
)  # fmt: skip

# What pretrained translators have that the sizes above have not.
MARIAN: dict[str, Any] = dict(activation_fn="swish", sinusoids="marian", output_bias=True, decoder_begins_with_pad=True)
MBART: dict[str, Any] = dict(
    activation_fn="gelu", encoder_normalize_before=True, decoder_normalize_before=True, encoder_learned_pos=True,
    decoder_learned_pos=True, layernorm_embedding=True,
)  # fmt: skip


def stub_task(symbols: int = 20) -> SimpleNamespace:
    """What fairseq's `build_model` asks of a task."""
    dictionary = Dictionary()
    for index in range(symbols):
        dictionary.add_symbol(f"s{index}")
    return SimpleNamespace(source_dictionary=dictionary, target_dictionary=dictionary)


def moe_model(seed: int = 1, **options: Any) -> BaseMoEModel:
    """A 2+2-block sparse model in evaluation mode; its second blocks have 4 experts."""
    torch.manual_seed(seed)
    settings = {"num_experts": 4, "task_names": ",".join(TASKS), **SIZES, **options}
    return BaseMoEModel.build_model(BaseMoEConfig(**settings), stub_task()).eval()


def dense_model(seed: int = 1, **options: Any) -> BaseDenseModel:
    torch.manual_seed(seed)
    return BaseDenseModel.build_model(DenseConfig(**{**SIZES, **options}), stub_task()).eval()


def stock_model(seed: int = 1, **options: Any) -> TransformerModelBase:
    torch.manual_seed(seed)
    cfg = nested_options(DenseConfig(**{**SIZES, **options}))
    return TransformerModelBase.build_model(cfg, stub_task()).eval()


def pair(ours: Callable[..., Any] = dense_model, **options: Any) -> tuple[Any, TransformerModelBase]:
    """Our model with the weights of fairseq's, and fairseq's."""
    model, stock = ours(2, **options), perturb(stock_model(**options))
    model.load_state_dict(stock.state_dict())
    return model, stock


def batch(task_ids: bool = True, pad: bool = True) -> dict[str, Tensor]:
    """Four sentences of three tasks as a `net_input`: sources padded on the left, targets on the right."""
    generator = torch.Generator().manual_seed(3)
    source = torch.randint(4, 24, (4, 7), generator=generator)
    target = torch.randint(4, 24, (4, 6), generator=generator)
    if pad:
        source[1, :2] = source[2, :3] = 1
        target[1, 4:] = target[3, 5:] = 1
    net_input = {"src_tokens": source, "src_lengths": source.ne(1).sum(1), "prev_output_tokens": target}
    if task_ids:
        net_input["task_ids"] = torch.tensor([0, 1, 2, 1])
    return net_input


def perturb(model: AnyModule, scale: float = 0.3) -> AnyModule:
    """The model, all of whose parameters now differ: experts from each other, gates and prices from zero."""
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += scale * torch.randn(parameter.shape, generator=generator)
    for prices in running_prices(model):
        prices.record(scale * torch.randn(prices.total.shape, generator=generator), torch.ones(()))
    remember_prices(running_prices(model))
    return model
