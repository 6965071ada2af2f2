"""A source's file: what one task taught, for others to borrow. Its adapters, its prompt, and what they were made on.

It is a file of `torch.save` with a checksum (`checkpoints/checksum.py`), of which loading executes nothing.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fairseq_mtmoe.backbones.bert.heads import HEADS
from fairseq_mtmoe.backbones.hugging_face import check_tensors
from fairseq_mtmoe.checkpoints import file_io
from fairseq_mtmoe.checkpoints.key_maps import TASK_EMBEDDINGS, VOCABULARY
from fairseq_mtmoe.checkpoints.rebuild import model_options
from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.models.pemt.config import SOURCE, Metadata, SourceMetadata, is_added

KIND = "pemt-source"
PROMPT = "prompt"  # the key of its tensor
MOST_ADDED = 16  # languages or tasks, with which a base may have grown since 0.1.11
NAME = re.compile(r"[A-Za-z0-9_-]+")  # of a task, and its file's


@dataclass(frozen=True)
class Made:
    """What a source's adapters fit to: all sources of a model, and the model, have the same.

    Attributes:
        backbone: its `fingerprint`.
        adapter: the kind, as `--adapter` names it.
        rank: of each adapter.
        alpha: LoRA's scale times its rank; without a meaning for other kinds.
        has_prompt: whether it was trained with one.
    """

    backbone: str
    adapter: str
    rank: int
    alpha: float
    has_prompt: bool


@dataclass(frozen=True)
class Source:
    """What one task taught.

    Attributes:
        task: its name.
        description: the sentence that its prompt began as; empty without a prompt.
        made: how.
        tensors: in float32; the adapters' by their names in the model, without the first dimension of a bank that
            counts its members, and the prompt's (N, H), if there is one.
    """

    task: str
    description: str
    made: Made
    tensors: dict[str, Tensor]

    @property
    def prompt(self) -> Tensor | None:
        """(N, H)."""
        return self.tensors.get(PROMPT)

    @property
    def adapters(self) -> dict[str, Tensor]:
        """All tensors but the prompt's."""
        return {name: value for name, value in self.tensors.items() if name != PROMPT}

    @property
    def about(self) -> SourceMetadata:
        """What is noted of it."""
        return SourceMetadata(self.task, self.description, 0 if self.prompt is None else len(self.prompt))

    def save(self, path: str | Path) -> None:
        """Write the file, completely or not at all."""
        about = {"task": self.task, "description": self.description, **dataclasses.asdict(self.made)}
        file_io.save({KIND: about, "model": self.tensors}, str(path))


def load(path: str | Path) -> Source:
    """The source in a file of `Source.save`.

    Raises:
        UserError: the file is missing, damaged or another.
    """
    if not os.path.lexists(path):
        raise UserError(f"`{path}` must be a source's file, which `--pemt-stage source` writes, but there is none.")
    content = file_io.load(str(path), mapped=True, remedy="write it anew by a run of `--pemt-stage source`")
    about, tensors = content.get(KIND), content.get("model")
    if not isinstance(about, dict) or not isinstance(tensors, dict):
        found = _what_it_is(path, content)
        raise UserError(f"`{path}` must be a source's file, which `--pemt-stage source` writes, but is {found}.")
    try:
        fields = {name: about[name] for name in ("task", "description")}
        made = Made(**{field.name: about[field.name] for field in dataclasses.fields(Made)})
    except KeyError as error:
        raise UserError(f"`{path}` must say the {error.args[0]} of its source, but does not.") from error
    right = {field.name: type(getattr(made, field.name)).__name__ == field.type for field in dataclasses.fields(Made)}
    right["alpha"] = right["alpha"] and 0 <= made.alpha < float("inf")
    right |= {name: isinstance(value, str) for name, value in fields.items()}
    right["task"] = right["task"] and bool(NAME.fullmatch(fields["task"]))
    for name, is_right in right.items():
        if not is_right:
            raise UserError(f"`{path}` must say the {name} of its source, but says {str(about[name])[:80]!r}.")
    if PROMPT in tensors and tensors[PROMPT].dim() != 2:
        raise UserError(f"`{PROMPT}` in `{path}` must be a row of vectors, but has {tensors[PROMPT].dim()} dimensions.")
    if made.has_prompt != (PROMPT in tensors):
        raise UserError(f"`{path}` must hold a prompt if it was trained with one, but it is the other way round.")
    return Source(**fields, made=made, tensors=tensors)


def _what_it_is(path: str | Path, content: Mapping[str, Any]) -> str:
    """What stands in a source's file's place; of a source's checkpoint, which file its run wrote beside it.

    Raises:
        UserError: it is a source's checkpoint, but damaged.
    """
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


def earlier_fingerprints(parameters: Sequence[tuple[str, Tensor]], left_out: Mapping[str, int]) -> Iterator[str]:
    """Yield the digests that 0.1.11 and before gave a backbone, which covered the rows of languages and tasks.

    The backbone as it is comes first, then the backbone before its last language or task was added, its last two, …,
    at most `MOST_ADDED`, since each is a digest of all weights.

    Args:
        parameters, left_out: see `fingerprint`; rows of all languages and tasks.
    """
    tasks = {name for name in left_out if name.endswith(TASK_EMBEDDINGS)}
    for added in range(min(MOST_ADDED, max(left_out.values(), default=0))):
        yield fingerprint(parameters, {name: min(added, count) for name, count in left_out.items()})
        if tasks and added:  # a language pair has no symbol
            yield fingerprint(parameters, {name: min(added, left_out[name]) for name in tasks})


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
    """Raise the `UserError` that names a tensor that a source lacks, has in another shape, or has beyond the model's.

    Args:
        path: of its file.
        source: what is in it.
        adapters: the model's of one source, without values.
        width: of a prompt.
    """
    prompt = source.prompt
    length = 0 if prompt is None or prompt.dim() != 2 else len(prompt)
    of_prompt = {} if prompt is None else {PROMPT: torch.empty(max(1, length), width, device="meta")}
    check_tensors(path, {**adapters, **of_prompt}, source.tensors)


def fingerprint(parameters: Iterable[tuple[str, Tensor]], left_out: Mapping[str, int] | None = None) -> str:
    """Return a digest that tells a backbone's weights from others, in 64 hex digits.

    Args:
        parameters: of the backbone alone, by their names, each tensor once.
        left_out: number of last rows that the digest does not cover, by the tensor's name.
    """
    digest = hashlib.sha256()
    for name, value in sorted(parameters, key=lambda entry: entry[0]):
        covered = value[: len(value) - left_out[name]] if left_out and name in left_out else value
        numbers = covered.detach().to("cpu", torch.float32).contiguous()
        digest.update(f"{name} {tuple(numbers.shape)}\n".encode())
        digest.update(numbers.numpy().data)
    return digest.hexdigest()


def backbone(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The parameters of a model's backbone by their names, each once; heads are the tasks' own."""
    parameters = model.named_parameters()
    return ((name, value) for name, value in parameters if not is_added(name) and not name.startswith(HEADS))


def rows_of_languages(parameters: Iterable[tuple[str, Tensor]], symbols: int) -> dict[str, int]:
    """Return the number of last rows that stand for languages or tasks, by the name of the backbone's tensor.

    `mtmoe add-task` adds to these; adapters of other languages do not depend on what it adds.

    Args:
        parameters: of the backbone.
        symbols: number of symbols at the end of the vocabulary that stand for languages.
    """
    counts = {name: symbols for name, _ in parameters if name.endswith(VOCABULARY) and symbols}
    return counts | {name: len(value) for name, value in parameters if name.endswith(TASK_EMBEDDINGS)}
