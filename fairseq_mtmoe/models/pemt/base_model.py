"""What PEMT adds to any backbone: prompts that describe tasks, what gates read of them, and its two stages.

PEMT, §3.1 and §3.2: prompts are correlated with those of sources (equations 3 and 4), gates read a summary (equation
2), and the task sparsity loss (equation 5) is measured at each block's output.

Where gates read means of states, those are each layer's own in the encoder, and the encoder's output in the decoder:
its own would tell a word of later ones.

Letters, besides those of expert_layer.md: `K` sources, `N` vectors of the longest source's prompt, `P` of the own one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fairseq_mtmoe.checkpoints.key_maps import MOE
from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.models.pemt import sources
from fairseq_mtmoe.models.pemt.config import (
    ACTIVATIONS,
    CORRELATION,
    DESCRIPTION,
    FINGERPRINT,
    SOURCE,
    SOURCE_PROMPTS,
    gate_input,
    is_added,
    is_trainable,
)
from fairseq_mtmoe.models.pemt.sources import LoadedSources, Made, Metadata, Source, backbone, rows_of_languages
from fairseq_mtmoe.moe.mixture import layer_similarity
from fairseq_mtmoe.slots import SPARSITY, AdapterPlan, BatchContext, GateInput, adapter_blocks, task_sparsity_loss

ENCODER, DECODER = "mixture", "decoder_mixture"  # the keys of each stack's input of gates in an encoder's output
ATTENTION_DROPOUT = 0.1  # of correlation (the authors' code)
TARGET_SHARE = 16  # the stream is so many times wider than a target adapter (the authors' code)


class Prompt(nn.Module):
    """A task's prompt, which trains: `length` vectors of `width`."""

    def __init__(self, length: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(length, width))

    def forward(self) -> Tensor:
        """(P, H)."""
        return self.weight

    @torch.no_grad()
    def begin_as_(self, tokens: Sequence[int], embeddings: Tensor, init: str) -> None:
        """Begin as a description's tokens, of the `embeddings` (V, H) of all; or at random, distributed alike."""
        assert len(tokens) == len(self.weight)
        if init == DESCRIPTION:
            self.weight.copy_(embeddings[list(tokens)])
        else:
            self.weight.normal_(embeddings.float().mean().item(), embeddings.float().std().item())


class CorrelatedPrompt(Prompt):
    """A target's prompt and the frozen ones of its sources; `weight` is Q."""

    sources: Tensor  # the prompts, 0 beyond their lengths, (K, N, H)
    has_source: Tensor  # (K, N)

    def __init__(self, length: int, width: int, source_lengths: Sequence[int]) -> None:
        super().__init__(length, width)
        longest = max(source_lengths)
        self.register_buffer("sources", torch.zeros(len(source_lengths), longest, width))
        has_source_KN = torch.arange(longest) < torch.tensor(list(source_lengths)).unsqueeze(1)
        self.register_buffer("has_source", has_source_KN, persistent=False)

    def forward(self) -> Tensor:
        """Q + Σ_k softmax(Q P_kᵀ) P_k, (P, H): equations 3 and 4, unscaled; in float32, for T5's large embeddings."""
        with torch.autocast(self.weight.device.type, enabled=False):
            queries_PH, sources_LH = self.weight.float(), self.sources.float().flatten(0, 1)
            scores_PKN = (queries_PH @ sources_LH.t()).unflatten(1, self.has_source.shape)
            weights_PKN = scores_PKN.masked_fill(~self.has_source, float("-inf")).softmax(2)
            weights_PKN = F.dropout(weights_PKN, ATTENTION_DROPOUT, self.training)
            return (queries_PH + weights_PKN.flatten(1) @ sources_LH).to(self.weight.dtype)

    @torch.no_grad()
    def take_sources_(self, prompts: Sequence[Tensor]) -> None:
        """Take over the sources' prompts, (N_k, H) each."""
        for kept_NH, has_source_N, prompt in zip(self.sources, self.has_source, prompts, strict=True):
            kept_NH[has_source_N] = prompt.to(kept_NH)


class PromptMixin(nn.Module):
    """Mixed into an encoder, before its backbone's; `PemtModel` sets what is to be set."""

    prompt: Prompt | None  # beside the tokens of each text
    gate_input: str | None  # what gates read, one of `config.GATE_INPUTS`; None where there are none
    wants_sparsity = True  # whether a pass in training is to give the task sparsity loss

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.prompt = self.gate_input = None

    def prompt_of_pass(self) -> Tensor | None:
        """What the prompt is in one pass, (P, H): under its dropout another one each time; None without."""
        return None if self.prompt is None else self.prompt()

    def gate_input_of(self, prompt_PH: Tensor | None, padding_mask_BL: Tensor, first: int = 0) -> GateInput | None:
        """What gates read in a pass; None where there are none.

        `padding_mask_BL` is True at padding, of prompt and words; the prompt begins at the position `first`.
        """
        if self.gate_input is None:
            return None
        wants_similarities = self.training and self.wants_sparsity
        if self.gate_input == CORRELATION:
            assert prompt_PH is not None
            return GateInput(prompt_PH.mean(0), wants_similarities)
        reads_BL = ~padding_mask_BL
        if self.gate_input == ACTIVATIONS:
            assert prompt_PH is not None
            positions_BL = torch.arange(reads_BL.shape[1], device=reads_BL.device).expand_as(reads_BL)
            reads_BL = (first <= positions_BL) & (positions_BL < first + len(prompt_PH))
        return GateInput(partial(mean_states, reads_BL=reads_BL), wants_similarities)


def mean_states(states_LBH: Tensor, reads_BL: Tensor) -> Tensor:
    """The mean of each sentence's states at the positions that are read, (B, H), float32."""
    shares_BL = reads_BL / reads_BL.sum(1, keepdim=True).clamp(min=1)
    return torch.einsum("lbh,bl->bh", states_LBH.float(), shares_BL)


class SearchedMixin(PromptMixin):
    """The same of an encoder with a decoder, whose output says what the decoder's gates read."""

    def encoded(self, states: Tensor, context: BatchContext) -> dict[str, list[Any]]:
        """See the backbone's; with the pass that was, if there was one, and the decoder's."""
        output: dict[str, list[Any]] = super().encoded(states, context)  # type: ignore[misc]
        mixture = context.mixture
        if mixture is None:
            return output
        summary = mixture.summary(states) if callable(mixture.summary) else mixture.summary
        return {**output, ENCODER: [mixture], DECODER: [GateInput(summary, mixture.wants_similarities)]}

    def select(self, encoder_out: dict[str, Any], sentences: Tensor) -> dict[str, Any]:
        """See the backbone's; the decoder's pass is of these sentences, in this order."""
        output: dict[str, Any] = super().select(encoder_out, sentences)  # type: ignore[misc]
        if DECODER not in encoder_out:
            return output
        (mixture,) = encoder_out[DECODER]
        if mixture.summary.dim() > 1:
            weights = {block: weights.index_select(0, sentences) for block, weights in mixture.weights.items()}
            mixture = GateInput(mixture.summary.index_select(0, sentences), weights=weights)
        return {**output, DECODER: [mixture]}


class GuidedMixin:
    """Mixed into a decoder, before its backbone's: its gates read what the encoder says."""

    def context_of(self, words: Tensor, encoder_out: dict[str, Any]) -> BatchContext:
        """See the backbone's; hypotheses of one sentence share weights."""
        context: BatchContext = super().context_of(words, encoder_out)  # type: ignore[misc]
        (beam,), (mixture,) = encoder_out.get("beam", [1]), encoder_out.get(DECODER, [None])
        if mixture is not None and beam > 1 and mixture.summary.dim() > 1:
            numbers = torch.arange(len(mixture.summary), device=mixture.summary.device)
            mixture = replace(mixture, sentences=numbers.repeat_interleave(beam))
        return replace(context, mixture=mixture)

    def extra(self, context: BatchContext, encoder_out: dict[str, Any]) -> dict[str, Any]:
        """See the backbone's; in training with the task sparsity loss of all layers, where it is wanted."""
        extra: dict[str, Any] = super().extra(context, encoder_out)  # type: ignore[misc]
        if context.mixture is None or not context.mixture.wants_similarities:
            return extra
        return {**extra, SPARSITY: task_sparsity_loss([*encoder_out[ENCODER], context.mixture])}


def record_similarity(block: Any, inputs: tuple[Any, ...], output: Any) -> None:
    """A hook after a block's forward pass, before others: how like its output (L, B, H) its sources' are."""
    context: BatchContext = inputs[1]
    through = context.mixture
    if through is not None and block in through.narrow:
        states = output if isinstance(output, Tensor) else output[0]
        cosines = block.mixture.adapters.cosines(through.narrow.pop(block), states)
        weights = through.expand_to_beam(through.weights[block])
        through.similarities[block] = layer_similarity(cosines, weights, context.padding_mask)


def adapter_plan(cfg: Any, metadata: Metadata, width: int) -> AdapterPlan:
    """What stands beside each block's feed-forward layer in a stream of this width; `cfg` has `PemtOptions`."""
    if cfg.pemt_stage == SOURCE:
        return AdapterPlan(cfg.adapter, cfg.adapter_rank, 1, cfg.adapter_alpha)
    target_size = cfg.target_adapter_size or max(1, width // TARGET_SHARE)
    if metadata.merged_rank:
        return AdapterPlan(cfg.adapter, metadata.merged_rank, 1, cfg.adapter_alpha, None, target_size)
    count = len(metadata.sources)
    return AdapterPlan(cfg.adapter, cfg.adapter_rank, count, cfg.adapter_alpha, width if count else None, target_size)


class PemtModel(nn.Module):
    """Mixed into a system's model, before its backbone's; its encoder is a `PromptMixin`.

    `build_model` asks `load_sources` what there is, builds the backbone with an `adapter_plan` in each block, and calls
    `begin`. Prompts and sources begin when the backbone gets its weights.
    """

    encoder: Any
    metadata: Metadata
    backbone_fingerprint: Tensor

    def begin(self, cfg: Any, begun: LoadedSources) -> None:
        """To be called when the model is built, with `PemtOptions` and what `load_sources` returned."""
        self.metadata, self._sources = begun.metadata, dict(begun.sources)
        self._language_symbols = begun.language_symbols
        self._stage, self._prompt_init, self._source_option = cfg.pemt_stage, cfg.prompt_init, cfg.pemt_sources
        self._made, self._has_weights = Made.by(cfg), False
        lengths = [source.length for source in self.metadata.sources]
        self._lacks_sources = bool(lengths) and not self._sources
        if self._made.has_prompt:
            size = len(self.metadata.tokens), self.prompt_embeddings().shape[1]
            self.encoder.prompt = CorrelatedPrompt(*size, lengths) if lengths else Prompt(*size)
        self.encoder.gate_input = gate_input(cfg) if lengths else None
        # Of whole numbers, so that neither half precision nor an average changes it
        self.register_buffer(FINGERPRINT, torch.zeros(32, dtype=torch.long))
        for block in adapter_blocks(self).values() if lengths else ():
            block.register_forward_hook(record_similarity, prepend=True)
        for name, parameter in self.named_parameters():
            parameter.requires_grad_(is_trainable(name, cfg.pemt_stage))

    def prompt_embeddings(self) -> Tensor:
        """The vectors of all tokens as they stand in the encoder's stream, (V, H)."""
        weight: Tensor = self.encoder.embed_tokens.weight
        return weight

    @property
    def source_names(self) -> list[str]:
        """In the order of a gate's weights; none where it borrows from none."""
        return [source.task for source in self.metadata.sources]

    @property
    def gates_event(self) -> tuple[str, dict[str, Any]]:
        """See `protocols.MixesSources`: `sources`, with the task that they are borrowed for."""
        return "sources", {"target": self.metadata.task, "sources": self.source_names}

    @property
    def noted_options(self) -> dict[str, str]:
        """See `protocols.NotesOptions`."""
        return {"pemt": self.metadata.to_text(), "pemt_sources": self._source_option}

    def load_state_dict(  # type: ignore[override]  # fairseq's
        self, state_dict: dict[str, Tensor], strict: bool = True, model_cfg: Any = None, args: Any = None
    ) -> Any:
        """As fairseq's; with a backbone's weights alone, prompts and sources begin. UserError where they misfit."""
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
        digest = sources.fingerprint(weights, rows)
        self.backbone_fingerprint.copy_(torch.tensor(list(bytes.fromhex(digest))))
        for path, source in self._sources.items():
            wanted, found = self.made, source.made.backbone
            if found != digest and found in sources.earlier_fingerprints(weights, rows):
                wanted = replace(wanted, backbone=found)
            sources.expect_same(path, source.made, wanted)
            sources.expect_tensors(path, source, self._adapters(0), self.prompt_embeddings().shape[1])
        prompt = self.encoder.prompt
        if prompt is not None:
            prompt.begin_as_(self.metadata.tokens, self.prompt_embeddings(), self._prompt_init)
        for index, source in enumerate(self._sources.values()):
            for name, kept in self._adapters(index).items():
                kept.copy_(source.tensors[name])
        if isinstance(prompt, CorrelatedPrompt) and self._sources:
            prompt.take_sources_([source.tensors[sources.PROMPT] for source in self._sources.values()])

    def _expect_own_sources(self, state: Mapping[str, Tensor]) -> None:
        """Refuse a checkpoint that borrows from other sources than the files of this run, or in another order."""
        rule = "the sources that the checkpoint borrows from, in their order"
        for index, (path, source) in enumerate(self._sources.items()):
            for name, value in source.tensors.items():
                saved = state.get(SOURCE_PROMPTS if name == sources.PROMPT else name)
                own = None if saved is None or index >= len(saved) else saved[index]
                if own is not None and name == sources.PROMPT:
                    own = own[: len(value)]
                if own is None or not torch.equal(own.cpu(), value.to(own.dtype)):
                    raise UserError(
                        f"`--pemt-sources` must name {rule}, but `{path}` is another than its source {index + 1}."
                    )
        kept = [len(state[name]) for name in (self._adapters(0) if self._sources else ()) if name in state]
        if kept and kept[0] > len(self._sources):
            rule = rule.replace("the", f"the {kept[0]}", 1)
            raise UserError(f"`--pemt-sources` must name {rule}, but names {len(self._sources)}.")

    def expect_weights(self) -> None:
        """See `protocols.NeedsWeights`. Raises `UserError` where the backbone or its sources have no weights yet."""
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
        return replace(self._made, backbone=bytes(self.backbone_fingerprint.tolist()).hex())

    def _adapters(self, index: int) -> dict[str, Tensor]:
        """All layers' adapters of one source, by their names in the model, as views."""
        return {
            f"{path}.mixture.adapters.{name}": value
            for path, block in adapter_blocks(self).items()
            if block.mixture.adapters is not None
            for name, value in block.mixture.adapters.member(index).items()
        }

    def export_source(self, folder: str) -> Path | None:
        """See `protocols.ExportsSource`: in stage 1, the source's. Raises `UserError` where it cannot be written."""
        if self._stage != SOURCE:
            return None
        tensors = self._adapters(0)
        if self.encoder.prompt is not None:
            tensors[sources.PROMPT] = self.encoder.prompt.weight
        kept = {name: value.detach().to("cpu", torch.float32, copy=True) for name, value in tensors.items()}
        path = sources.file_of(folder, self.metadata.task)
        Source(self.metadata.task, self.metadata.description, self.made, kept).save(path)
        return path
