"""Convert between Hugging Face's `config.json` and fairseq's options.

Three classes compute four families: `m2m_100` M2M-100 and NLLB-200, `mbart` mBART-50, `marian`
OPUS-MT.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from fairseq_mtmoe.checkpoints.hugging_face import (
    CONFIG,
    Blocks,
    Dropout,
    Size,
    TokenId,
    check_fields,
    config_of,
    naming_file,
)
from fairseq_mtmoe.core.errors import UserError, flag, raise_invalid
from fairseq_mtmoe.core.transformer_options import FAIRSEQ
from fairseq_mtmoe.core.transformer_options import MARIAN as MARIAN_SINUSOIDS
from fairseq_mtmoe.core.typed import one_of

MBART = "mbart"
M2M_100 = "m2m_100"
MARIAN = "marian"
FAMILIES = (MBART, M2M_100, MARIAN)
ARCHITECTURES = {
    MBART: "MBartForConditionalGeneration",
    M2M_100: "M2M100ForConditionalGeneration",
    MARIAN: "MarianMTModel",
}
# Ids in fairseq, mBART and M2M-100
BOS_ID = 0
PAD_ID = 1
EOS_ID = 2
# Hugging Face's name -> fairseq's
ACTIVATIONS = {"gelu": "gelu", "relu": "relu", "swish": "swish", "silu": "swish"}

# fairseq's option -> field of `config.json`
FIELDS = {
    "encoder_layers": "encoder_layers",
    "encoder_ffn_embed_dim": "encoder_ffn_dim",
    "encoder_attention_heads": "encoder_attention_heads",
    "decoder_layers": "decoder_layers",
    "decoder_ffn_embed_dim": "decoder_ffn_dim",
    "decoder_attention_heads": "decoder_attention_heads",
    "encoder_embed_dim": "d_model",
    "decoder_embed_dim": "d_model",
    "max_source_positions": "max_position_embeddings",
    "max_target_positions": "max_position_embeddings",
    "dropout": "dropout",
    "attention_dropout": "attention_dropout",
    "activation_dropout": "activation_dropout",
}


# normalize_before, learned_pos, layernorm_embedding and sinusoids in fairseq's options
SWITCHES = {
    MBART: (True, True, True, FAIRSEQ),
    M2M_100: (True, False, False, FAIRSEQ),
    MARIAN: (False, False, False, MARIAN_SINUSOIDS),
}

# fairseq's options that no class of `transformers` computes
NOT_SUPPORTED = (
    "no_token_positional_embeddings",
    "no_cross_attention",
    "cross_self_attention",
    "adaptive_input",
    "no_decoder_final_norm",
    "adaptive_softmax_cutoff",
)


@dataclass(frozen=True)
class TranslatorConfig:
    """Sizes and switches of a translator, named as in `config.json`."""

    model_type: str
    vocab_size: Size
    decoder_vocab_size: Size
    d_model: Size
    encoder_layers: Blocks
    encoder_ffn_dim: Size
    encoder_attention_heads: Size
    decoder_layers: Blocks
    decoder_ffn_dim: Size
    decoder_attention_heads: Size
    max_position_embeddings: Size
    activation_function: Annotated[str, one_of(ACTIVATIONS)]
    scale_embedding: bool
    share_encoder_decoder_embeddings: bool
    dropout: Dropout
    attention_dropout: Dropout
    activation_dropout: Dropout
    pad_token_id: TokenId
    eos_token_id: TokenId
    decoder_start_token_id: TokenId

    def __post_init__(self) -> None:
        """Raise a `UserError` for the first field that is impossible or not supported."""
        check_fields(self)
        for side in ("encoder", "decoder"):
            heads = getattr(self, f"{side}_attention_heads")
            if self.d_model % heads:
                raise_invalid(
                    f"{side}_attention_heads", f"a divisor of d_model, {self.d_model}", heads
                )
        start = self.decoder_start_token_id
        if self.model_type == MARIAN:
            if start not in (self.pad_token_id, self.eos_token_id):
                raise_invalid("decoder_start_token_id", "pad_token_id or eos_token_id", start)
            return
        ids = {"pad_token_id": PAD_ID, "eos_token_id": EOS_ID, "decoder_start_token_id": EOS_ID}
        for name, value in ids.items():
            if getattr(self, name) != value:
                rule = f"{value} with model_type {self.model_type}"
                raise_invalid(name, rule, getattr(self, name))
        if not self.share_encoder_decoder_embeddings:
            rule = f"true with model_type {self.model_type}"
            raise_invalid("share_encoder_decoder_embeddings", rule, False)

    def options(self, has_output_bias: bool) -> dict[str, Any]:
        """Return flat options for a `base_dense`."""
        before, learned, norm, sinusoids = SWITCHES[self.model_type]
        return {
            "_name": "base_dense",
            **{ours: getattr(self, theirs) for ours, theirs in FIELDS.items()},
            "encoder_normalize_before": before,
            "decoder_normalize_before": before,
            "encoder_learned_pos": learned,
            "decoder_learned_pos": learned,
            "decoder_input_dim": self.d_model,
            "decoder_output_dim": self.d_model,
            "layernorm_embedding": norm,
            "activation_fn": ACTIVATIONS[self.activation_function],
            "no_scale_embedding": not self.scale_embedding,
            "share_all_embeddings": self.share_encoder_decoder_embeddings,
            "share_decoder_input_output_embed": True,
            "output_bias": has_output_bias,
            "sinusoids": sinusoids,
            "decoder_begins_with_pad": self.decoder_start_token_id == self.pad_token_id,
        }

    def for_hugging_face(self) -> dict[str, Any]:
        """Return the values of a `config.json`."""
        values: dict[str, Any] = {**vars(self)}
        if self.model_type == MARIAN:
            values["forced_eos_token_id"] = self.eos_token_id
        else:
            del values["decoder_vocab_size"], values["share_encoder_decoder_embeddings"]
            values["bos_token_id"] = BOS_ID
        if self.model_type == MBART:  # CTranslate2 reads these fields
            names = "normalize_before", "normalize_embedding", "add_final_layer_norm"
            values |= {**dict.fromkeys(names, True), "forced_eos_token_id": EOS_ID}
        return {
            **values,
            "architectures": [ARCHITECTURES[self.model_type]],
            "is_encoder_decoder": True,
            "tie_word_embeddings": True,
            "num_hidden_layers": self.encoder_layers,
            "encoder_layerdrop": 0.0,
            "decoder_layerdrop": 0.0,
        }


def config_of_options(
    path: object, options: Mapping[str, Any], num_source: int, num_target: int
) -> TranslatorConfig:
    """Return the config of a class of `transformers` for a model with these options.

    Raises `UserError`: none fits.
    """
    options = {"sinusoids": FAIRSEQ, **options}
    names = "encoder_normalize_before", "encoder_learned_pos", "layernorm_embedding"
    form = {name: bool(options.get(name)) for name in names}
    switches_of_form = tuple(form.values())
    kinds = (kind for kind, switches in SWITCHES.items() if switches[:3] == switches_of_form)
    kind = next(kinds, None)
    if kind is None:
        raise UserError(
            f"`{path}` cannot be converted, because no class of `transformers` combines "
            f"{', '.join(f'{name} = {value}' for name, value in form.items())}; it supports "
            "m2m_100 (norms before sub-layers, sinusoidal positions), mbart (norms before "
            "sub-layers and after embeddings, learned positions) and marian (norms after "
            "sub-layers, sinusoidal positions)."
        )
    activations = {ours: theirs for theirs, ours in reversed(ACTIVATIONS.items())}
    begins_with_pad = kind == MARIAN and bool(options.get("decoder_begins_with_pad"))
    config = TranslatorConfig(
        **{theirs: options[ours] for ours, theirs in reversed(FIELDS.items())},
        model_type=kind,
        vocab_size=num_source,
        decoder_vocab_size=num_target,
        activation_function=activations.get(options["activation_fn"], options["activation_fn"]),
        scale_embedding=not options.get("no_scale_embedding"),
        share_encoder_decoder_embeddings=bool(options.get("share_all_embeddings")),
        pad_token_id=PAD_ID,
        eos_token_id=EOS_ID,
        decoder_start_token_id=PAD_ID if begins_with_pad else EOS_ID,
    )
    for name, value in config.options(bool(options.get("output_bias"))).items():
        option = options.get(name)
        is_free = name in ("_name", "share_decoder_input_output_embed", "output_bias")
        # Marian's folders hold a table of positions, which can have fairseq's sinusoids
        is_free |= name == "sinusoids" and kind != M2M_100
        is_free |= name.startswith("max_") and kind != MBART
        if not is_free and (option or False) != value:
            raise UserError(
                f"`{path}` cannot be converted to a {kind} model of `transformers`, which requires "
                f"{name} = {value}: it was trained with {name} = {option}."
            )
    ties = "share_all_embeddings", "share_decoder_input_output_embed"
    if not any(options.get(name) for name in ties):
        raise UserError(
            f"`{path}` cannot be converted: `transformers` requires an output layer that is tied "
            "to the decoder's embeddings (`--share-decoder-input-output-embed`)."
        )
    for name in NOT_SUPPORTED:
        if options.get(name):
            raise UserError(
                f"`{path}` cannot be converted: `transformers` does not support its `{flag(name)}`."
            )
    return config


def read_config(values: Mapping[str, Any]) -> TranslatorConfig:
    """Return the config in a `config.json`.

    Raises `UserError`: it is another model's, impossible or not supported.
    """
    if values.get("tie_word_embeddings") is False:
        rule = "true, because the output layer is the decoder's embeddings"
        with naming_file(CONFIG):
            raise_invalid("tie_word_embeddings", rule, False)
    fields = {"share_encoder_decoder_embeddings": True, **values}  # in Marian's class alone
    if fields["share_encoder_decoder_embeddings"]:
        fields["decoder_vocab_size"] = fields.get("vocab_size")
    return config_of(TranslatorConfig, fields)
