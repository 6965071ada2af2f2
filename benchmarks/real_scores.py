"""Scores that a BASE gate gives in training, on any machine and without a download.

A small language model of bytes, with one expert layer, learns the sources of Python's standard library for a few
seconds. Then it goes on learning, and what its gate says of the tokens of each further step are the scores.
"""

from __future__ import annotations

import sysconfig
from collections.abc import Iterator
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import track
from torch import Tensor, nn
from torch.nn import functional as F

from fairseq_mtmoe.moe import ExpertBank, MoELayer, build_gate

WIDTH, HEADS, LAYERS = 128, 4, 2
CONTEXT = 128  # bytes
BATCH = 8  # contexts, of the steps before scores are taken
STEPS = 200  # before scores are taken
RATE = 2e-3  # of learning
CALM_STEPS, CALM_RATE = 100, 2e-4  # further ones, after which a step changes as little as in the bulk of a training
TEXT_SIZE = 4_000_000  # bytes


class RealScores:
    """A language model whose gate's scores are real: trained when made, and further with every batch of scores.

    Args:
        num_experts: N.
        seed: of the weights and the batches.
        calm: train further at a lower rate, which scores are then taken at: for what consecutive steps have in common.
    """

    def __init__(self, num_experts: int, seed: int = 1, calm: bool = False) -> None:
        torch.manual_seed(seed)
        self._text = standard_library()
        self._model = ByteModel(num_experts)
        self._optimizer = torch.optim.Adam(self._model.parameters(), lr=RATE)
        self.losses: list[float] = []
        screen = Console(stderr=True)
        what = f"training {num_experts} experts"
        steps = range(STEPS + calm * CALM_STEPS)
        for step in track(steps, what, console=screen, transient=True, disable=not screen.is_terminal):
            if step == STEPS:
                self._optimizer.param_groups[0]["lr"] = CALM_RATE
            self._step(BATCH)

    def scores(self, num_tokens: int, batches: int) -> Iterator[Tensor]:
        """The gate's scores, (T, N), in each of so many consecutive steps; `num_tokens` is a multiple of `CONTEXT`."""
        for _ in range(batches):
            self._step(num_tokens // CONTEXT)
            yield self._model.last_scores_TN

    def _step(self, contexts: int) -> None:
        start = torch.randint(len(self._text) - CONTEXT - 1, (contexts, 1))
        bytes_ = self._text[start + torch.arange(CONTEXT + 1)].long()
        loss = F.cross_entropy(self._model(bytes_[:, :-1]).flatten(0, 1), bytes_[:, 1:].flatten())
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()
        self.losses.append(loss.item())


class ByteModel(nn.Module):
    """A transformer that predicts the next byte; the last block's feed-forward layer is an expert layer."""

    def __init__(self, num_experts: int) -> None:
        super().__init__()
        self.bytes = nn.Embedding(256, WIDTH)
        self.places = nn.Embedding(CONTEXT, WIDTH)
        layer = MoELayer(build_gate("base", num_experts, WIDTH), ExpertBank(num_experts, WIDTH, 2 * WIDTH), "paper")
        dense = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.ReLU(), nn.Linear(4 * WIDTH, WIDTH))
        self.blocks = nn.ModuleList([Block(dense) for _ in range(LAYERS - 1)] + [Block(layer)])
        self.out = nn.Linear(WIDTH, 256)
        self.last_scores_TN = torch.empty(0, num_experts)
        layer.gate.register_forward_pre_hook(self._remember)

    def forward(self, bytes_: Tensor) -> Tensor:
        """Logits, (batch, places, 256), of the byte after each of (batch, places)."""
        hidden = self.bytes(bytes_) + self.places.weight[: bytes_.shape[1]]
        for block in self.blocks:
            hidden = block(hidden)
        return self.out(hidden)  # type: ignore[no-any-return]

    @torch.no_grad()
    def _remember(self, gate: nn.Module, args: tuple[Tensor, ...]) -> None:
        assert isinstance(gate.weight, Tensor)
        self.last_scores_TN = args[0].flatten(0, -2) @ gate.weight.t()


class Block(nn.Module):
    """Causal attention and a feed-forward layer, each on the normed stream."""

    def __init__(self, feed_forward: nn.Module) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])
        self.project = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.feed_forward = feed_forward

    def forward(self, hidden: Tensor) -> Tensor:
        """The residual stream, (batch, places, width), after the block."""
        heads = self.project(self.norms[0](hidden)).unflatten(2, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2).flatten(2)
        hidden = hidden + self.out(attended)
        normed = self.norms[1](hidden)
        if isinstance(self.feed_forward, MoELayer):
            return hidden + self.feed_forward(hidden, normed)  # type: ignore[no-any-return]
        return hidden + self.feed_forward(normed)  # type: ignore[no-any-return]


def standard_library() -> Tensor:
    """The first bytes of the sources of Python's standard library, (bytes,), uint8."""
    text = bytearray()
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        text += path.read_bytes()
        if len(text) >= TEXT_SIZE:
            break
    return torch.frombuffer(text, dtype=torch.uint8)[:TEXT_SIZE]
