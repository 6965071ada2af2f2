"""Options of backbones: all of fairseq's transformer as one flat dataclass, and those of a BERT encoder and a T5.

fairseq keeps them nested (`cfg.encoder.embed_dim`); its command line flattens them (`--encoder-embed-dim`) and cannot
nest them again for a model with a dataclass. Every option keeps fairseq's name, default and meaning.
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

from fairseq_mtmoe.errors import raise_invalid
from fairseq_mtmoe.options import option, value_of

OptionField = Tuple[str, Any, Any]

# Unless they are given, these follow another option, as in fairseq's own architecture functions.
FOLLOWS = {
    "decoder_embed_dim": "encoder_embed_dim",
    "decoder_ffn_embed_dim": "encoder_ffn_embed_dim",
    "decoder_input_dim": "decoder_embed_dim",
    "decoder_output_dim": "decoder_embed_dim",
}


# fairseq computes Marian's activation, but does not offer it.
OTHER_TYPES = {"activation_fn": ChoiceEnum([*get_available_activation_fns(), "swish"])}


def _flat_fields(config: Type[FairseqDataclass], prefix: str = "") -> List[OptionField]:
    found: List[OptionField] = []
    for own in dataclasses.fields(config):
        if own.name.startswith("_"):
            continue
        name = prefix + own.name
        if inspect.isclass(own.type) and issubclass(own.type, FairseqDataclass):
            found += _flat_fields(own.type, prefix=f"{name}_")
            continue
        default = II(f"model.{FOLLOWS[name]}") if name in FOLLOWS else own.default
        # fairseq's parser leaves an interpolated option without help out, as one that is declared elsewhere.
        metadata = dict(own.metadata) or {"help": name.replace("_", " ")}
        found.append((name, OTHER_TYPES.get(name, own.type), field(default=default, metadata=metadata)))
    return found


FlatTransformerConfig = dataclasses.make_dataclass(
    "FlatTransformerConfig",
    _flat_fields(TransformerConfig),
    bases=(FairseqDataclass,),
    namespace={"__doc__": "The options of fairseq's transformer, flat."},
)


def nested_options(cfg: Any) -> TransformerConfig:
    """fairseq's nested `TransformerConfig` with the values of a flat configuration (hydra's, or a dataclass)."""
    given: Any = OmegaConf.to_container(cfg, resolve=False) if isinstance(cfg, DictConfig) else vars(cfg)
    return TransformerConfig.from_namespace(Namespace(**all_options(given)))


def all_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """All of fairseq's flat options, those that are not given by default."""
    defaults = {own.name: own.default for own in dataclasses.fields(FlatTransformerConfig)}
    values = {name: given.get(name, default) for name, default in defaults.items() if name != "_name"}
    for name, followed in FOLLOWS.items():
        if not isinstance(values[name], int):  # still an interpolation
            values[name] = values[followed]
    return values


FAIRSEQ, MARIAN = SINUSOIDS = ("fairseq", "marian")


@dataclass
class TranslatorForm:
    """What pretrained translators have that fairseq's transformer lacks; `--init-model` fills it in."""

    output_bias: bool = option(False, "add a learned bias to the logits, as Marian does")
    sinusoids: str = option(
        FAIRSEQ, "sinusoidal positions: fairseq's, or marian's, with other frequencies and counted from 0"
    )
    decoder_begins_with_pad: bool = option(
        False,
        "let the decoder read the embedding of <pad>, which is not trained, at the beginning, where fairseq's "
        "reads that of </s>",
    )


def form_of(cfg: Any) -> TranslatorForm:
    """The form in a model's flat options; fairseq's in those that were saved before there were others (UserError)."""
    names = [own.name for own in dataclasses.fields(TranslatorForm)]
    form = TranslatorForm(**{name: value_of(cfg, TranslatorForm, name) for name in names})
    if form.sinusoids not in SINUSOIDS:
        raise_invalid("--sinusoids", " or ".join(SINUSOIDS), form.sinusoids)
    return form


@dataclass
class EncoderOptions:
    """Mixed into the configuration of every model on a BERT encoder; given sizes must be the pretrained one's."""

    encoder_layers: Optional[int] = option(None, "blocks of the encoder")
    encoder_embed_dim: Optional[int] = option(None, "width of the encoder")
    encoder_ffn_embed_dim: Optional[int] = option(None, "inner width of its feed-forward")
    encoder_attention_heads: Optional[int] = option(None, "heads of the encoder's attention")
    dropout: float = option(0.1, "dropout of hidden states")
    attention_dropout: float = option(0.1, "dropout of attention weights")
    checkpoint_activations: bool = option(False, "keep of each block only what goes in, and compute it again backward")
    freeze_layers: str = option(
        "0",
        "so many of the lowest blocks, or half of all, keep their pretrained weights, and with them the "
        "embeddings; parts of --conditional train there as elsewhere",
    )
    # All sizes of the encoder, in JSON, and those of the tasks' heads, which the task fills in
    encoder: str = option("", SUPPRESS)
    heads: str = option("", SUPPRESS)


@dataclass
class T5Options:
    """Mixed into the configuration of every model on a T5; given sizes must be the pretrained one's."""

    encoder_layers: Optional[int] = option(None, "blocks of the encoder (default: the pretrained T5's)")
    decoder_layers: Optional[int] = option(None, "blocks of the decoder (default: the pretrained T5's)")
    encoder_embed_dim: Optional[int] = option(None, "width of both (default: the pretrained T5's)")
    encoder_attention_heads: Optional[int] = option(None, "heads of attention (default: the pretrained T5's)")
    dropout: float = option(0.1, "dropout of states, inner values and attention weights")
    # All sizes of the T5, in JSON, which the task fills in
    t5: str = option("", SUPPRESS)
