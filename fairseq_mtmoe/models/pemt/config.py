"""Options of PEMT: what trains, what it borrows from, and how."""

import re
from argparse import SUPPRESS
from dataclasses import dataclass, field
from typing import Any, List, Optional

from fairseq.dataclass import FairseqDataclass

from fairseq_mtmoe.checkpoints.key_maps import MIXTURE
from fairseq_mtmoe.errors import UserError, raise_invalid
from fairseq_mtmoe.options.conditional import ConditionalOptions
from fairseq_mtmoe.options.experts import RunOptions
from fairseq_mtmoe.options.transformer import EncoderOptions, FlatTransformerConfig, T5Options

SOURCE, TARGET = STAGES = ("source", "target")
LORA, BOTTLENECK = ADAPTERS = ("lora", "bottleneck")
DESCRIPTION, RANDOM = INITS = ("description", "random")
ALPHA = 64.0  # the authors' code
CORRELATION, ACTIVATIONS, HIDDEN = GATE_INPUTS = ("correlation", "activations", "hidden")


@dataclass
class PemtOptions:
    """Mixed into the configuration of every model that can borrow from source tasks, whatever its backbone."""

    pemt_stage: str = field(
        default=TARGET,
        metadata={
            "help": "source: train a task's adapters and prompt, and write them to SAVE_DIR/TASK.pt; target: borrow "
            "from --pemt-sources"
        },
    )
    pemt_sources: str = field(
        default="",
        metadata={
            "help": "comma-separated files of source tasks; none: the target's own adapters alone, without a prompt"
        },
    )
    adapter: str = field(
        default=LORA,
        metadata={"help": "the sources' adapters: lora, on the feed-forward layer's second matrix, or bottleneck"},
    )
    adapter_rank: int = field(default=64, metadata={"help": "rank of the sources' adapters"})
    adapter_alpha: float = field(
        default=ALPHA, metadata={"help": "scale of LoRA times its rank: what an adapter says is alpha / rank of it"}
    )
    target_adapter_size: Optional[int] = field(
        default=None, metadata={"help": "width of the target's own adapters (by default a 16th of the stream's)"}
    )
    no_prompt: bool = field(
        default=False, metadata={"help": "no prompt, and no correlation of prompts: gates read --gate-input hidden"}
    )
    prompt_init: str = field(
        default="description", metadata={"help": "what a prompt begins as: description, or random values alike"}
    )
    gate_input: Optional[str] = field(
        default=None,
        metadata={
            "help": "what gates read: correlation, the mean of the target's prompt (by default); activations, the "
            "mean of its states in each text, as in the authors' code; hidden, the mean of all states of each text"
        },
    )
    # Prompts and sources, in JSON, which the model fills in
    pemt: str = field(default="", metadata={"help": SUPPRESS})


@dataclass
class PemtT5Config(PemtOptions, RunOptions, T5Options, FairseqDataclass):
    """PEMT on a pretrained T5."""


@dataclass
class PemtBertConfig(PemtOptions, RunOptions, EncoderOptions, FairseqDataclass):
    """PEMT on a pretrained encoder."""


@dataclass
class PemtTranslationConfig(PemtOptions, ConditionalOptions, RunOptions, FlatTransformerConfig):
    """What `--arch pemt_translation…` adds to fairseq's transformer options."""


def source_paths(cfg: Any) -> List[str]:
    """The files of `--pemt-sources`."""
    return [path for path in cfg.pemt_sources.split(",") if path]


def check_options(cfg: Any) -> None:
    """Raise the `UserError` that names the first of the `PemtOptions` that is out of its range, or fits to no other."""
    choices = {"pemt_stage": STAGES, "adapter": ADAPTERS, "prompt_init": INITS, "gate_input": (None, *GATE_INPUTS)}
    for name, known in choices.items():
        if getattr(cfg, name) not in known:
            raise_invalid(f"--{name.replace('_', '-')}", f"one of {', '.join(filter(None, known))}", getattr(cfg, name))
    if cfg.adapter_rank < 1:
        raise_invalid("--adapter-rank", "at least 1", cfg.adapter_rank)
    if not 0 < cfg.adapter_alpha < float("inf"):
        raise_invalid("--adapter-alpha", "above 0", cfg.adapter_alpha)
    if cfg.adapter == BOTTLENECK and cfg.adapter_alpha != ALPHA:
        raise_invalid("--adapter-alpha", f"left out with --adapter {BOTTLENECK}, which has no scale", cfg.adapter_alpha)
    if cfg.target_adapter_size is not None and cfg.target_adapter_size < 1:
        raise_invalid("--target-adapter-size", "at least 1", cfg.target_adapter_size)
    if cfg.no_prompt and cfg.gate_input not in (None, HIDDEN):
        raise_invalid("--gate-input", f"{HIDDEN} with --no-prompt", cfg.gate_input)
    paths = source_paths(cfg)
    if cfg.pemt_stage == SOURCE and paths:
        raise_invalid("--pemt-sources", f"left out with --pemt-stage {SOURCE}", cfg.pemt_sources)
    if cfg.gate_input is not None and not paths:
        raise_invalid("--gate-input", "left out where there are no --pemt-sources to weigh", cfg.gate_input)
    if cfg.target_adapter_size is not None and cfg.pemt_stage == SOURCE:
        raise_invalid("--target-adapter-size", f"left out with --pemt-stage {SOURCE}", cfg.target_adapter_size)
    if cfg.prompt_init != DESCRIPTION and not has_prompt(cfg):
        raise_invalid("--prompt-init", f"{DESCRIPTION} where there is no prompt to begin", cfg.prompt_init)
    twice = [path for path in paths if paths.count(path) > 1]
    if twice:
        raise UserError(f"`--pemt-sources` must name each file once, but names `{twice[0]}` twice.")


def gate_input(cfg: Any) -> str:
    """What gates read, by default what the paper says; of the states themselves where there is no prompt."""
    return cfg.gate_input or (HIDDEN if cfg.no_prompt else CORRELATION)


def has_prompt(cfg: Any) -> bool:
    """Whether there is one: the paper's ablation of all sources has none, too."""
    return not cfg.no_prompt and (cfg.pemt_stage == SOURCE or bool(source_paths(cfg)))


# ---- names in a model's state ----

PROMPT = "encoder.prompt."
SOURCE_PROMPTS = "encoder.prompt.sources"
FINGERPRINT = "backbone_fingerprint"

_TRAINABLE = {
    SOURCE: re.compile(r"heads\..*|encoder\.prompt\.weight|.*\.mixture\.adapters\..*"),
    TARGET: re.compile(
        r"heads\..*|encoder\.prompt\.weight|.*\.mixture\.(gate|target_adapter)\..*|.*layer_?norm\w*\.(weight|bias)"
    ),
}


def is_trainable(name: str, stage: str) -> bool:
    """Whether a parameter of this name trains in a stage."""
    return bool(_TRAINABLE[stage].fullmatch(name))


def is_added(name: str) -> bool:
    """Whether this is the name of what a model has beside its backbone: prompts, adapters, gates."""
    return MIXTURE in name or name.startswith(PROMPT) or name == FINGERPRINT
