"""Tiny pretrained translators of Hugging Face's with their tokenizers, and ours that were imported from them."""

from __future__ import annotations

import functools
import json
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from fairseq.models import MODEL_DATACLASS_REGISTRY, MODEL_REGISTRY

from fairseq_mtmoe import register
from fairseq_mtmoe.checkpoints import file_io
from fairseq_mtmoe.checkpoints.rebuild import configuration
from fairseq_mtmoe.training.sparsify.in_training import begin_with
from fairseq_mtmoe.translation.data.languages import MBART50
from fairseq_mtmoe.translation.data.new_language import with_codes
from fairseq_mtmoe.translation.data.vocabulary import Vocabulary
from fairseq_mtmoe.translation.pretrained.codes import OF_M2M
from fairseq_mtmoe.translation.pretrained.layout import token_of
from fairseq_mtmoe.translation.pretrained.reading import read_folder
from tests.helpers.bert import perturb
from tests.helpers.invoked import mtmoe
from tests.helpers.piece_models import names_of, pieces_of, trained_pieces

NLLB_CODES = ("ace_Arab", "deu_Latn", "eng_Latn", "ell_Grek", "kat_Geor", "zho_Hans")
SCRIPTS = ((97, 123), (97, 123), (0x430, 0x450), (0x3B1, 0x3CA), (0x5D0, 0x5EB), (0x915, 0x93A), (0x4E00, 0x4E30))


@functools.cache
def lines(number: int = 400, seed: int = 0) -> tuple[str, ...]:
    """Sentences of made-up words in several scripts, with punctuation and digits."""
    rng = random.Random(0)
    words = [
        ["".join(chr(rng.randrange(*span)) for _ in range(rng.randint(1, 6))) for _ in range(40)] for span in SCRIPTS
    ]
    rng = random.Random(seed)
    marks = (".", "!", " 12,5 %", " ½ ﬁ", "…", "")
    return tuple(
        " ".join(
            rng.choice(rng.choice(words) if rng.random() < 0.1 else words[at % len(words)])
            for _ in range(rng.randint(2, 9))
        ).capitalize() + rng.choice(marks)
        for at in range(number)
    )  # fmt: skip


@functools.cache
def pieces(kind: str = "bpe", size: int = 330, seed: int = 0) -> bytes:
    """A model of SentencePiece of these lines."""
    return trained_pieces(lines(seed=seed), kind, size, character_coverage=0.99)


def taught(model: Any, pairs: list[tuple[list[int], list[int]]], updates: int = 100) -> Any:
    """The model after it has learned to write the second of the pairs of Hugging Face's ids, and to end."""
    pad, torch_state = model.config.pad_token_id, torch.get_rng_state()
    torch.manual_seed(1)
    trained = [
        value for name, value in model.named_parameters() if "embed_positions" not in name or value.requires_grad
    ]
    optimizer = torch.optim.Adam(trained, lr=5e-3)
    sources, targets = (padded([each[at] for each in pairs], pad) for at in (0, 1))
    model.train()
    for _ in range(updates):
        labels = targets.masked_fill(targets == pad, -100)
        loss = model(input_ids=sources, attention_mask=sources.ne(pad).long(), labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    torch.set_rng_state(torch_state)
    return model.eval()


class Case(NamedTuple):
    """A family's folder: its form, and what is other than by default in `config.json` or the tokenizer's settings."""

    family: str
    config: dict[str, Any] = {}
    settings: dict[str, Any] = {}
    languages: tuple[str, str] = ("en_XX", "de_DE")


NLLB_LANGS, M2M_LANGS = ("eng_Latn", "deu_Latn"), ("en", "de")
CASES = {
    "mbart50": Case("mbart"),
    "mbart50_bias": Case("mbart", {"bias": True, "scale_embedding": False, "activation_function": "relu"}),
    "nllb": Case("nllb", {"padding": 2}, {}, NLLB_LANGS),
    "nllb_legacy": Case("nllb", {"encoder_layers": 1, "decoder_ffn_dim": 48}, {"legacy_behaviour": True}, NLLB_LANGS),
    "nllb_unscaled": Case("nllb", {"scale_embedding": False, "activation_function": "gelu"}, {}, NLLB_LANGS),
    "m2m": Case("m2m", {"padding": 8}, {}, M2M_LANGS),
    "marian": Case("marian", {}, {"source_lang": "en", "target_lang": "de"}, ("en", "de")),
    "marian_multilingual": Case("marian", {"codes": ("deu", "fra")}, {"source_lang": "eng"}, ("eng", "deu")),
    "marian_two_vocabularies": Case(
        "marian", {"share_encoder_decoder_embeddings": False, "scale_embedding": False, "activation_function": "relu"},
        {"source_lang": "en", "target_lang": "de"}, ("en", "de"),
    ),
}  # fmt: skip
TINY = {
    "d_model": 16, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24,
    "encoder_attention_heads": 2, "decoder_attention_heads": 4, "max_position_embeddings": 64,
}  # fmt: skip


def write_folder(folder: Path, case: Case) -> Any:
    """Write a folder as Hugging Face's classes do, with the tokenizer's files; returns its model in evaluation mode."""
    transformers = pytest.importorskip("transformers")
    folder.mkdir(parents=True, exist_ok=True)
    config = dict(case.config)
    rows, ids = _tokenizer(folder, case, config)
    for name in ("codes", "padding", "bias"):
        config.pop(name, None)
    kinds = {"mbart": ("MBart", "ForConditionalGeneration"), "marian": ("Marian", "MTModel")}
    name, head = kinds.get(case.family, ("M2M100", "ForConditionalGeneration"))
    defaults = {
        "scale_embedding": True,
        "activation_function": {"mbart": "gelu", "marian": "swish"}.get(case.family, "relu"),
    }
    torch.manual_seed(0)
    values = {**TINY, **defaults, **config, **ids, "vocab_size": rows[0]}
    if case.family == "marian":
        values["decoder_vocab_size"] = rows[1]
    model = getattr(transformers, f"{name}{head}")(getattr(transformers, f"{name}Config")(**values))
    model = perturb(model.eval())
    if case.family == "marian":  # positions are no weights
        for stack in (model.model.encoder, model.model.decoder):
            stack.embed_positions.weight.data = stack.embed_positions.create_weight()
    if case.family == "marian" or case.config.get("bias"):
        model.final_logits_bias.copy_(torch.randn(model.final_logits_bias.shape) / 3)
    model.save_pretrained(folder)
    return model


def _tokenizer(folder: Path, case: Case, config: dict[str, Any]) -> tuple[tuple[int, int], dict[str, int]]:
    """Write the tokenizer's files; returns the sizes of the vocabularies, and the ids of special tokens."""
    if case.family == "marian":
        return _marian_tokenizer(folder, case, config)
    model = pieces("unigram" if case.family == "mbart" else "bpe")
    (folder / "sentencepiece.bpe.model").write_bytes(model)
    codes: tuple[str, ...] = {"mbart": MBART50, "nllb": NLLB_CODES}.get(case.family, ())
    kind = {"mbart": "MBart50Tokenizer", "nllb": "NllbTokenizer", "m2m": "M2M100Tokenizer"}[case.family]
    padding = config.get("padding", 0)
    settings: dict[str, Any] = {"tokenizer_class": kind, **case.settings}
    count = len(names_of(model)) + 1
    if case.family == "m2m":
        codes = tuple(f"__{code}__" for code in OF_M2M)
        names = ["<s>", "<pad>", "</s>", "<unk>", *pieces_of(model)]
        _write(folder / "vocab.json", {name: index for index, name in enumerate(names)})
        settings["num_madeup_words"] = padding
    else:
        count += 1  # <mask>
    if case.family == "nllb":
        added = dict(enumerate((*codes, "<mask>"), len(names_of(model)) + 1))
        settings["added_tokens_decoder"] = {
            str(index): {"content": name, "special": True, "normalized": name == "<mask>", "lstrip": name == "<mask>",
                         "rstrip": False, "single_word": False} for index, name in added.items()
        }  # fmt: skip
        settings["extra_special_tokens"] = list(codes)
    _write(folder / "tokenizer_config.json", settings)
    _write(folder / "special_tokens_map.json", {"additional_special_tokens": list(codes)})
    size = count + len(codes) + padding
    return (size, size), {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 2}


def _marian_tokenizer(folder: Path, case: Case, config: dict[str, Any]) -> tuple[tuple[int, int], dict[str, int]]:
    models = pieces("unigram", 270), pieces("unigram", 290, 1)
    for name, model in zip(("source.spm", "target.spm"), models, strict=True):
        (folder / name).write_bytes(model)
    named = [pieces_of(model) for model in models]
    codes = [f">>{code}<<" for code in config.get("codes", ())]
    is_joined = config.get("share_encoder_decoder_embeddings", True)
    smallest = min(map(len, named))
    # Some pieces of the source are unknown
    named = [sorted({*named[0][:-3], *named[1]})] * 2 if is_joined else [each[:smallest] for each in named]
    vocabularies = [["</s>", "<unk>", *codes, *each, "<pad>"] for each in named]
    _write(folder / "vocab.json", {name: index for index, name in enumerate(vocabularies[0])})
    if not is_joined:
        _write(folder / "target_vocab.json", {name: index for index, name in enumerate(vocabularies[1])})
    settings = {
        "tokenizer_class": "MarianTokenizer",
        **case.settings,
        **({} if is_joined else {"separate_vocabs": True}),
    }
    _write(folder / "tokenizer_config.json", settings)
    pad = len(vocabularies[0]) - 1
    ids = {"pad_token_id": pad, "eos_token_id": 0, "forced_eos_token_id": 0, "decoder_start_token_id": pad}
    return (len(vocabularies[0]), len(vocabularies[1])), ids


def _write(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False), encoding="utf-8")


class Ours(NamedTuple):
    """Our model of a folder's translator, and what reads text for it."""

    model: Any
    layout: Any
    dictionaries: tuple[Any, Any]
    content: dict[str, Any]

    def ids(self, line: str, side: int) -> list[int]:
        """The ids of a line in the dictionary of sources (0) or targets (1), without those around them."""
        vocabulary = (self.layout.vocabulary.source, self.layout.vocabulary.target)[side]
        return [self.dictionaries[side].index(piece) for piece in vocabulary.processor.encode(line, out_type=str)]

    def source(self, line: str, lang: str, target: str) -> list[int]:
        """The ids of a source sentence in the form that the layout says."""
        chosen = {"src": lang, "tgt": target, None: None}[self.layout.langtoks[0]]
        token = [] if chosen is None else [self.token(chosen, 0)]
        words = [*self.ids(line, 0), 2]
        return words + token if self.layout.encoder_langtok_last else token + words

    def token(self, lang: str, side: int) -> int:
        return int(self.dictionaries[side].index(token_of(lang, self.layout.lang_tok_style)))

    def row(self, ids: Any, side: int) -> Any:
        """Hugging Face's ids of ours."""
        rows = (self.layout.source_rows, self.layout.target_rows)[side]
        return [rows[index] for index in ids] if rows else list(ids)


def built(content: dict[str, Any]) -> tuple[Any, tuple[Any, Any]]:
    """The model in a checkpoint in evaluation mode, and its dictionaries."""
    register()
    vocabulary = with_codes(Vocabulary.of_state(content["task_state"]), content["task_state"])
    dictionaries = (vocabulary.source.dictionary(), vocabulary.target.dictionary())
    task = SimpleNamespace(source_dictionary=dictionaries[0], target_dictionary=dictionaries[1])
    cfg = configuration(MODEL_DATACLASS_REGISTRY["base_dense"], content["cfg"]["model"])
    model = MODEL_REGISTRY["base_dense"].build_model(cfg, task)
    begin_with(model, content["model"])
    return model.eval(), dictionaries


def ours_of_folder(folder: Path, out: Path) -> Ours:
    """What `mtmoe import-hf` makes of a folder, through its file."""
    mtmoe("import-hf", folder, out)
    content = file_io.load(str(out))
    model, dictionaries = built(content)
    return Ours(model, read_folder(folder).model.layout, dictionaries, content)


def padded(rows: list[list[int]], pad: int, left: bool = False) -> torch.Tensor:
    """Rows of ids as one tensor."""
    width = max(map(len, rows))
    fill = [[pad] * (width - len(row)) for row in rows]
    return torch.tensor([more + row if left else row + more for row, more in zip(rows, fill, strict=True)])
