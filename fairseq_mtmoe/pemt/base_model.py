"""PEMT's additions to any backbone: prompts, the gates' input, and two stages.

Implements PEMT, §3.1 and §3.2. The target's prompt is correlated with the sources' prompts
(equations 3 and 4), gates read a summary (equation 2), and the task sparsity loss (equation 5) is
measured at each block's output.

If gates read mean states, the encoder's gates read the states of their own layer. The decoder's
gates read the encoder's output, because means of decoder states would reveal later words.

Letters, besides those of expert_layer.md: `K` sources, `N` vectors of the longest source prompt,
`P` of the target's.
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
from fairseq_mtmoe.core.errors import UserError
from fairseq_mtmoe.core.protocols import TrainingModel
from fairseq_mtmoe.pemt import sources
from fairseq_mtmoe.pemt.config import (
    CORRELATION,
    DESCRIPTION,
    FINGERPRINT,
    HIDDEN,
    SOURCE,
    gate_input,
    has_prompt,
    is_added,
    is_trainable,
)
from fairseq_mtmoe.pemt.sources import LoadedSources, Metadata, Source, SourceSettings
from fairseq_mtmoe.slots import (
    SPARSITY,
    AdapterPass,
    AdapterPlan,
    BatchContext,
    adapter_blocks,
    task_sparsity_loss,
)

# Keys of both stacks' passes in an encoder's output
ENCODER_PASS = "encoder_pass"
DECODER_PASS = "decoder_pass"
ATTENTION_DROPOUT = 0.1  # dropout of the correlation's weights, as in the authors' code
TARGET_SHARE = 16  # model width / width of a target adapter, as in the authors' code


class Prompt(nn.Module):
    """A task's trainable prompt: `length` vectors of `width`."""

    def __init__(self, length: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(length, width))

    def forward(self) -> Tensor:
        """Return the prompt, (P, H)."""
        return self.weight

    @torch.no_grad()
    def begin_as_(self, tokens: Sequence[int], embeddings: Tensor, init: str) -> None:
        """Set the prompt to the description's `tokens`, or to similar random vectors.

        embeddings: of all tokens, (V, H), whose mean and standard deviation random vectors get.
        """
        assert len(tokens) == len(self.weight)
        if init == DESCRIPTION:
            self.weight.copy_(embeddings[list(tokens)])
        else:
            self.weight.normal_(embeddings.float().mean().item(), embeddings.float().std().item())


class CorrelatedPrompt(Prompt):
    """A target's prompt Q (`weight`) and the frozen prompts P_k of its sources."""

    sources: Tensor  # the prompts, 0 beyond their lengths, (K, N, H)
    has_source: Tensor  # True within a prompt's length, (K, N)

    def __init__(self, length: int, width: int, source_lengths: Sequence[int]) -> None:
        super().__init__(length, width)
        longest = max(source_lengths)
        self.register_buffer("sources", torch.zeros(len(source_lengths), longest, width))
        has_source_KN = torch.arange(longest) < torch.tensor(list(source_lengths)).unsqueeze(1)
        self.register_buffer("has_source", has_source_KN, persistent=False)

    def forward(self) -> Tensor:
        """Return Q + Σ_k softmax(Q P_kᵀ) P_k, (P, H): equations 3 and 4.

        Scores are not scaled. They are computed in float32, because T5's embeddings are large.
        """
        with torch.autocast(self.weight.device.type, enabled=False):
            queries_PH = self.weight.float()
            sources_LH = self.sources.float().flatten(0, 1)
            scores_PKN = (queries_PH @ sources_LH.t()).unflatten(1, self.has_source.shape)
            weights_PKN = scores_PKN.masked_fill(~self.has_source, float("-inf")).softmax(2)
            weights_PKN = F.dropout(weights_PKN, ATTENTION_DROPOUT, self.training)
            return (queries_PH + weights_PKN.flatten(1) @ sources_LH).to(self.weight.dtype)

    @torch.no_grad()
    def take_sources_(self, prompts: Sequence[Tensor]) -> None:
        """Copy the sources' prompts, (N_k, H) each."""
        rows = zip(self.sources, self.has_source, prompts, strict=True)
        for kept_NH, has_source_N, prompt in rows:
            kept_NH[has_source_N] = prompt.to(kept_NH)


class PromptMixin(nn.Module):
    """Mixin for a backbone's encoder; `PemtModel` sets its attributes."""

    prompt: Prompt | None  # beside the tokens of each text
    gate_input: str | None  # the gates' input, one of `config.GATE_INPUTS`; None without gates
    wants_sparsity = True  # whether training passes return the task sparsity loss

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.prompt = self.gate_input = None

    def prompt_of_pass(self) -> Tensor | None:
        """Return the prompt of one pass, with new dropout, (P, H), or None."""
        return None if self.prompt is None else self.prompt()

    def adapter_pass_of(
        self, prompt_PH: Tensor | None, padding_mask_BL: Tensor, first: int = 0
    ) -> AdapterPass | None:
        """Return a new pass with the gates' input; None without gates.

        padding_mask_BL: True at padding, over prompt and words.
        first: position of the prompt's first vector.
        """
        if self.gate_input is None:
            return None
        wants_similarities = self.training and self.wants_sparsity
        reads_BL = ~padding_mask_BL
        if self.gate_input != HIDDEN:
            assert prompt_PH is not None
            if self.gate_input == CORRELATION:
                return AdapterPass(prompt_PH.mean(0), wants_similarities)
            reads_BL = torch.zeros_like(padding_mask_BL)
            reads_BL[:, first : first + len(prompt_PH)] = True
        return AdapterPass(partial(mean_states, reads_BL=reads_BL), wants_similarities)


def mean_states(states_LBH: Tensor, reads_BL: Tensor) -> Tensor:
    """Return each sentence's mean state where `reads_BL` is True, (B, H), float32."""
    shares_BL = reads_BL / reads_BL.sum(1, keepdim=True).clamp(min=1)
    with torch.autocast(states_LBH.device.type, enabled=False):
        return torch.einsum("lbh,bl->bh", states_LBH.float(), shares_BL)


class EncoderForGatedDecoder(PromptMixin):
    """`PromptMixin` whose output carries the input of the decoder's gates."""

    def encoded(self, states: Tensor, context: BatchContext) -> dict[str, list[Any]]:
        """Return the backbone's output with both stacks' passes, if gates exist."""
        output: dict[str, list[Any]] = super().encoded(states, context)  # type: ignore[misc]
        adapter_pass = context.adapter_pass
        if adapter_pass is None:
            return output
        summary = adapter_pass.summary
        if callable(summary):
            summary = summary(states)
        decoder_pass = AdapterPass(summary, adapter_pass.wants_similarities)
        return {**output, ENCODER_PASS: [adapter_pass], DECODER_PASS: [decoder_pass]}

    def select(self, encoder_out: dict[str, Any], sentences: Tensor) -> dict[str, Any]:
        """Return the output of these sentences, in this order, with their pass."""
        output: dict[str, Any] = super().select(encoder_out, sentences)  # type: ignore[misc]
        if DECODER_PASS not in encoder_out:
            return output
        (adapter_pass,) = encoder_out[DECODER_PASS]
        if adapter_pass.summary.dim() > 1:
            summary = adapter_pass.summary.index_select(0, sentences)
            stored = adapter_pass.weights.items()
            weights = {block: value.index_select(0, sentences) for block, value in stored}
            adapter_pass = AdapterPass(summary, weights=weights)
        return {**output, DECODER_PASS: [adapter_pass]}


class GatedDecoder:
    """Mixin for a backbone's decoder, whose gates read the encoder's output."""

    def context_of(self, words: Tensor, encoder_out: dict[str, Any]) -> BatchContext:
        """Return the backbone's context with the gates' input."""
        context: BatchContext = super().context_of(words, encoder_out)  # type: ignore[misc]
        (beam,) = encoder_out.get("beam", [1])
        (adapter_pass,) = encoder_out.get(DECODER_PASS, [None])
        if adapter_pass is not None and beam > 1 and adapter_pass.summary.dim() > 1:
            sentences = torch.arange(len(adapter_pass.summary), device=adapter_pass.summary.device)
            adapter_pass = replace(adapter_pass, sentences=sentences.repeat_interleave(beam))
        return replace(context, adapter_pass=adapter_pass)

    def extra(self, context: BatchContext, encoder_out: dict[str, Any]) -> dict[str, Any]:
        """Return the backbone's extra output, with the task sparsity loss if wanted."""
        extra: dict[str, Any] = super().extra(context, encoder_out)  # type: ignore[misc]
        if context.adapter_pass is None or not context.adapter_pass.wants_similarities:
            return extra
        passes = [*encoder_out[ENCODER_PASS], context.adapter_pass]
        return {**extra, SPARSITY: task_sparsity_loss(passes)}


def adapter_plan(cfg: Any, metadata: Metadata, width: int) -> AdapterPlan:
    """Return the adapters' plan for a model of this `width` with `PemtOptions`."""
    kind = cfg.adapter
    alpha = cfg.adapter_alpha
    if cfg.pemt_stage == SOURCE:
        return AdapterPlan(kind, cfg.adapter_rank, alpha=alpha)
    target_size = cfg.target_adapter_size or max(1, width // TARGET_SHARE)
    if metadata.merged_rank:
        return AdapterPlan(kind, metadata.merged_rank, alpha=alpha, target_size=target_size)
    count = len(metadata.sources)
    return AdapterPlan(kind, cfg.adapter_rank, count, alpha, width if count else None, target_size)


class PemtModel(TrainingModel, nn.Module):
    """Mixin for a backbone's model; its encoder is a `PromptMixin`.

    `build_model` calls `load_sources`, builds the backbone with an `adapter_plan` in each block,
    and calls `finish_building`. Prompts and sources are initialized when the backbone gets its
    weights.
    """

    encoder: Any
    metadata: Metadata
    backbone_fingerprint: Tensor

    def finish_building(self, cfg: Any, loaded_sources: LoadedSources) -> None:
        """Finish building: add prompt and gates' input, and freeze the rest.

        cfg: with `PemtOptions`.
        loaded_sources: the result of `load_sources`.
        """
        self.metadata = loaded_sources.metadata
        self._loaded_sources = loaded_sources
        self._cfg = cfg
        self._has_weights = False
        lengths = [source.length for source in self.metadata.sources]
        if has_prompt(cfg):
            size = len(self.metadata.tokens), self.prompt_embeddings().shape[1]
            self.encoder.prompt = CorrelatedPrompt(*size, lengths) if lengths else Prompt(*size)
        self.encoder.gate_input = gate_input(cfg) if lengths else None
        # Integers, so that neither half precision nor averaging changes the fingerprint
        self.register_buffer(FINGERPRINT, torch.zeros(32, dtype=torch.long))
        for name, parameter in self.named_parameters():
            parameter.requires_grad_(is_trainable(name, cfg.pemt_stage))

    def prompt_embeddings(self) -> Tensor:
        """Return the embeddings of all tokens, scaled as in the encoder, (V, H)."""
        weight: Tensor = self.encoder.embed_tokens.weight
        return weight

    @property
    def source_names(self) -> list[str]:
        """Return the sources' names in the order of gate weights."""
        return [source.task for source in self.metadata.sources]

    @property
    def gates_event(self) -> tuple[str, dict[str, Any]]:
        """Return the event `sources` with the target task; see `TrainingModel`."""
        return "sources", {"target": self.metadata.task, "sources": self.source_names}

    @property
    def noted_options(self) -> dict[str, str]:
        """Return the options `pemt` and `pemt_sources`; see `TrainingModel`."""
        return {"pemt": self.metadata.to_text(), "pemt_sources": self._cfg.pemt_sources}

    @property
    def constants(self) -> set[str]:
        """Return the names of backbone, sources and fingerprint; see `TrainingModel`."""
        # A state has every name of a shared parameter
        parameters = self.named_parameters(remove_duplicate=False)
        trained = {name for name, parameter in parameters if parameter.requires_grad}
        return set(self.state_dict()) - trained

    def load_state_dict(  # type: ignore[override]  # fairseq's
        self,
        state_dict: dict[str, Tensor],
        strict: bool = True,
        model_cfg: Any = None,
        args: Any = None,
    ) -> Any:
        """Load as fairseq does, and initialize prompts and sources if they are missing.

        Raises `UserError` if the state or the sources do not fit.
        """
        if any(MOE in name for name in state_dict):
            raise UserError(
                "`--finetune-from-model` has experts, but PEMT requires a dense model, because its "
                "adapters belong to dense layers."
            )
        for path, source in self._loaded_sources.sources.items():
            width = self.prompt_embeddings().shape[1]
            sources.expect_tensors(path, source, self._adapters(0), width)
        if any(is_added(name) for name in state_dict):
            self._expect_own_sources(state_dict)
            self._has_weights = True
            return super().load_state_dict(state_dict, strict)
        additions = {name: value for name, value in self.state_dict().items() if is_added(name)}
        loaded = super().load_state_dict({**state_dict, **additions}, strict)
        self._begin_additions(state_dict)
        self._has_weights = bool(self._loaded_sources.sources) or not self.source_names
        return loaded

    @torch.no_grad()
    def _begin_additions(self, state: Mapping[str, Tensor]) -> None:
        # The fingerprint is the state's: the model's own parameters may be in half precision
        weights = [(name, state.get(name, value)) for name, value in sources.backbone(self)]
        rows = sources.rows_of_languages(weights, self._loaded_sources.language_symbols)
        digest = sources.fingerprint(weights, rows)
        self.backbone_fingerprint.copy_(torch.tensor(list(bytes.fromhex(digest))))
        for path, source in self._loaded_sources.sources.items():
            sources.expect_same(path, source.made, self.made)
        prompt = self.encoder.prompt
        if prompt is not None:
            tokens = self.metadata.tokens
            prompt.begin_as_(tokens, self.prompt_embeddings(), self._cfg.prompt_init)
        loaded = self._loaded_sources.sources.values()
        for index, source in enumerate(loaded):
            for name, kept in self._adapters(index).items():
                kept.copy_(source.tensors[name])
        if isinstance(prompt, CorrelatedPrompt) and loaded:
            prompt.take_sources_([source.tensors[sources.PROMPT] for source in loaded])

    def _expect_own_sources(self, state: Mapping[str, Tensor]) -> None:
        """Raise a `UserError` if a checkpoint's sources are not this run's, in order."""
        for name in self._adapters(0) if self._loaded_sources.sources else ():
            adapters = [source.tensors[name] for source in self._loaded_sources.sources.values()]
            saved = state.get(name, torch.empty(0)).cpu()
            if not torch.equal(saved, torch.stack(adapters).to(saved.dtype)):
                raise UserError(
                    f"`--pemt-sources` must name the {len(saved)} sources that the checkpoint "
                    "contains, in their order, but names others."
                )

    def expect_weights(self) -> None:
        """Raise a `UserError` if the model has no weights; see `TrainingModel`."""
        if not self._has_weights:
            raise UserError(
                f"A model of `--pemt-stage {self._cfg.pemt_stage}` must start from trained weights "
                "(`--init-model` for a T5, `--init-encoder` for a BERT, `--finetune-from-model` "
                "for a checkpoint); without `--pemt-sources`, from a checkpoint that contains them."
            )

    @property
    def made(self) -> SourceSettings:
        """Return the settings that sources must share with this model."""
        backbone = bytes(self.backbone_fingerprint.tolist()).hex()
        return replace(SourceSettings.by(self._cfg), backbone=backbone)

    def _adapters(self, index: int) -> dict[str, Tensor]:
        """Return views of one source's adapters in all layers, by name."""
        return {
            f"{path}.mixture.adapters.{name}": value
            for path, block in adapter_blocks(self).items()
            if block.mixture.adapters is not None
            for name, value in block.mixture.adapters.member(index).items()
        }

    def export_source(self, folder: str) -> Path | None:
        """Write the source file in stage 1, or return None; see `TrainingModel`.

        Raises `UserError` if the file cannot be written.
        """
        if self._cfg.pemt_stage != SOURCE:
            return None
        tensors = self._adapters(0)
        if self.encoder.prompt is not None:
            tensors[sources.PROMPT] = self.encoder.prompt.weight
        kept = {}
        for name, value in tensors.items():
            kept[name] = value.detach().to("cpu", torch.float32, copy=True)
        path = Path(folder) / f"{self.metadata.task}.pt"
        Source(self.metadata.task, self.metadata.description, self.made, kept).save(path)
        return path
