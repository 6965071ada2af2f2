"""Tiny T5s that learn source tasks or borrow from them, built as fairseq builds them."""

from __future__ import annotations

import dataclasses
import functools
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch
from fairseq.data import Dictionary
from torch import Tensor

from fairseq_mtmoe import register
from fairseq_mtmoe.backbones.t5.config import T5Config
from fairseq_mtmoe.backbones.t5.model import shifted
from fairseq_mtmoe.backbones.t5.pretrained import PretrainedT5
from fairseq_mtmoe.protocols import TaskDescription
from tests.helpers.bert import perturb
from tests.helpers.t5 import TINY, dictionary, pretrained, texts

register()

from fairseq_mtmoe.models.pemt.config import BOTTLENECK, PemtT5Config  # noqa: E402
from fairseq_mtmoe.models.pemt.model import PemtT5Model  # noqa: E402
from fairseq_mtmoe.models.pemt.sources import PROMPT, Source  # noqa: E402

DESCRIPTIONS = {"aa": (5, 6, 7), "bb": (8, 9, 10, 11), "cc": (12, 13, 14)}  # tokens, by a task's name
AnyModule = TypeVar("AnyModule", bound=torch.nn.Module)
SOURCES, TARGET = ("aa", "bb"), "cc"
_FOLDER = tempfile.TemporaryDirectory(prefix="mtmoe-sources-")  # removed when the tests end


class OneTask:
    """What models ask of `--task text_to_text`.

    Args:
        name: among `DESCRIPTIONS`.
        t5: that a new model begins with; none: it gets a checkpoint's weights.
    """

    def __init__(self, name: str = TARGET, t5: PretrainedT5 | None = None, config: T5Config = TINY) -> None:
        self.name, self.pretrained = name, t5
        self.target_dictionary: Dictionary = dictionary(config)

    def described(self) -> TaskDescription:
        return TaskDescription(self.name, f"Say {self.name}.", DESCRIPTIONS[self.name], self.name in SOURCES)


def pemt_options(config: T5Config = TINY, **options: Any) -> PemtT5Config:
    """The options of a tiny model; those of a checkpoint have `pemt`, too."""
    given = dict(adapter_rank=3, dropout=0.0, t5=json.dumps(dataclasses.asdict(config)), **options)
    scale = {} if options.get("adapter") == BOTTLENECK else {"adapter_alpha": 6.0}
    return PemtT5Config(**{**scale, **given})


def pemt_model(seed: int = 1, name: str = TARGET, config: T5Config = TINY, **options: Any) -> PemtT5Model:
    """A new model in evaluation mode, whose T5 is always the same."""
    task = OneTask(name, pretrained(config), config)
    torch.manual_seed(seed)
    return PemtT5Model.build_model(pemt_options(config, **options), task).eval()


def source_model(name: str, make: Callable[..., Any] = pemt_model, **options: Any) -> Any:
    """One that has learnt something as a source, in evaluation mode; `make` is `pemt_model` of any backbone."""
    model = make(SOURCES.index(name) + 5, name, pemt_stage="source", **options)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter in trained:
        parameter.data += 0.3 * torch.randn_like(parameter)
    return model


def source_files(
    adapter: str = "lora", no_prompt: bool = False, make: Callable[..., Any] = pemt_model
) -> tuple[str, ...]:
    return _made_files(adapter, no_prompt, make)


@functools.cache
def _made_files(adapter: str, no_prompt: bool, make: Callable[..., Any]) -> tuple[str, ...]:
    folder = Path(tempfile.mkdtemp(dir=_FOLDER.name))
    for name in SOURCES:
        source_model(name, make, adapter=adapter, no_prompt=no_prompt).export_source(str(folder))
    return tuple(str(folder / f"{name}.pt") for name in SOURCES)


def target_model(seed: int = 1, make: Callable[..., Any] = pemt_model, **options: Any) -> Any:
    """One that borrows from `SOURCES`, in evaluation mode; by default as the paper says."""
    kinds = {name: options[name] for name in ("adapter", "no_prompt") if name in options}
    return make(seed, pemt_sources=",".join(source_files(**kinds, make=make)), **options)


def adapters_of(source: Source) -> dict[str, Tensor]:
    return {name: value for name, value in source.tensors.items() if name != PROMPT}


def perturbed(model: AnyModule) -> AnyModule:
    """The same with parameters that matter, gates and target adapters among them."""
    perturb(model)
    return model


def inputs(config: T5Config = TINY) -> dict[str, Any]:
    target = texts((5, 3, 2), seed=4, config=config)
    return {"src_tokens": texts(config=config), "src_lengths": None, "prev_output_tokens": shifted(target, config)}
