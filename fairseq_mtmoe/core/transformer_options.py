"""Options of backbones.

They are fairseq's transformer as one flat dataclass, a BERT encoder, and T5.

fairseq nests its options (`cfg.encoder.embed_dim`). Its command line flattens them
(`--encoder-embed-dim`), and cannot nest them again for a model with a dataclass. Every option keeps
fairseq's name, default and meaning.
"""

import dataclasses
import inspect
from argparse import SUPPRESS, Namespace
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, List, Optional, Tuple, Type

from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.models.transformer import TransformerConfig
from fairseq.utils import get_available_activation_fns
from omegaconf import II, DictConfig, OmegaConf

from fairseq_mtmoe.core.options import check_rules, option, value_of
from fairseq_mtmoe.core.typed import one_of

OptionField = Tuple[str, Any, Any]

# The default of each is another option's value, as in fairseq's architecture functions.
FOLLOWS = {
    "decoder_embed_dim": "encoder_embed_dim",
    "decoder_ffn_embed_dim": "encoder_ffn_embed_dim",
    "decoder_input_dim": "decoder_embed_dim",
    "decoder_output_dim": "decoder_embed_dim",
}


# fairseq implements Marian's activation, but does not list it as a choice.
OTHER_TYPES = {"activation_fn": ChoiceEnum([*get_available_activation_fns(), "swish"])}
# Options of fairseq's language models, which its translators ignore or end at, and pruning
LEFT_OUT = (
    "adaptive_input",
    "tie_adaptive_weights",
    "tie_adaptive_proj",
    "char_inputs",
    "encoder_layers_to_keep",
    "decoder_layers_to_keep",
)


def _flat_fields(config: Type[FairseqDataclass], prefix: str = "") -> List[OptionField]:
    flat_fields: List[OptionField] = []
    for option_field in dataclasses.fields(config):
        name = prefix + option_field.name
        if option_field.name.startswith("_") or name in LEFT_OUT:
            continue
        if inspect.isclass(option_field.type) and issubclass(option_field.type, FairseqDataclass):
            flat_fields += _flat_fields(option_field.type, prefix=f"{name}_")
            continue
        default = II(f"model.{FOLLOWS[name]}") if name in FOLLOWS else option_field.default
        # fairseq's parser omits an interpolated option without help:
        # it takes it for one declared elsewhere.
        metadata = dict(option_field.metadata) or {"help": name.replace("_", " ")}
        kind = OTHER_TYPES.get(name, option_field.type)
        flat_fields.append((name, kind, field(default=default, metadata=metadata)))
    return flat_fields


FlatTransformerConfig = dataclasses.make_dataclass(
    "FlatTransformerConfig",
    _flat_fields(TransformerConfig),
    bases=(FairseqDataclass,),
    namespace={"__doc__": "The options of fairseq's transformer, flat."},
)


def nested_options(cfg: Any) -> TransformerConfig:
    """Return fairseq's nested `TransformerConfig` of a flat configuration."""
    values: Any = (
        OmegaConf.to_container(cfg, resolve=False) if isinstance(cfg, DictConfig) else vars(cfg)
    )
    return TransformerConfig.from_namespace(Namespace(**all_options(values)))


def all_options(flat_options: Mapping[str, Any]) -> dict[str, Any]:
    """Return all flat options, with defaults in the place of missing ones."""
    values: dict[str, Any] = vars(FlatTransformerConfig())
    del values["_name"]
    for name, default in values.items():
        values[name] = flat_options.get(name, default)
    for name, followed in FOLLOWS.items():
        if not isinstance(values[name], int):  # still an interpolation
            values[name] = values[followed]
    return values


FAIRSEQ, MARIAN = SINUSOIDS = ("fairseq", "marian")


@dataclass
class TranslatorForm:
    """Parts of pretrained translators that fairseq's transformer lacks.

    `--init-model` fills them in.
    """

    output_bias: bool = option(False, "add a learned bias to the logits, as Marian does")
    sinusoids: str = option(
        FAIRSEQ,
        "sinusoidal position embeddings: fairseq, or marian (other frequencies, positions from 0)",
        one_of(SINUSOIDS),
    )
    decoder_begins_with_pad: bool = option(
        False,
        "start the decoder with the embedding of <pad>, which is not trained,"
        " instead of fairseq's </s>",
    )


def form_of(cfg: Any) -> TranslatorForm:
    """Return the form in a model's flat options (UserError: unknown sinusoids).

    Options that lack these fields have fairseq's form.
    """
    form = TranslatorForm()
    for name in vars(form):
        setattr(form, name, value_of(cfg, TranslatorForm, name))
    check_rules(form, TranslatorForm)
    return form


@dataclass
class EncoderOptions:
    """Options of every model on a BERT encoder.

    Sizes must match the pretrained encoder.
    """

    encoder_layers: Optional[int] = option(
        None, "number of encoder blocks (default: the pretrained encoder's)"
    )
    encoder_embed_dim: Optional[int] = option(
        None, "width of the encoder (default: the pretrained encoder's)"
    )
    encoder_ffn_embed_dim: Optional[int] = option(
        None, "inner width of feed-forward layers (default: the pretrained encoder's)"
    )
    encoder_attention_heads: Optional[int] = option(
        None, "number of attention heads (default: the pretrained encoder's)"
    )
    dropout: float = option(0.1, "dropout of hidden states")
    attention_dropout: float = option(0.1, "dropout of attention weights")
    checkpoint_activations: bool = option(
        False, "store only each block's input, and recompute the block in the backward pass"
    )
    freeze_layers: str = option(
        "0",
        "freeze this number of the lowest blocks (half: half of all blocks) and, above 0, the"
        " embeddings; parts of --conditional still train there",
    )
    # Sizes of the encoder and of the tasks' heads, and the labels of these, in JSON.
    # The task fills them in.
    encoder: str = option("", SUPPRESS)
    heads: str = option("", SUPPRESS)
    head_labels: str = option("", SUPPRESS)


@dataclass
class T5Options:
    """Options of every model on a T5; sizes must match the pretrained T5."""

    encoder_layers: Optional[int] = option(
        None, "number of encoder blocks (default: the pretrained T5's)"
    )
    decoder_layers: Optional[int] = option(
        None, "number of decoder blocks (default: the pretrained T5's)"
    )
    encoder_embed_dim: Optional[int] = option(
        None, "width of encoder and decoder (default: the pretrained T5's)"
    )
    encoder_attention_heads: Optional[int] = option(
        None, "number of attention heads (default: the pretrained T5's)"
    )
    dropout: float = option(
        0.1, "dropout of hidden states, inner activations and attention weights"
    )
    # All sizes of the T5, and the labels of its task, in JSON; the task fills them in.
    t5: str = option("", SUPPRESS)
    head_labels: str = option("", SUPPRESS)
