"""What every model of PEMT can do, whatever its backbone: begin from sources, train a stage, leave a source's file."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fairseq_mtmoe.checkpoints.key_maps import MOE
from fairseq_mtmoe.errors import UserError, raise_invalid
from fairseq_mtmoe.models.pemt import source_file
from fairseq_mtmoe.models.pemt.config import (
    FINGERPRINT,
    LORA,
    MOST_VECTORS,
    SOURCE,
    SOURCE_PROMPTS,
    Metadata,
    SourceMetadata,
    check_options,
    gate_input,
    has_prompt,
    is_added,
    is_trainable,
    source_paths,
)
from fairseq_mtmoe.models.pemt.prompts import CorrelatedPrompt, Prompt, record_similarity
from fairseq_mtmoe.models.pemt.source_file import Made, Source, backbone, rows_of_languages
from fairseq_mtmoe.protocols import DescribesTask, GoesOn
from fairseq_mtmoe.slots import AdapterPlan, adapter_blocks

logger = logging.getLogger(__name__)

TARGET_SHARE = 16  # the stream is so many times wider than a target adapter (the authors' code)


@dataclass(frozen=True)
class LoadedSources:
    """What a model is built with.

    Attributes:
        about: its task and its sources, as noted in its checkpoints.
        sources: by their files' names; none in a model that gets a checkpoint's weights.
        language_symbols: see `protocols.TaskDescription`.
    """

    about: Metadata
    sources: Mapping[str, Source]
    language_symbols: int = 0


class PemtModel(nn.Module):
    """Mixed into a system's model, before its backbone's; its encoder has `prompt` and `gate_input`.

    `build_model` asks `load_sources` what there is, builds the backbone with an `adapter_plan` in each block, and calls
    `begin`. Prompts and sources begin when the backbone gets its weights, in `load_state_dict`.
    """

    encoder: Any
    about: Metadata
    backbone_fingerprint: Tensor

    def begin(self, cfg: Any, begun: LoadedSources) -> None:
        """To be called when the model is built.

        Args:
            cfg: with `PemtOptions`.
            begun: what `load_sources` returned.
        """
        self.about = about = begun.about
        sources, self._language_symbols = begun.sources, begun.language_symbols
        self._stage, self._prompt_init = cfg.pemt_stage, cfg.prompt_init
        self._made, self._sources = made_by(cfg), dict(sources)
        self._has_weights = False
        self._lacks_sources = bool(about.sources) and not sources
        self._source_option = cfg.pemt_sources
        self.encoder.prompt = self._new_prompt() if self._made.has_prompt else None
        self.encoder.gate_input = gate_input(cfg) if about.sources else None
        # Of whole numbers, so that neither half precision nor an average changes it
        self.register_buffer(FINGERPRINT, torch.zeros(32, dtype=torch.long))
        for block in adapter_blocks(self).values():
            if block.mixture.gate is not None:
                block.register_forward_hook(record_similarity, prepend=True)
        for name, parameter in self.named_parameters():
            parameter.requires_grad_(is_trainable(name, cfg.pemt_stage))

    def _new_prompt(self) -> Prompt:
        length, width = len(self.about.tokens), self.prompt_embeddings().shape[1]
        if not self.about.sources:
            return Prompt(length, width)
        return CorrelatedPrompt(length, width, [source.length for source in self.about.sources])

    def prompt_embeddings(self) -> Tensor:
        """The vectors of all tokens as they stand in the encoder's stream, (V, H)."""
        weight: Tensor = self.encoder.embed_tokens.weight
        return weight

    @property
    def source_names(self) -> list[str]:
        """In the order of a gate's weights; none where it borrows from none."""
        return [source.task for source in self.about.sources]

    @property
    def gates_event(self) -> tuple[str, dict[str, Any]]:
        """See `protocols.MixesSources`: `sources`, with the task that they are borrowed for."""
        return "sources", {"target": self.about.task, "sources": self.source_names}

    @property
    def noted_options(self) -> dict[str, str]:
        """See `protocols.NotesOptions`."""
        return {"pemt": self.about.to_text(), "pemt_sources": self._source_option}

    def load_state_dict(  # type: ignore[override]  # fairseq's
        self, state_dict: dict[str, Tensor], strict: bool = True, model_cfg: Any = None, args: Any = None
    ) -> Any:
        """As fairseq's. With a backbone's weights alone, prompts and sources begin, too.

        Raises:
            UserError: the weights have experts, a source is of another backbone, or a checkpoint borrows from others.
        """
        if any(MOE in name for name in state_dict):
            raise UserError(
                "`--finetune-from-model` must be a dense model for one that borrows, but has experts, and adapters "
                "need a matrix to stand beside."
            )
        self._has_weights = True
        if any(is_added(name) for name in state_dict):
            self._expect_own_sources(state_dict)
            self._lacks_sources = False
            return super().load_state_dict(state_dict, strict)
        own = {name: value for name, value in self.state_dict().items() if is_added(name)}
        loaded = super().load_state_dict({**state_dict, **own}, strict)
        self._begin_additions(state_dict)
        return loaded

    @torch.no_grad()
    def _begin_additions(self, state: Mapping[str, Tensor]) -> None:
        # Of the state, whose numbers half precision has not rounded yet
        weights = [(name, state.get(name, value)) for name, value in backbone(self)]
        rows = rows_of_languages(weights, self._language_symbols)
        digest = source_file.fingerprint(weights, rows)
        self.backbone_fingerprint.copy_(torch.tensor(list(bytes.fromhex(digest))))
        for path, source in self._sources.items():
            wanted, found = self.made, source.made.backbone
            if found != digest and found in source_file.earlier_fingerprints(weights, rows):
                wanted = replace(wanted, backbone=found)
            source_file.expect_same(path, source.made, wanted)
            source_file.expect_tensors(path, source, self._adapters(0), self.prompt_embeddings().shape[1])
        prompt = self.encoder.prompt
        if prompt is not None:
            prompt.begin_as_(self.about.tokens, self.prompt_embeddings(), self._prompt_init)
        for index, source in enumerate(self._sources.values()):
            for name, kept in self._adapters(index).items():
                kept.copy_(source.tensors[name])
        if isinstance(prompt, CorrelatedPrompt) and self._sources:
            prompt.take_sources_([source.tensors[source_file.PROMPT] for source in self._sources.values()])

    def _expect_own_sources(self, state: Mapping[str, Tensor]) -> None:
        """Refuse a checkpoint that borrows from other sources than the files of this run, or in another order."""
        for index, (path, source) in enumerate(self._sources.items()):
            for name, value in source.tensors.items():
                saved = state.get(SOURCE_PROMPTS if name == source_file.PROMPT else name)
                own = None if saved is None or index >= len(saved) else saved[index]
                if own is not None and name == source_file.PROMPT:
                    own = own[: len(value)]
                if own is None or not torch.equal(own.cpu(), value.to(own.dtype)):
                    raise UserError(
                        f"`--pemt-sources` must name the sources that the checkpoint borrows from, in their order, but "
                        f"`{path}` is another than its source {index + 1}."
                    )
        count = len(self._sources)
        kept = [len(state[name]) for name in (self._adapters(0) if count else ()) if name in state]
        if kept and kept[0] > count:
            raise UserError(
                f"`--pemt-sources` must name the {kept[0]} sources that the checkpoint borrows from, in their order, "
                f"but names {count}."
            )

    def expect_weights(self) -> None:
        """See `protocols.NeedsWeights`.

        Raises:
            UserError: its backbone has no weights yet, or its sources have none.
        """
        if self._lacks_sources:
            raise UserError(
                "`--pemt-sources` must name files that are there, or the run must go on from a checkpoint that borrows "
                "from them, but the checkpoint was not loaded."
            )
        if not self._has_weights:
            raise UserError(
                f"A model of `--pemt-stage {self._stage}` must begin with trained weights (`--init-model` of a T5, "
                "`--init-encoder` of a BERT, `--finetune-from-model` of a checkpoint), but has none."
            )

    def want_sparsity(self, wanted: bool) -> None:
        """Say whether the next passes in training are to give the task sparsity loss; at first they are."""
        self.encoder.wants_sparsity = wanted

    @property
    def made(self) -> Made:
        """What adapters of this model fit to."""
        digest = bytes(self.backbone_fingerprint.tolist()).hex()
        return replace(self._made, backbone=digest)

    def _adapters(self, index: int) -> dict[str, Tensor]:
        """All layers' adapters of one source, by their names in the model, as views."""
        return {
            f"{path}.mixture.adapters.{name}": value
            for path, block in adapter_blocks(self).items()
            if block.mixture.adapters is not None
            for name, value in block.mixture.adapters.member(index).items()
        }

    def leave_file(self, folder: str) -> Path | None:
        """See `protocols.LeavesFile`: in stage 1, the source's.

        Raises:
            UserError: it cannot be written.
        """
        if self._stage != SOURCE:
            return None
        tensors = self._adapters(0)
        if self.encoder.prompt is not None:
            tensors[source_file.PROMPT] = self.encoder.prompt.weight
        kept = {name: value.detach().to("cpu", torch.float32, copy=True) for name, value in tensors.items()}
        about = self.about
        path = source_file.file_of(folder, about.task)
        Source(about.task, about.description, self.made, kept).save(path)
        return path


def load_sources(cfg: Any, task: Any) -> LoadedSources:
    """Return what a model is built with: a new one with its sources, one of a checkpoint without.

    Args:
        cfg: with `PemtOptions`; sources that only a checkpoint names are filled in.
        task: fairseq's.

    Raises:
        UserError: an option is wrong, or the task does not describe itself, or a source's file, or the checkpoint that
            the run begins with, is not what it must be.
    """
    begins_with = task.options_to_go_on_with() if isinstance(task, GoesOn) and not cfg.pemt else {}
    _expect_same_stage(cfg, task, begins_with)
    kept = () if cfg.pemt else _kept_sources(cfg, begins_with)
    check_options(cfg)
    if cfg.pemt:
        return LoadedSources(Metadata.from_text(cfg.pemt), {})
    if not isinstance(task, DescribesTask):
        raise UserError("`--task` must be one that describes what it trains, such as `--task text_to_text`.")
    sources = {} if kept else {path: source_file.load(path) for path in source_paths(cfg)}
    made, found = made_by(cfg), task.described()
    if found.is_source not in (None, cfg.pemt_stage == SOURCE):
        raise_invalid("--pemt-stage", "source with --source-task, and target with --target-task", cfg.pemt_stage)
    for path, source in sources.items():
        source_file.expect_same(path, source.made, made)
    _expect_different_tasks(sources)
    if made.has_prompt and not found.tokens:
        raise_invalid(f"the description of `{found.name}`", "a sentence", found.text)
    if len(found.tokens) > MOST_VECTORS:
        raise_invalid(f"the tokens of the description of `{found.name}`", f"at most {MOST_VECTORS}", len(found.tokens))
    about = Metadata(
        found.name, found.text, tuple(found.tokens), kept or tuple(source.about for source in sources.values())
    )
    if about.sources:
        named = [f"{source.task} ({path})" for path, source in sources.items()]
        shown = ", ".join(named or [f"{source.task} (in its checkpoint)" for source in about.sources])
        logger.info(f"{about.task} borrows from {shown}")
    if about.task in [source.task for source in about.sources]:
        logger.warning(f"{about.task} is both the target and among its sources: it has been trained on already")
    return LoadedSources(about, sources, found.language_symbols)


def _expect_different_tasks(sources: Mapping[str, Source]) -> None:
    """Raise the `UserError` that names two files of one task, which no figure could tell apart."""
    paths: dict[str, str] = {}
    for path, source in sources.items():
        other = paths.setdefault(source.task, path)
        if other != path:
            raise UserError(
                f"`--pemt-sources` must be of different tasks, but `{other}` and `{path}` are both of {source.task}."
            )


def _expect_same_stage(cfg: Any, task: Any, begins_with: Mapping[str, Any]) -> None:
    """Raise the `UserError` that says what to begin with in the place of a checkpoint of the other stage."""
    other = begins_with.get("pemt_stage", cfg.pemt_stage)
    if other == cfg.pemt_stage or not begins_with.get("pemt"):
        return
    path, trained = task.checkpoint_to_go_on_from(), Metadata.from_text(begins_with["pemt"]).task
    borrowing = f"borrow from it by `--pemt-sources {source_file.file_of(os.path.dirname(path), trained)}`, and "
    raise UserError(
        f"`{path}` must be of a run of `--pemt-stage {cfg.pemt_stage}` or of a model without adapters, but is of "
        f"`--pemt-stage {other}`; {borrowing if other == SOURCE else ''}begin with the weights that {trained} began "
        "with, in a `--save-dir` of its own."
    )


def _kept_sources(cfg: Any, begins_with: Mapping[str, Any]) -> tuple[SourceMetadata, ...]:
    """The sources in the checkpoint that a run goes on from, which stand for files that are not there or not named.

    Without names these are filled in, as the checkpoint's run had them; none where all files are there.

    Args:
        cfg: with `PemtOptions`.
        begins_with: the options of the checkpoint's model; none without one.

    Raises:
        UserError: it has not as many as are named.
    """
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


def made_by(cfg: Any) -> Made:
    """What adapters fit to that have these options; of no backbone yet."""
    alpha = cfg.adapter_alpha if cfg.adapter == LORA else 0.0
    return Made("", cfg.adapter, cfg.adapter_rank, alpha, has_prompt(cfg))


def adapter_plan(cfg: Any, about: Metadata, width: int) -> AdapterPlan:
    """What stands beside each block's feed-forward layer.

    Args:
        cfg: with `PemtOptions`.
        about: see `load_sources`.
        width: of the stream.
    """
    if cfg.pemt_stage == SOURCE:
        return AdapterPlan(cfg.adapter, cfg.adapter_rank, 1, cfg.adapter_alpha)
    target_size = cfg.target_adapter_size or max(1, width // TARGET_SHARE)
    if about.merged_rank:
        return AdapterPlan(cfg.adapter, about.merged_rank, 1, cfg.adapter_alpha, None, target_size)
    count = len(about.sources)
    return AdapterPlan(cfg.adapter, cfg.adapter_rank, count, cfg.adapter_alpha, width if count else None, target_size)
