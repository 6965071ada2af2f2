"""All options of fairseq's transformer as one flat dataclass.

fairseq keeps them nested (`cfg.encoder.embed_dim`), which its command line flattens (`--encoder-embed-dim`) and cannot
nest again for a model that is registered with a dataclass. A flat dataclass works from the command line, from hydra and
from checkpoints alike, and every option keeps fairseq's name, default and meaning.
"""

import dataclasses
import inspect
from typing import Any, List, Tuple, Type

from fairseq.dataclass import FairseqDataclass
from fairseq.models.transformer import TransformerConfig
from omegaconf import DictConfig, OmegaConf

OptionField = Tuple[str, Any, Any]


def _flat_fields(config: Type[FairseqDataclass], prefix: str = "") -> List[OptionField]:
    found: List[OptionField] = []
    for option in dataclasses.fields(config):
        if option.name.startswith("_"):
            continue
        name = prefix + option.name
        if inspect.isclass(option.type) and issubclass(option.type, FairseqDataclass):
            found += _flat_fields(option.type, prefix=f"{name}_")
            continue
        default = option.default
        if isinstance(default, str) and default.startswith("${model.decoder."):
            default = default.replace("model.decoder.", "model.decoder_")
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

    def __init__(self, values: dict) -> None:
        self.__dict__.update(values)


def nested_options(cfg: Any) -> TransformerConfig:
    """fairseq's nested `TransformerConfig` with the values of a flat configuration (hydra's, or a dataclass)."""
    if isinstance(cfg, DictConfig):
        values = OmegaConf.to_container(cfg, resolve=False)
    else:
        values = dict(vars(cfg))
    known = {field.name: field.default for field in dataclasses.fields(FlatTransformerConfig)}
    values = {**known, **{name: value for name, value in values.items() if value is not dataclasses.MISSING}}
    for name in ("decoder_input_dim", "decoder_output_dim"):
        if not isinstance(values[name], int):  # an interpolation outside of hydra
            values[name] = values["decoder_embed_dim"]
    return TransformerConfig.from_namespace(_Options({name: values[name] for name in known if name != "_name"}))
