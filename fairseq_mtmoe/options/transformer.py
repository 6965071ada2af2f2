"""All options of fairseq's transformer as one flat dataclass.

fairseq keeps them nested (`cfg.encoder.embed_dim`), which its command line flattens (`--encoder-embed-dim`) and cannot
nest again for a model that is registered with a dataclass. A flat dataclass works from the command line, from hydra and
from checkpoints alike, and every option keeps fairseq's name, default and meaning.
"""

import dataclasses
import inspect
from typing import Any, Dict, List, Tuple, Type

from fairseq.dataclass import FairseqDataclass
from fairseq.models.transformer import TransformerConfig
from omegaconf import II, DictConfig, OmegaConf

OptionField = Tuple[str, Any, Any]

# Unless they are given, these follow another option, as in fairseq's own architecture functions.
FOLLOWS = {
    "decoder_embed_dim": "encoder_embed_dim",
    "decoder_ffn_embed_dim": "encoder_ffn_embed_dim",
    "decoder_input_dim": "decoder_embed_dim",
    "decoder_output_dim": "decoder_embed_dim",
}


def _flat_fields(config: Type[FairseqDataclass], prefix: str = "") -> List[OptionField]:
    found: List[OptionField] = []
    for option in dataclasses.fields(config):
        if option.name.startswith("_"):
            continue
        name = prefix + option.name
        if inspect.isclass(option.type) and issubclass(option.type, FairseqDataclass):
            found += _flat_fields(option.type, prefix=f"{name}_")
            continue
        default = II(f"model.{FOLLOWS[name]}") if name in FOLLOWS else option.default
        # fairseq's parser leaves an interpolated option without help out, as one that is declared elsewhere.
        metadata = dict(option.metadata) or {"help": name.replace("_", " ")}
        found.append((name, option.type, dataclasses.field(default=default, metadata=metadata)))
    return found


FlatTransformerConfig = dataclasses.make_dataclass(
    "FlatTransformerConfig",
    _flat_fields(TransformerConfig),
    bases=(FairseqDataclass,),
    namespace={"__doc__": "The options of fairseq's transformer, flat."},
)


class _Options:
    """A plain holder of attributes: `TransformerConfig.from_namespace` reads them with `vars`."""

    def __init__(self, values: Dict[str, Any]) -> None:
        self.__dict__.update(values)


def nested_options(cfg: Any) -> TransformerConfig:
    """fairseq's nested `TransformerConfig` with the values of a flat configuration (hydra's, or a dataclass)."""
    given: Any = OmegaConf.to_container(cfg, resolve=False) if isinstance(cfg, DictConfig) else vars(cfg)
    defaults = {field.name: field.default for field in dataclasses.fields(FlatTransformerConfig)}
    values = {name: given.get(name, default) for name, default in defaults.items() if name != "_name"}
    for name, followed in FOLLOWS.items():
        if not isinstance(values[name], int):  # still an interpolation
            values[name] = values[followed]
    return TransformerConfig.from_namespace(_Options(values))
