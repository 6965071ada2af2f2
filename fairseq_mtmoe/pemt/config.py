"""Options of PEMT: stage, sources, adapters and gates."""

import re
from argparse import SUPPRESS
from dataclasses import dataclass
from typing import Any, List, Optional

from fairseq.dataclass import FairseqDataclass

from fairseq_mtmoe.checkpoints.key_maps import MIXTURE
from fairseq_mtmoe.conditioning.options import ConditionalOptions
from fairseq_mtmoe.core.errors import UserError, flag, raise_invalid
from fairseq_mtmoe.core.options import check_rules, option
from fairseq_mtmoe.core.transformer_options import (
    EncoderOptions,
    FlatTransformerConfig,
    T5Options,
    TranslatorForm,
)
from fairseq_mtmoe.core.typed import Rule, at_least, one_of
from fairseq_mtmoe.moe.adapters import ADAPTERS, BOTTLENECK, LORA
from fairseq_mtmoe.slots.options import RunOptions

SOURCE = "source"
TARGET = "target"
DESCRIPTION = "description"
RANDOM = "random"
ALPHA = 64.0  # the authors' code
CORRELATION = "correlation"
ACTIVATIONS = "activations"
HIDDEN = "hidden"
GATE_INPUTS = (CORRELATION, ACTIVATIONS, HIDDEN)


@dataclass
class PemtOptions:
    """Options of every model with transfer from source tasks, for any backbone."""

    pemt_stage: str = option(
        TARGET,
        "source: train a task's adapters and prompt, and write them to SAVE_DIR/TASK.pt; target: "
        "train a task with transfer from --pemt-sources",
        one_of((SOURCE, TARGET)),
    )
    pemt_sources: str = option(
        "",
        "comma-separated source files whose adapters the target mixes (default: none; the target "
        "trains only its own adapters, without a prompt)",
    )
    adapter: str = option(
        LORA,
        "type of the sources' adapters: lora (on the feed-forward layer's second matrix) or "
        "bottleneck",
        one_of(ADAPTERS),
    )
    adapter_rank: int = option(64, "rank of the sources' adapters", at_least(1))
    adapter_alpha: float = option(
        ALPHA,
        "LoRA's alpha: the output of an adapter is scaled by alpha / rank",
        Rule("a finite number above 0", lambda value: 0 < value < float("inf")),
    )
    target_adapter_size: Optional[int] = option(
        None,
        "inner width of the target's own adapters (default: 1/16 of the model width)",
        at_least(1),
    )
    no_prompt: bool = option(
        False, "train without prompts and their correlation; gates read --gate-input hidden"
    )
    prompt_init: str = option(
        DESCRIPTION,
        "initial values of the prompt: description (the embeddings of the task's description) or "
        "random (normal, with the embeddings' mean and standard deviation)",
        one_of((DESCRIPTION, RANDOM)),
    )
    gate_input: Optional[str] = option(
        None,
        "input of the gates: correlation (mean of the target's correlated prompt), activations "
        "(mean of the prompt's hidden states in each text, as in the authors' code) or hidden "
        "(mean of all hidden states of each text); default: correlation, or hidden with "
        "--no-prompt",
        one_of(GATE_INPUTS),
    )
    # The model's task and sources in JSON; the model fills it in.
    pemt: str = option("", SUPPRESS)


@dataclass
class PemtT5Config(PemtOptions, RunOptions, T5Options, FairseqDataclass):
    """Options of PEMT on a pretrained T5."""


@dataclass
class PemtBertConfig(PemtOptions, RunOptions, EncoderOptions, FairseqDataclass):
    """Options of PEMT on a pretrained encoder."""


@dataclass
class PemtTranslationConfig(
    PemtOptions, ConditionalOptions, RunOptions, TranslatorForm, FlatTransformerConfig
):
    """Options of PEMT on a translator: fairseq's, PEMT, conditional parts, runs."""


def source_paths(cfg: Any) -> List[str]:
    """Return the files of `--pemt-sources`."""
    return [path for path in cfg.pemt_sources.split(",") if path]


def check_options(cfg: Any) -> None:
    """Raise a `UserError` for the first of the `PemtOptions` that is wrong."""
    check_rules(cfg, PemtOptions)
    paths = source_paths(cfg)
    is_source = cfg.pemt_stage == SOURCE
    has_other_alpha = cfg.adapter == BOTTLENECK and cfg.adapter_alpha != ALPHA
    gates_need_prompt = cfg.no_prompt and cfg.gate_input not in (None, HIDDEN)
    has_target_size = cfg.target_adapter_size is not None
    has_other_init = cfg.prompt_init != DESCRIPTION and not has_prompt(cfg)
    for is_wrong, name, rule in (
        (has_other_alpha, "adapter_alpha", f"left out with --adapter {BOTTLENECK}"),
        (gates_need_prompt, "gate_input", f"{HIDDEN} with --no-prompt"),
        (is_source and paths, "pemt_sources", f"left out with --pemt-stage {SOURCE}"),
        (cfg.gate_input is not None and not paths, "gate_input", "left out without --pemt-sources"),
        (
            has_target_size and is_source,
            "target_adapter_size",
            f"left out with --pemt-stage {SOURCE}",
        ),
        (has_other_init, "prompt_init", f"{DESCRIPTION} without a prompt"),
    ):
        if is_wrong:
            raise_invalid(flag(name), rule, getattr(cfg, name))
    twice = [path for path in paths if paths.count(path) > 1]
    if twice:
        raise UserError(f"`--pemt-sources` must name each file once, but names `{twice[0]}` twice.")


def gate_input(cfg: Any) -> str:
    """Return the gates' input: the option's, or the default with or without prompts."""
    return cfg.gate_input or (HIDDEN if cfg.no_prompt else CORRELATION)


def has_prompt(cfg: Any) -> bool:
    """Return whether the model has a prompt.

    A target without sources has none, as in the paper's ablation.
    """
    return not cfg.no_prompt and (cfg.pemt_stage == SOURCE or bool(source_paths(cfg)))


PROMPT = "encoder.prompt."
FINGERPRINT = "backbone_fingerprint"

_TRAINABLE = {
    SOURCE: re.compile(r"heads\..*|encoder\.prompt\.weight|.*\.mixture\.adapters\..*"),
    TARGET: re.compile(
        r"heads\..*|encoder\.prompt\.weight|.*\.mixture\.(gate|target_adapter)\..*"
        r"|.*layer_?norm\w*\.(weight|bias)"
    ),
}


def is_trainable(name: str, stage: str) -> bool:
    """Return whether a parameter of this name trains in a stage."""
    return bool(_TRAINABLE[stage].fullmatch(name))


def is_added(name: str) -> bool:
    """Return whether the tensor of this name is PEMT's, not the backbone's."""
    return MIXTURE in name or name.startswith(PROMPT) or name == FINGERPRINT
