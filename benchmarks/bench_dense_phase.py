"""What a training step costs before and after the switch, against stock fairseq's dense transformer.

    python benchmarks/bench_dense_phase.py --repetitions 30

All models take the same batch in turn, forward and backward, on processor time; the ratio is to the stock model's step
of the same turn. Before anything is timed, the dense phase must give stock fairseq's outputs.
"""

from __future__ import annotations

import platform
import statistics
import time
from types import SimpleNamespace
from typing import Any

import click
import torch
from fairseq.data import Dictionary
from fairseq.models.transformer import TransformerModelBase
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from fairseq_mtmoe import register

register()

from fairseq_mtmoe.models._common.flat_options import nested_options  # noqa: E402
from fairseq_mtmoe.models.base_sparse import BaseMoEModel  # noqa: E402
from fairseq_mtmoe.models.base_sparse.config import BaseMoEConfig, DenseConfig  # noqa: E402


def task(symbols: int) -> SimpleNamespace:
    """What building a model needs of a task."""
    dictionary = Dictionary()
    for index in range(symbols):
        dictionary.add_symbol(str(index))
    return SimpleNamespace(source_dictionary=dictionary, target_dictionary=dictionary)


def models(width: int, layers: int, num_experts: int, symbols: int) -> dict[str, nn.Module]:
    """Stock fairseq, ours while dense, and ours after the switch, with the same weights."""
    sizes: dict[str, Any] = {"share_all_embeddings": True, "dropout": 0.1}
    for side in ("encoder", "decoder"):
        sizes |= {f"{side}_embed_dim": width, f"{side}_ffn_embed_dim": 4 * width, f"{side}_layers": layers}
        sizes |= {f"{side}_attention_heads": 4, f"{side}_normalize_before": True}
    sizes |= {"decoder_input_dim": width, "decoder_output_dim": width}
    stock = TransformerModelBase.build_model(nested_options(DenseConfig(**sizes)), task(symbols))
    built: dict[str, nn.Module] = {"stock fairseq": stock}
    for name in ("dense phase", "sparse"):
        cfg = BaseMoEConfig(**sizes, num_experts=num_experts, dense_updates=1)
        built[name] = BaseMoEModel.build_model(cfg, task(symbols))
        built[name].load_state_dict(stock.state_dict())
    built["sparse"].sparsify()
    return built


def step(model: nn.Module, net_input: dict[str, Tensor]) -> float:
    """Processor seconds of one forward and backward pass."""
    model.zero_grad()
    start = time.process_time()
    model(**net_input)[0].float().logsumexp(-1).mean().backward()
    return time.process_time() - start


@click.command(context_settings={"show_default": True})
@click.option("--width", default=256)
@click.option("--layers", default=4)
@click.option("--num-experts", default=8)
@click.option("--sentences", default=64)
@click.option("--length", default=24)
@click.option("--repetitions", default=30)
def main(width: int, layers: int, num_experts: int, sentences: int, length: int, repetitions: int) -> None:
    """Print each model's step time and its ratio to stock fairseq's."""
    torch.manual_seed(1)
    torch.set_num_threads(1)
    symbols = 4000
    built = models(width, layers, num_experts, symbols)
    tokens = torch.randint(4, symbols, (2, sentences, length))
    net_input = {
        "src_tokens": tokens[0],
        "src_lengths": torch.full((sentences,), length),
        "prev_output_tokens": tokens[1],
    }
    outputs = {name: model.eval()(**net_input)[0] for name, model in built.items()}
    assert torch.equal(outputs["dense phase"], outputs["stock fairseq"])
    torch.testing.assert_close(outputs["sparse"], outputs["stock fairseq"], rtol=1e-4, atol=1e-4)
    times: dict[str, list[float]] = {name: [] for name in built}
    for repetition in range(repetitions + 2):
        for name, model in built.items():
            seconds = step(model.train(), net_input)
            if repetition >= 2:  # the first two warm up
                times[name].append(seconds)
    table = Table("model", "median step (s)", "ratio to stock fairseq", "quartiles of the ratio")
    for name, seconds in times.items():
        ratios = [own / stock for own, stock in zip(seconds, times["stock fairseq"], strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        table.add_row(name, f"{statistics.median(seconds):.3f}", f"{middle:.3f}", f"{low:.3f}-{high:.3f}")
    Console(width=110).print(table)
    print(f"{sentences * length} source and target tokens, {layers}+{layers} blocks of {width}, {num_experts} experts; "
          f"{platform.processor() or platform.machine()}, one thread, torch {torch.__version__}")  # fmt: skip


if __name__ == "__main__":
    main()
