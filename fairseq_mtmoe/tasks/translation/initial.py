"""The model that a run begins with: `--init-model`, a file of `mtmoe import-hf`, or a dense checkpoint.

It says which sizes a model has, which languages and forms sentences have, and which vocabulary data must be made with.
"""

import logging
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from omegaconf import open_dict
from torch import Tensor, nn

from fairseq_mtmoe.checkpoints import file_io
from fairseq_mtmoe.checkpoints.key_maps import MOE
from fairseq_mtmoe.checkpoints.rebuild import model_options
from fairseq_mtmoe.data.translation.vocabulary import Vocabulary
from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.options.transformer import TranslatorForm
from fairseq_mtmoe.sparsify.in_training import begin_with
from fairseq_mtmoe.tasks.translation import options

logger = logging.getLogger(__name__)

# What weights are made for, by fairseq's names of options; all else is the run's.
_STACK = ("embed_dim", "ffn_embed_dim", "layers", "attention_heads", "normalize_before", "learned_pos")
SIZES = (
    *(f"{side}_{name}" for side in ("encoder", "decoder") for name in _STACK),
    *("decoder_input_dim", "decoder_output_dim", "activation_fn", "layernorm_embedding", "no_scale_embedding"),
    *("share_all_embeddings", "share_decoder_input_output_embed", "no_token_positional_embeddings"),
    *("no_decoder_final_norm", "max_source_positions", "max_target_positions"),
    *(own.name for own in fields(TranslatorForm)),
)


@dataclass(frozen=True)
class InitialModel:
    """A dense translator to begin with."""

    path: str
    sizes: Mapping[str, Any]
    settings: Mapping[str, Any]  # its task's state
    weights: Mapping[str, Tensor]  # mapped: read when they are touched

    @property
    def vocabulary(self) -> Vocabulary | None:
        return Vocabulary.of_state(self.settings)

    def set_up(self, args: Namespace) -> None:
        """Let the task's options be those of the model: its languages and its forms of sentences."""
        for name in options.FORMS:
            if name in self.settings and self.settings[name] != getattr(args, name):
                logger.info(f"from {self.path}: {name} = {_short(self.settings[name])}")
                setattr(args, name, self.settings[name])

    def check(self, dicts: Mapping[str, Any], data: str) -> None:
        """Refuse data of another vocabulary (UserError)."""
        for side, dictionary in dicts.items():
            rows = len(self.weights["encoder.embed_tokens.weight"])
            known = self.vocabulary
            differs = known is not None and tuple(dictionary.symbols[4:]) not in (
                known.source.symbols, known.target.symbols
            )  # fmt: skip
            if differs or known is None and len(dictionary) != rows:
                raise UserError(
                    f"The data directory {data} must be made with the vocabulary of `{self.path}`, but its dictionary "
                    f"of {side} is another; `mtmoe prepare … --vocabulary-of {self.path}` makes one with it."
                )

    def note_sizes(self, cfg: Any) -> None:
        """Let a new model have the sizes of this one."""
        with open_dict(cfg):
            for name, value in self.sizes.items():
                if name in cfg and cfg.get(name) != value:
                    cfg[name] = value

    def begin(self, model: nn.Module) -> None:
        begin_with(model, self.weights)


def load(path: str) -> InitialModel:
    """Return the model in a file (UserError: it is no dense translator's)."""
    state = file_io.load(path, mapped=True, remedy="write it anew")
    sizes, weights = model_options(state) or {}, state.get("model") or {}
    if "encoder.embed_tokens.weight" not in weights or "decoder.embed_tokens.weight" not in weights or not sizes:
        raise UserError(
            f"`--init-model` must be a file of `mtmoe import-hf` or a dense checkpoint, but `{path}` is no translator's."
        )
    if any(MOE in name for name in weights):
        raise UserError(
            f"`--init-model` must be a dense model, but `{path}` has experts; `--finetune-from-model` begins with it."
        )
    known = {name: sizes[name] for name in SIZES if name in sizes}
    return InitialModel(path, known, state.get("task_state") or {}, weights)


def _short(value: Any) -> Any:
    return f"{len(value)} languages" if isinstance(value, list) and len(value) > 8 else value
