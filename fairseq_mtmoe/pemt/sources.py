"""PEMT's sources: their files, metadata in checkpoints, and loading."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Required, get_type_hints

import torch
from torch import Tensor, nn

from fairseq_mtmoe.checkpoints import file_io
from fairseq_mtmoe.checkpoints.hugging_face import check_tensors
from fairseq_mtmoe.checkpoints.key_maps import TASK_EMBEDDINGS, VOCABULARY
from fairseq_mtmoe.core import typed
from fairseq_mtmoe.core.errors import UserError, raise_invalid
from fairseq_mtmoe.core.protocols import training_task
from fairseq_mtmoe.moe.adapters import LORA
from fairseq_mtmoe.nlu.bert.heads import HEADS
from fairseq_mtmoe.pemt.config import SOURCE, check_options, has_prompt, is_added, source_paths

logger = logging.getLogger(__name__)

KIND = "pemt-source"
PROMPT = "prompt"  # the key of its tensor
MOST_VECTORS = 1 << 16  # in a prompt: options that ask for more are damaged

_NAME = re.compile(r"[A-Za-z0-9_-]+")  # a task's name, which also names its file
_Name = Annotated[str, typed.Rule("a task's name", lambda name: bool(_NAME.fullmatch(name)))]
_Count = Annotated[int, typed.between(0, MOST_VECTORS)]
_Token = Annotated[int, typed.Rule("a token", lambda token: token >= 0)]
_Tokens = Annotated[
    tuple[_Token, ...],
    typed.Rule("tokens of a sentence", lambda tokens: len(tokens) <= MOST_VECTORS),
]
_Alpha = Annotated[
    float,
    typed.Rule("a number of at least 0", lambda alpha: 0 <= alpha < float("inf")),
]


@dataclass(frozen=True)
class SourceMetadata:
    """Task, description and prompt length (0: no prompt) of a source."""

    task: str
    description: str
    length: _Count


@dataclass(frozen=True)
class Metadata:
    """A model's task and sources, as its checkpoints store them."""

    task: str  # the task that the model trains on
    description: str  # the sentence that initializes the prompt
    tokens: _Tokens  # the sentence in the model's dictionary
    sources: tuple[SourceMetadata, ...]  # in the order of the gates' weights
    # Rank of the bottleneck that `merging.py` made of the sources; 0 without one
    merged_rank: _Count = 0

    def to_text(self) -> str:
        """Return the metadata in JSON."""
        return json.dumps(asdict(self), ensure_ascii=False)

    @classmethod
    def from_text(cls, text: str) -> Metadata:
        """Return the metadata that `to_text` wrote (UserError: the text is damaged)."""
        try:
            return typed.structured(cls, json.loads(text), "pemt")
        except (TypeError, ValueError) as error:
            raise UserError(
                "`pemt` in a checkpoint's options must hold the model's task and sources, but is "
                f"{text[:80]!r}."
            ) from error


@dataclass(frozen=True)
class SourceSettings:
    """The settings that all sources of a model must share with the model."""

    backbone: str  # its `fingerprint`; empty while unknown
    adapter: str  # the value of `--adapter`
    rank: int  # of each adapter
    alpha: _Alpha  # LoRA's scale times its rank; 0 for other adapters
    has_prompt: bool

    @classmethod
    def by(cls, cfg: Any) -> SourceSettings:
        """Return the settings in a model's options, without a backbone."""
        alpha = cfg.adapter_alpha if cfg.adapter == LORA else 0.0
        return cls("", cfg.adapter, cfg.adapter_rank, alpha, has_prompt(cfg))


# The fields of a source file's header
_ABOUT = typed.mapping(
    {
        "task": Required[_Name],
        "description": Required[str],
        **get_type_hints(typed.mapping_of(SourceSettings), include_extras=True),
    }
)


@dataclass(frozen=True)
class Source:
    """The adapters and prompt that one task trained.

    `tensors` are in float32: the adapters by their names in the model, without the bank's first
    dimension, and the prompt (N, H), if the source has one.
    """

    task: _Name
    description: str  # the sentence that initialized the prompt; empty without a prompt
    made: SourceSettings
    tensors: dict[str, Tensor]

    @property
    def metadata(self) -> SourceMetadata:
        """Return the source's metadata for checkpoints."""
        return SourceMetadata(self.task, self.description, len(self.tensors.get(PROMPT, ())))

    def save(self, path: str | Path) -> None:
        """Write the file, completely or not at all."""
        about = {"task": self.task, "description": self.description, **asdict(self.made)}
        file_io.save({KIND: about, "model": self.tensors}, str(path))


def load(path: str | Path) -> Source:
    """Read a file of `Source.save`.

    Raises `UserError`: the file is missing, damaged or of another kind.
    """
    rule = f"`{path}` must be a source file, which `--pemt-stage source` writes as TASK.pt"
    if not os.path.lexists(path):
        raise UserError(f"`{path}` does not exist: `--pemt-stage source` writes it as TASK.pt.")
    content = file_io.load(
        str(path), mapped=True, remedy="write it again with a run of `--pemt-stage source`"
    )
    about = content.get(KIND)
    tensors = content.get("model")
    if not isinstance(about, dict) or not isinstance(tensors, dict):
        raise UserError(f"{rule}, but is a file of another kind.")
    fault = typed.fault(about, _ABOUT)
    if fault is not None:
        raise UserError(
            f"`{path}` must state the `{fault.path}` of its source, but states {fault.value}."
        )
    if about["has_prompt"] and (PROMPT not in tensors or tensors[PROMPT].dim() != 2):
        raise UserError(f"`{path}` has no `{PROMPT}` of 2 dimensions: it is damaged.")
    made = SourceSettings(**{field.name: about[field.name] for field in fields(SourceSettings)})
    return Source(about["task"], about["description"], made, tensors)


def expect_same(path: str, made: SourceSettings, wanted: SourceSettings) -> None:
    """Raise a `UserError` if a source does not fit a model.

    The model's backbone may be unknown.
    """
    if wanted.backbone and made.backbone != wanted.backbone:
        raise UserError(
            f"`{path}` must be a source that was trained on the weights from which this run "
            f"starts, but its backbone is another: its fingerprint is {made.backbone[:12]}…, "
            f"this run's is {wanted.backbone[:12]}…."
        )
    for name, option in (
        ("adapter", "--adapter"),
        ("rank", "--adapter-rank"),
        ("alpha", "--adapter-alpha"),
        ("has_prompt", "--no-prompt"),
    ):
        value = getattr(made, name)
        other = getattr(wanted, name)
        if value != other:
            raise UserError(
                f"`{path}` must be a source that was trained with this run's `{option}`, but its "
                f"`{name}` is {value}, and this run's is {other}."
            )


def expect_tensors(path: str, source: Source, adapters: Mapping[str, Tensor], width: int) -> None:
    """Check a source's tensors with `check_tensors`.

    adapters: those of one source in the model.
    width: of the model's prompts.
    """
    wanted = dict(adapters)
    if PROMPT in source.tensors:
        wanted[PROMPT] = torch.empty(max(1, source.metadata.length), width, device="meta")
    check_tensors(path, wanted, source.tensors)


def fingerprint(
    parameters: Iterable[tuple[str, Tensor]], left_out: Mapping[str, int] | None = None
) -> str:
    """Return the SHA-256 of a backbone's parameters in hex.

    `left_out` has numbers of last rows to skip.
    """
    digest = hashlib.sha256()
    for name, value in sorted(parameters, key=lambda entry: entry[0]):
        if left_out and name in left_out:
            value = value[: len(value) - left_out[name]]
        numbers = value.detach().to("cpu", torch.float32).contiguous()
        digest.update(f"{name} {tuple(numbers.shape)}\n".encode())
        digest.update(numbers.numpy().data)
    return digest.hexdigest()


def backbone(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Return the named parameters of a model's backbone, without heads."""
    parameters = model.named_parameters()
    return (
        (name, value)
        for name, value in parameters
        if not is_added(name) and not name.startswith(HEADS)
    )


def rows_of_languages(parameters: Iterable[tuple[str, Tensor]], symbols: int) -> dict[str, int]:
    """Return the number of last rows for languages or tasks, by tensor.

    `mtmoe add-task` may increase these numbers.
    """
    counts = {name: symbols for name, _ in parameters if name.endswith(VOCABULARY) and symbols}
    tasks = {name: len(value) for name, value in parameters if name.endswith(TASK_EMBEDDINGS)}
    return counts | tasks


@dataclass(frozen=True)
class LoadedSources:
    """A new model's metadata and the sources to copy into it."""

    metadata: Metadata  # stored in the model's checkpoints
    sources: Mapping[str, Source]  # by file; empty if the model's weights come from a checkpoint
    language_symbols: int = 0  # see `protocols.TaskDescription`


def load_sources(cfg: Any, task: Any) -> LoadedSources:
    """Load the sources of a new model.

    A checkpoint's model already contains its sources. If only a checkpoint names the sources, set
    `cfg.pemt_sources`. Raises `UserError` if an option, a file or the task is wrong.
    """
    begins_with = {} if cfg.pemt else training_task(task).options_to_go_on_with()
    _expect_same_stage(cfg, task, begins_with)
    kept = () if cfg.pemt else _kept_sources(cfg, begins_with)
    check_options(cfg)
    if cfg.pemt:
        return LoadedSources(Metadata.from_text(cfg.pemt), {})
    described = training_task(task).described()
    if described is None:
        raise UserError("`--task` must be a task with descriptions, such as `--task text_to_text`.")
    sources = {} if kept else {path: load(path) for path in source_paths(cfg)}
    made = SourceSettings.by(cfg)
    if described.is_source not in (None, cfg.pemt_stage == SOURCE):
        raise_invalid(
            "--pemt-stage",
            "source with --source-task, and target with --target-task",
            cfg.pemt_stage,
        )
    for path, source in sources.items():
        expect_same(path, source.made, made)
    if made.has_prompt and not described.tokens:
        raise_invalid(f"the description of `{described.name}`", "a sentence", described.text)
    named = kept or tuple(source.metadata for source in sources.values())
    tasks = [source.task for source in named]
    if len(set(tasks)) < len(tasks):  # figures and the run log name sources by their task
        raise_invalid("--pemt-sources", "files of different tasks", ", ".join(tasks))
    if tasks:
        logger.info(f"{described.name} uses the source adapters of {', '.join(tasks)}")
    metadata = Metadata(described.name, described.text, tuple(described.tokens), named)
    return LoadedSources(metadata, sources, described.language_symbols)


def _expect_same_stage(cfg: Any, task: Any, begins_with: Mapping[str, Any]) -> None:
    """Raise a `UserError` if the run's first checkpoint comes from the other stage."""
    other = begins_with.get("pemt_stage", cfg.pemt_stage)
    if other == cfg.pemt_stage or not begins_with.get("pemt"):
        return
    path = task.checkpoint_to_go_on_from()
    raise UserError(
        f"`{path}` comes from a run of `--pemt-stage {other}`, and cannot continue in "
        f"`--pemt-stage {cfg.pemt_stage}`; start from the weights from which it started, with "
        "another `--save-dir`, and name sources with `--pemt-sources`."
    )


def _kept_sources(cfg: Any, begins_with: Mapping[str, Any]) -> tuple[SourceMetadata, ...]:
    """Return the sources of a checkpoint if their files are missing or not named.

    begins_with: options of the checkpoint's model.
    """
    paths = source_paths(cfg)
    if cfg.pemt_stage == SOURCE or (paths and all(map(os.path.isfile, paths))):
        return ()
    sources = Metadata.from_text(begins_with["pemt"]).sources if begins_with.get("pemt") else ()
    if sources and len(paths) not in (0, len(sources)):
        raise UserError(
            f"`--pemt-sources` must name the {len(sources)} sources that the checkpoint contains, "
            f"or be left out to keep them, but names {len(paths)} files, some of which do not "
            "exist."
        )
    if sources and not paths:
        cfg.pemt_sources = begins_with["pemt_sources"]
    return sources
