"""Tiny translators that borrow from language pairs, without a data directory."""

import functools
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from fairseq_mtmoe.protocols import TaskDescription
from tests.helpers.models import SIZES, TASKS, dense_model, perturb, stub_task

from fairseq_mtmoe.models.pemt.config import PemtTranslationConfig  # isort: skip
from fairseq_mtmoe.models.pemt.model import PemtTranslationModel  # isort: skip

DESCRIPTION = (5, 9, 4)  # tokens
RANK = 3
_FOLDER = tempfile.TemporaryDirectory(prefix="mtmoe-pairs-")  # removed when the tests end
SOURCES = {"aa-bb": (7, 8), "aa-cc": (6, 6, 10, 11)}  # tokens of their descriptions, by their names


def describing_task(
    name: str = "aa-dd", tokens: tuple[int, ...] = DESCRIPTION, symbols: int = 20, language_symbols: int = 0
) -> SimpleNamespace:
    description = TaskDescription(name, f"what {name} is", tokens, language_symbols=language_symbols)
    return SimpleNamespace(**vars(stub_task(symbols)), described=lambda: description)


def pemt_model(seed: int = 1, task: Any = None, **options: Any) -> PemtTranslationModel:
    """A 2+2-block translator with adapters, before it gets its translator's weights."""
    torch.manual_seed(seed)
    settings = {"adapter_rank": RANK, **_with_tasks(options)}
    return PemtTranslationModel.build_model(PemtTranslationConfig(**settings), task or describing_task()).eval()


def _with_tasks(options: dict[str, Any]) -> dict[str, Any]:
    return {**SIZES, **({"task_names": ",".join(TASKS)} if "conditional" in options else {}), **options}


def translator(**options: Any) -> nn.Module:
    """The dense translator whose weights all models here begin with."""
    dense = dense_model(2, **_with_tasks(options))
    perturb(dense)
    return dense


def write_sources(
    folder: Path, adapter: str = "lora", prompt: bool = True, seed: int = 1, **options: Any
) -> list[Path]:
    """The files of sources whose adapters and prompts are at random."""
    for index, (name, tokens) in enumerate(SOURCES.items()):
        task = describing_task(name, tokens)
        model = pemt_model(seed, task, pemt_stage="source", adapter=adapter, no_prompt=not prompt, **options)
        model.load_state_dict(translator(**options).state_dict())
        generator = torch.Generator().manual_seed(len(SOURCES) * (seed - 1) + index)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.requires_grad:
                    parameter += 0.3 * torch.randn(parameter.shape, generator=generator)
        model.export_source(str(folder))
    return [folder / f"{name}.pt" for name in SOURCES]


@functools.cache
def _sources(adapter: str, no_prompt: bool, seed: int) -> str:
    folder = Path(tempfile.mkdtemp(dir=_FOLDER.name))
    return ",".join(map(str, write_sources(folder, adapter, not no_prompt, seed)))


def begun_target(seed: int = 1, **options: Any) -> PemtTranslationModel:
    """A new model of stage 2 on `SOURCES`, which the seed draws, too: how fast it learns depends on them most."""
    files = _sources(options.get("adapter", "lora"), options.get("no_prompt", False), seed)
    model = pemt_model(seed, pemt_sources=files, **options)
    model.load_state_dict(translator().state_dict())
    return model


def begun_source(seed: int = 1, **options: Any) -> PemtTranslationModel:
    model = pemt_model(seed, pemt_stage="source", **options)
    model.load_state_dict(translator().state_dict())
    return model


def target_model(folder: Path, seed: int = 1, **options: Any) -> PemtTranslationModel:
    """A model of stage 2 on these sources, whose gates and adapters are no longer at their beginning."""
    written = {
        name: options[name] for name in ("adapter", "conditional", "encoder_normalize_before") if name in options
    }
    files = write_sources(folder, prompt=not options.get("no_prompt", False), **written)
    model = pemt_model(seed, pemt_sources=",".join(map(str, files)), **options)
    model.load_state_dict(translator(**{k: v for k, v in written.items() if k != "adapter"}).state_dict())
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".mixture." in name and parameter.requires_grad:
                parameter += 0.3 * torch.randn(parameter.shape, generator=generator)
    return model
