"""The parts, in the order in which they run: the cheap ones that tell most first."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Part:
    """A module of this folder with a function `checks(setting)`.

    Attributes:
        minutes: after which it is ended; what it takes on an H200 is about a third of that.
        needs: packages without which it is skipped.
    """

    module: str
    title: str
    minutes: float
    needs: tuple[str, ...] = ()


PARTS = {
    "reference": Part("reference", "layers against moe/reference.py", 5),
    "waits": Part("waits", "what the host waits for", 3),
    "launches": Part("launching", "kernels of one expert layer, and CUDA graphs", 3),
    "layer": Part("layer", "one expert layer, forward and backward", 6),
    "products": Part("products", "products of groups of rows, way by way", 4),
    "assignment": Part("assignment", "balanced assignment", 4),
    "compile": Part("compiling", "torch.compile", 6),
    "tests": Part("unit_tests", "tests/unit/moe on the device", 7, ("pytest", "hypothesis")),
    "processes": Part("processes", "several GPUs", 4),
    "encoder": Part("encoder", "BERT's encoder", 5),
    "step": Part("step", "a training step", 7, ("fairseq",)),
    "decode": Part("decode", "generation", 6, ("fairseq",)),
    "training": Part("training", "training, resuming and translating", 7, ("fairseq",)),
    "paper": Part("paper", "the paper's architecture, some hundred updates", 7, ("fairseq",)),
    "glue": Part("glue", "a benchmark's tasks, trained together", 5, ("fairseq", "tokenizers", "sklearn")),
}
ALL_MINUTES = 25  # after which no part is begun, so that all of it ends in half an hour
