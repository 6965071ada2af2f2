"""Tiny models of each backbone that learn source tasks or borrow from them, built as fairseq builds them."""

from __future__ import annotations

import dataclasses
import functools
import json
import tempfile
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from fairseq_mtmoe.core.protocols import TaskDescription, TrainingTask
from fairseq_mtmoe.moe.adapters import BOTTLENECK
from fairseq_mtmoe.nlu.bert.config import EncoderConfig
from fairseq_mtmoe.nlu.bert.model import note_sizes
from fairseq_mtmoe.nlu.bert.pretrained import PretrainedEncoder
from fairseq_mtmoe.nlu.t5.config import T5Config
from fairseq_mtmoe.nlu.t5.model import shifted
from fairseq_mtmoe.nlu.t5.pretrained import PretrainedT5
from tests.helpers import bert, encoders
from tests.helpers.encoders import NO_DROPOUT, all_numbers, task_batch
from tests.helpers.models import MARIAN, MBART, SIZES, TASKS, batch, dense_model, perturb, stub_task
from tests.helpers.t5 import TINY, dictionary, pretrained, texts

from fairseq_mtmoe.pemt.config import PemtBertConfig, PemtT5Config, PemtTranslationConfig  # isort: skip
from fairseq_mtmoe.pemt.model import PemtBertModel, PemtT5Model, PemtTranslationModel  # isort: skip
from fairseq_mtmoe.pemt.sources import PROMPT, Source  # isort: skip

DESCRIPTIONS = {"aa": (5, 6, 7), "bb": (8, 9, 10, 11), "cc": (12, 13, 14)}  # tokens, by a task's name
SOURCES, TARGET = ("aa", "bb"), "cc"
RANK = 3
_FOLDERS: list[tempfile.TemporaryDirectory[str]] = []  # made when needed, removed when the tests end
_OF_BACKBONES = ("config", "conditional", *MARIAN, *MBART)  # that sources share with their target


def described(name: str, is_source: bool | None = None, language_symbols: int = 0) -> TaskDescription:
    return TaskDescription(name, f"Say {name}.", DESCRIPTIONS[name], is_source, language_symbols)


class DescribedTask(TrainingTask):
    """A task with a description and other attributes."""

    def __init__(self, about: TaskDescription, **attributes: Any) -> None:
        self._about = about
        vars(self).update(attributes)

    def described(self) -> TaskDescription:
        return self._about


def text_task(name: str = TARGET, t5: PretrainedT5 | None = None, config: T5Config = TINY) -> DescribedTask:
    """What models ask of `--task text_to_text`; `t5` is that with which a new model begins."""
    return DescribedTask(described(name, name in SOURCES), pretrained=t5, target_dictionary=dictionary(config))


def _given(**options: Any) -> dict[str, Any]:
    scale = {} if options.get("adapter") == BOTTLENECK else {"adapter_alpha": 6.0}
    return {"adapter_rank": RANK, **scale, **options}


def pemt_options(config: T5Config = TINY, **options: Any) -> PemtT5Config:
    """The options of a tiny T5; those of a checkpoint have `pemt`, too."""
    return PemtT5Config(**_given(dropout=0.0, t5=json.dumps(dataclasses.asdict(config)), **options))


def bert_options(config: EncoderConfig = bert.TINY, **options: Any) -> PemtBertConfig:
    cfg = PemtBertConfig(**_given(**NO_DROPOUT, **options))
    note_sizes(cfg, config, encoders.HEADS)
    return cfg


def translation_options(**options: Any) -> PemtTranslationConfig:
    return PemtTranslationConfig(**_given(**_sizes(options)))


def _sizes(options: dict[str, Any]) -> dict[str, Any]:
    return {**SIZES, **({"task_names": ",".join(TASKS)} if "conditional" in options else {}), **options}


def pemt_model(seed: int = 1, name: str = TARGET, config: T5Config = TINY, **options: Any) -> PemtT5Model:
    """A new model in evaluation mode, whose T5 is always the same."""
    task = text_task(name, pretrained(config), config)
    torch.manual_seed(seed)
    return PemtT5Model.build_model(pemt_options(config, **options), task).eval()


def pemt_encoder(
    seed: int = 1, name: str = TARGET, config: EncoderConfig = bert.TINY, state: dict[str, Tensor] | None = None,
    **options: Any,
) -> PemtBertModel:  # fmt: skip
    """A new model in evaluation mode, whose encoder is always the same, or of this state."""
    encoder = bert.pretrained(config) if state is None else PretrainedEncoder(config, {}, state)
    task = DescribedTask(described(name), pretrained=encoder, begins_with_checkpoint=False)
    torch.manual_seed(seed)
    return PemtBertModel.build_model(bert_options(config, **options), task).eval()


def pemt_translator(
    seed: int = 1, name: str = TARGET, state: dict[str, Tensor] | None = None, symbols: int = 20,
    language_symbols: int = 0, **options: Any,
) -> PemtTranslationModel:  # fmt: skip
    """A new 2+2-block model in evaluation mode, whose translator is always the same, or of this state."""
    about = described(name, language_symbols=language_symbols)
    task = DescribedTask(about, **vars(stub_task(symbols)))
    torch.manual_seed(seed)
    model = PemtTranslationModel.build_model(translation_options(**options), task).eval()
    model.load_state_dict(translator(**options).state_dict() if state is None else state)
    return model


def translator(**options: Any) -> nn.Module:
    """The dense translator whose weights those with such options begin with."""
    return perturb(dense_model(2, **_sizes({name: options[name] for name in _OF_BACKBONES if name in options})))


@dataclasses.dataclass(frozen=True, eq=False)
class Backbone:
    """How models of a backbone are made, made again of a checkpoint's options, and what they say."""

    name: str
    make: Callable[..., Any]
    options: Callable[..., Any]
    model: Any
    task: Any
    says: Callable[[Any], tuple[Tensor, dict[str, Any]]]

    def kept_options(self, model: Any, **options: Any) -> dict[str, Any]:
        """What a checkpoint says of a model that was made with these options, and whose sources' files are gone."""
        noted = {"pemt": model.noted_options["pemt"], "pemt_sources": "gone.pt" * bool(model.source_names)}
        return dataclasses.asdict(self.options(**options, **noted))

    def made_again(self, kept_options: dict[str, Any]) -> Any:
        cfg = type(self.options())(**kept_options)
        return self.model.build_model(cfg, self.task).eval()


def _numbers_of_heads(model: PemtBertModel) -> tuple[Tensor, dict[str, Any]]:
    outputs = model(**task_batch())
    return all_numbers({task: outputs[task] for task in model.heads}), outputs


T5 = Backbone("t5", pemt_model, pemt_options, PemtT5Model, text_task(), lambda model: model(**inputs()))
BERT = Backbone(
    "bert", pemt_encoder, bert_options, PemtBertModel, SimpleNamespace(pretrained=None), _numbers_of_heads
)  # fmt: skip
TRANSLATION = Backbone(
    "translation", pemt_translator, translation_options, PemtTranslationModel, stub_task(),
    lambda model: model(**batch(task_ids=bool(model.task_names)))[:2],
)  # fmt: skip
BACKBONES = (T5, BERT, TRANSLATION)


def source_model(name: str, make: Callable[..., Any] = pemt_model, **options: Any) -> Any:
    """One that has learnt something as a source, in evaluation mode; `make` is `pemt_model` of any backbone."""
    model = make(SOURCES.index(name) + 5, name, pemt_stage="source", **options)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter in trained:
        parameter.data += 0.3 * torch.randn_like(parameter)
    return model


@functools.cache
def source_files(make: Callable[..., Any] = pemt_model, **options: Any) -> tuple[str, ...]:
    folder = tempfile.TemporaryDirectory(prefix="mtmoe-sources-")
    _FOLDERS.append(folder)
    return tuple(str(source_model(name, make, **options).export_source(folder.name)) for name in SOURCES)


def target_model(seed: int = 1, make: Callable[..., Any] = pemt_model, **options: Any) -> Any:
    """One that borrows from `SOURCES`, in evaluation mode; by default as the paper says."""
    kinds = {name: options[name] for name in ("adapter", "no_prompt", *_OF_BACKBONES) if name in options}
    return make(seed, pemt_sources=",".join(source_files(make, **kinds)), **options)


def adapters_of(source: Source) -> dict[str, Tensor]:
    return {name: value for name, value in source.tensors.items() if name != PROMPT}


def inputs() -> dict[str, Any]:
    target = texts((5, 3, 2), seed=4)
    return {"src_tokens": texts(), "src_lengths": None, "prev_output_tokens": shifted(target, TINY)}
