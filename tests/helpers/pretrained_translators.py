"""A tiny file as `mtmoe import-hf` writes of a translator, which knows nothing, and text in languages that it has."""

import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from fairseq_mtmoe.translation.data.new_language import codes_of
from fairseq_mtmoe.translation.data.vocabulary import VOCABULARY, Side, Vocabulary
from tests.helpers.benchmark import save_new_model
from tests.helpers.models import SIZES, BaseDenseModel, DenseConfig, perturb
from tests.helpers.piece_models import pieces_of, trained_pieces

LANGS = ("eng_Latn", "swh_Latn", "fra_Latn")
_SYLLABLES = {
    "en": ("the", "on", "re", "th", "ing", "er"), "sw": ("ya", "na", "ku", "mba", "ji", "zu"),
    "fr": ("le", "de", "que", "oi", "ais", "ou"), "luo": ("ny", "dho", "luo", "ŋe", "ago", "ber"),
}  # fmt: skip


def sentences(lang: str, count: int, seed: int = 1) -> list[str]:
    """Sentences of made-up words; those of `luo` have a letter of their own."""
    draw, syllables = random.Random(f"{lang} {seed}"), _SYLLABLES[lang]
    words = ["".join(draw.choices(syllables, k=draw.randint(1, 3))) for _ in range(60)]
    return [" ".join(draw.choices(words, k=draw.randint(3, 8))) + "." for _ in range(count)]


def save_translator(
    path: Path,
    models: Sequence[bytes] = (),
    langs: Sequence[str] = LANGS,
    style: str = "multilingual",
    joined: bool = True,
    langtoks: tuple[str | None, str | None] = ("src", "tgt"),
    **options: Any,
) -> Vocabulary:
    """Write the file, and return its vocabulary. `models` of SentencePiece: one, or a source's and a target's."""
    models = models or [trained_pieces(line for lang in ("en", "sw", "fr") for line in sentences(lang, 200))]
    settings = {
        "langs": list(langs), "langtoks": {"main": langtoks}, "langtoks_specs": ["main"], "lang_tok_style": style,
        "lang_tok_replacing_bos_eos": False, "enable_lang_ids": False, "encoder_langtok_last": False,
        "task_ids": "target", "lang_pairs": [],
    }  # fmt: skip
    codes = [code for lang in langs for code in codes_of(lang, settings)] + ["<mask>"] * (style == "mbart")
    pieces = [pieces_of(model) for model in models]
    if joined:
        pieces = [list(dict.fromkeys(piece for own in pieces for piece in own))] * len(pieces)
    sides = [Side((*own, *codes), model) for own, model in zip(pieces, models, strict=True)]
    vocabulary = Vocabulary(sides[0], sides[-1])
    shared = {"share_all_embeddings": joined, "share_decoder_input_output_embed": not joined}
    cfg = DenseConfig(
        **{**SIZES, **shared, "encoder_normalize_before": True, "decoder_normalize_before": True, **options}
    )
    source = sides[0].dictionary()
    target = source if joined else sides[-1].dictionary()
    torch.manual_seed(1)
    model = perturb(
        BaseDenseModel.build_model(cfg, SimpleNamespace(source_dictionary=source, target_dictionary=target))
    )
    saved = {"model": {**vars(cfg), "_name": "base_dense"}, "task": {"_name": "translation_heated"}}
    save_new_model(path, saved, model, {**settings, VOCABULARY: vocabulary.to_state()})
    return vocabulary


def write_lines(path: Path, lines: Iterable[str]) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path
