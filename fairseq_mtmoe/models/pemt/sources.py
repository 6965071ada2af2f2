"""What models of PEMT borrow from: sources' files, what is noted of them in checkpoints, and how a run finds them."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Required, get_type_hints

import torch
from torch import Tensor, nn

from fairseq_mtmoe.backbones.bert.heads import HEADS
from fairseq_mtmoe.backbones.hugging_face import check_tensors
from fairseq_mtmoe.checkpoints import file_io
from fairseq_mtmoe.checkpoints.key_maps import TASK_EMBEDDINGS, VOCABULARY
from fairseq_mtmoe.checkpoints.rebuild import model_options
from fairseq_mtmoe.errors import UserError, raise_invalid
from fairseq_mtmoe.io import typed
from fairseq_mtmoe.models.pemt.config import LORA, SOURCE, check_options, has_prompt, is_added, source_paths
from fairseq_mtmoe.protocols import DescribesTask, GoesOn

logger = logging.getLogger(__name__)

KIND = "pemt-source"
PROMPT = "prompt"  # the key of its tensor
MOST_ADDED = 16  # languages or tasks, with which a base may have grown since 0.1.11
MOST_VECTORS = 1 << 16  # of a prompt: options that ask for more are damaged

_NAME = re.compile(r"[A-Za-z0-9_-]+")  # of a task, and its file's
_Name = Annotated[str, typed.Rule("a task's name", lambda name: bool(_NAME.fullmatch(name)))]
_Count = Annotated[int, typed.between(0, MOST_VECTORS)]
_Token = Annotated[int, typed.Rule("a token", lambda token: token >= 0)]
_Tokens = Annotated[tuple[_Token, ...], typed.Rule("tokens of a sentence", lambda given: len(given) <= MOST_VECTORS)]
_Alpha = Annotated[float, typed.Rule("a number of at least 0", lambda alpha: 0 <= alpha < float("inf"))]


@dataclass(frozen=True)
class SourceMetadata:
    """A source that a model borrows from: its task, the description of it, and how long its prompt is; 0 without."""

    task: str
    description: str
    length: _Count


@dataclass(frozen=True)
class Metadata:
    """What a model was built with."""

    task: str  # which it is trained on
    description: str  # the sentence that its prompt begins as
    tokens: _Tokens  # the sentence's, in the model's dictionary
    sources: tuple[SourceMetadata, ...]  # in the order of the gates' weights
    merged_rank: _Count = 0  # of the one adapter in each layer that sources were folded into (`merging.py`); 0 without

    def to_text(self) -> str:
        """In JSON."""
        return json.dumps(asdict(self), ensure_ascii=False)

    @classmethod
    def from_text(cls, text: str) -> Metadata:
        """The reverse. Raises `UserError` where it is the reverse of nothing."""
        try:
            values = json.loads(text)
            if typed.fault(values, cls) is not None:
                raise ValueError
            sources = tuple(SourceMetadata(**source) for source in values["sources"])
            return cls(**{**values, "tokens": tuple(values["tokens"]), "sources": sources})
        except (TypeError, ValueError) as error:
            raise UserError(
                f"`pemt` in a checkpoint's options must say what it was built with, but says {text[:80]!r}."
            ) from error


@dataclass(frozen=True)
class Made:
    """What a source's adapters fit to: all sources of a model, and the model, have the same."""

    backbone: str  # its `fingerprint`
    adapter: str  # the kind, as `--adapter` names it
    rank: int  # of each adapter
    alpha: _Alpha  # LoRA's scale times its rank; without a meaning for other kinds
    has_prompt: bool  # whether it was trained with one

    @classmethod
    def by(cls, cfg: Any) -> Made:
        """What adapters fit to that have these options; of no backbone yet."""
        alpha = cfg.adapter_alpha if cfg.adapter == LORA else 0.0
        return cls("", cfg.adapter, cfg.adapter_rank, alpha, has_prompt(cfg))


# What a file says of its source
_ABOUT: dict[str, Any] = {
    name: Required[kind]
    for name, kind in {"task": _Name, "description": str, **get_type_hints(Made, include_extras=True)}.items()
}


@dataclass(frozen=True)
class Source:
    """What one task taught.

    Its tensors, in float32, are the adapters' by their names in the model, without the first dimension of a bank that
    counts its members, and the prompt's (N, H), if there is one.
    """

    task: _Name
    description: str  # the sentence that its prompt began as; empty without a prompt
    made: Made
    tensors: dict[str, Tensor]

    @property
    def metadata(self) -> SourceMetadata:
        """The source as a checkpoint notes it."""
        return SourceMetadata(self.task, self.description, len(self.tensors.get(PROMPT, ())))

    def save(self, path: str | Path) -> None:
        """Write the file, completely or not at all."""
        about = {"task": self.task, "description": self.description, **asdict(self.made)}
        file_io.save({KIND: about, "model": self.tensors}, str(path))


def load(path: str | Path) -> Source:
    """The source in a file of `Source.save`. Raises `UserError` where the file is missing, damaged or another."""
    rule = f"`{path}` must be a source's file, which `--pemt-stage source` writes"
    if not os.path.lexists(path):
        raise UserError(f"{rule}, but there is none.")
    content = file_io.load(str(path), mapped=True, remedy="write it anew by a run of `--pemt-stage source`")
    about, tensors = content.get(KIND), content.get("model")
    if not isinstance(about, dict) or not isinstance(tensors, dict):
        raise UserError(f"{rule}, but is {_what_it_is(path, content)}.")
    fault = typed.fault(about, _ABOUT)
    if fault is not None:
        raise UserError(f"`{path}` must say the {fault.path} of its source, but says {fault.found}.")
    if PROMPT in tensors and tensors[PROMPT].dim() != 2:
        raise UserError(f"`{PROMPT}` in `{path}` must be a row of vectors, but has {tensors[PROMPT].dim()} dimensions.")
    if about["has_prompt"] != (PROMPT in tensors):
        raise UserError(f"`{path}` must hold a prompt if it was trained with one, but it is the other way round.")
    made = Made(**{field.name: about[field.name] for field in fields(Made)})
    return Source(about["task"], about["description"], made, tensors)


def _what_it_is(path: str | Path, content: Mapping[str, Any]) -> str:
    """What lies at the path of a source's file; of a source's checkpoint, which file its run wrote beside it."""
    options = model_options(content)
    if options is None:
        return "another"
    if options.get("pemt_stage") != SOURCE or not options.get("pemt"):
        return "the checkpoint of a model that is no source"
    task = Metadata.from_text(options["pemt"]).task
    return f"the whole checkpoint of {task}: its file is `{file_of(Path(path).parent, task)}`"


def file_of(folder: str | Path, task: str) -> Path:
    """The file that a run of stage 1 leaves in its folder."""
    return Path(folder) / f"{task}.pt"


def expect_same(path: str, found: Made, wanted: Made) -> None:
    """Raise the `UserError` that says in what a source and a model differ, whose backbone may be unknown yet."""
    if wanted.backbone and found.backbone != wanted.backbone:
        raise UserError(
            f"`{path}` must be of a source that was trained on the weights that this run begins with, but its "
            f"backbone is another: its fingerprint is {found.backbone[:12]}…, and this one's {wanted.backbone[:12]}…."
        )
    for name, option in (("adapter", "--adapter"), ("rank", "--adapter-rank"), ("alpha", "--adapter-alpha")):
        own, other = getattr(found, name), getattr(wanted, name)
        if own != other:
            raise UserError(
                f"`{path}` must be of a source with `{option}` {other} as this run, but was trained with {own}."
            )
    if found.has_prompt != wanted.has_prompt:
        without = path if not found.has_prompt else "this run"
        raise UserError(f"`{path}` must have a prompt where this run has one, but {without} has none (`--no-prompt`).")


def expect_tensors(path: str, source: Source, adapters: Mapping[str, Tensor], width: int) -> None:
    """See `check_tensors`; `adapters` are the model's of one source, and its prompts have this `width`."""
    prompt = torch.empty(max(1, source.metadata.length), width, device="meta")
    check_tensors(path, {**adapters, **({PROMPT: prompt} if PROMPT in source.tensors else {})}, source.tensors)


def fingerprint(parameters: Iterable[tuple[str, Tensor]], left_out: Mapping[str, int] | None = None) -> str:
    """Return a digest of a backbone's parameters, each once, but for the number of last rows in `left_out`; in hex."""
    digest = hashlib.sha256()
    for name, value in sorted(parameters, key=lambda entry: entry[0]):
        covered = value[: len(value) - left_out[name]] if left_out and name in left_out else value
        numbers = covered.detach().to("cpu", torch.float32).contiguous()
        digest.update(f"{name} {tuple(numbers.shape)}\n".encode())
        digest.update(numbers.numpy().data)
    return digest.hexdigest()


def earlier_fingerprints(parameters: Sequence[tuple[str, Tensor]], left_out: Mapping[str, int]) -> Iterator[str]:
    """Yield the digests that 0.1.11 and before gave a backbone, which covered the rows of languages and tasks.

    First that of the backbone as it is, then before its last language or task was added, its last two, …, at most
    `MOST_ADDED`. `left_out` are the rows of all.
    """
    tasks = {name for name in left_out if name.endswith(TASK_EMBEDDINGS)}
    for added in range(min(MOST_ADDED, max(left_out.values(), default=0))):
        yield fingerprint(parameters, {name: min(added, count) for name, count in left_out.items()})
        if tasks and added:  # a language pair has no symbol
            yield fingerprint(parameters, {name: min(added, left_out[name]) for name in tasks})


def backbone(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The parameters of a model's backbone by their names, each once; heads are the tasks' own."""
    parameters = model.named_parameters()
    return ((name, value) for name, value in parameters if not is_added(name) and not name.startswith(HEADS))


def rows_of_languages(parameters: Iterable[tuple[str, Tensor]], symbols: int) -> dict[str, int]:
    """The number of last rows that `mtmoe add-task` may add to, by tensor; `symbols` of the words are languages."""
    counts = {name: symbols for name, _ in parameters if name.endswith(VOCABULARY) and symbols}
    return counts | {name: len(value) for name, value in parameters if name.endswith(TASK_EMBEDDINGS)}


@dataclass(frozen=True)
class LoadedSources:
    """What a model is built with."""

    metadata: Metadata  # its task and its sources, as noted in its checkpoints
    sources: Mapping[str, Source]  # by their files' names; none in a model that gets a checkpoint's weights
    language_symbols: int = 0  # see `protocols.TaskDescription`


def load_sources(cfg: Any, task: Any) -> LoadedSources:
    """Return what a model is built with: a new one with its sources, one of a checkpoint without.

    Sources that only a checkpoint names are filled in. Raises `UserError` where an option, a file or the task is wrong.
    """
    begins_with = task.options_to_go_on_with() if isinstance(task, GoesOn) and not cfg.pemt else {}
    _expect_same_stage(cfg, task, begins_with)
    kept = () if cfg.pemt else _kept_sources(cfg, begins_with)
    check_options(cfg)
    if cfg.pemt:
        return LoadedSources(Metadata.from_text(cfg.pemt), {})
    if not isinstance(task, DescribesTask):
        raise UserError("`--task` must be one that describes what it trains, such as `--task text_to_text`.")
    sources = {} if kept else {path: load(path) for path in source_paths(cfg)}
    found, made = task.described(), Made.by(cfg)
    if found.is_source not in (None, cfg.pemt_stage == SOURCE):
        raise_invalid("--pemt-stage", "source with --source-task, and target with --target-task", cfg.pemt_stage)
    paths: dict[str, str] = {}
    for path, source in sources.items():
        expect_same(path, source.made, made)
        other = paths.setdefault(source.task, path)
        if other != path:  # no figure could tell them apart
            raise UserError(
                f"`--pemt-sources` must be of different tasks, but `{other}` and `{path}` are both of {source.task}."
            )
    if made.has_prompt and not found.tokens:
        raise_invalid(f"the description of `{found.name}`", "a sentence", found.text)
    if len(found.tokens) > MOST_VECTORS:
        raise_invalid(f"the tokens of the description of `{found.name}`", f"at most {MOST_VECTORS}", len(found.tokens))
    named = kept or tuple(source.metadata for source in sources.values())
    if named:
        where = list(sources) or ["in its checkpoint"] * len(named)
        shown = ", ".join(f"{source.task} ({path})" for source, path in zip(named, where, strict=True))
        logger.info(f"{found.name} borrows from {shown}")
    if found.name in [source.task for source in named]:
        logger.warning(f"{found.name} is both the target and among its sources: it has been trained on already")
    metadata = Metadata(found.name, found.text, tuple(found.tokens), named)
    return LoadedSources(metadata, sources, found.language_symbols)


def _expect_same_stage(cfg: Any, task: Any, begins_with: Mapping[str, Any]) -> None:
    """Raise the `UserError` that says what to begin with instead of a checkpoint of the other stage."""
    other = begins_with.get("pemt_stage", cfg.pemt_stage)
    if other == cfg.pemt_stage or not begins_with.get("pemt"):
        return
    path, trained = task.checkpoint_to_go_on_from(), Metadata.from_text(begins_with["pemt"]).task
    borrowing = f"borrow from it by `--pemt-sources {file_of(os.path.dirname(path), trained)}`, and "
    raise UserError(
        f"`{path}` must be of a run of `--pemt-stage {cfg.pemt_stage}` or of a model without adapters, but is of "
        f"`--pemt-stage {other}`; {borrowing if other == SOURCE else ''}begin with the weights that {trained} began "
        "with, in a `--save-dir` of its own."
    )


def _kept_sources(cfg: Any, begins_with: Mapping[str, Any]) -> tuple[SourceMetadata, ...]:
    """The sources in the checkpoint of a model with options `begins_with`, where files are not there or not named."""
    paths = source_paths(cfg)
    if cfg.pemt_stage == SOURCE or (paths and all(map(os.path.isfile, paths))):
        return ()
    sources = Metadata.from_text(begins_with["pemt"]).sources if begins_with.get("pemt") else ()
    if sources and len(paths) not in (0, len(sources)):
        raise UserError(
            f"`--pemt-sources` must name the {len(sources)} sources that the checkpoint borrows from, or be left out "
            f"to go on with them, but names {len(paths)}, and not all of these files are there."
        )
    if sources and not paths:
        cfg.pemt_sources = begins_with["pemt_sources"]
    return sources
