"""Write tokenizers of translators to Hugging Face's folders.

If a tokenizer class of `transformers` knows the model's languages, the folder gets its files. Otherwise it gets
Marian's tokenizer, which works with any SentencePiece model and any codes (`>>de<<` before the text).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fairseq_mtmoe.backbones.hugging_face import as_json
from fairseq_mtmoe.backbones.translation.pretrained.codes import OF_M2M
from fairseq_mtmoe.backbones.translation.pretrained.families import BOS_ID, EOS_ID, MARIAN, MBART, PAD_ID
from fairseq_mtmoe.backbones.translation.pretrained.layout import (
    EOS,
    MADE_UP_NAME,
    MASK,
    PAD,
    SPECIAL,
    UNK,
    token_of,
)
from fairseq_mtmoe.backbones.translation.pretrained.tokenizers import (
    CODE,
    LISTS,
    OURS,
    PIECES,
    SETTINGS,
    SOURCE_PIECES,
    SPECIAL_TOKENS,
    TARGET_PIECES,
    TARGET_VOCAB,
    VOCAB,
)
from fairseq_mtmoe.data.translation.languages import MBART50
from fairseq_mtmoe.data.translation.new_pieces import BPE, UNIGRAM, model_type
from fairseq_mtmoe.data.translation.vocabulary import NUM_SPECIAL, Side
from fairseq_mtmoe.errors import UserError

Files = dict[str, bytes]
NAMED = {"bos_token": SPECIAL[0], "eos_token": EOS, "unk_token": UNK, "pad_token": PAD}


@dataclass(frozen=True)
class Tokenizer:
    """The files of a tokenizer, and our id of each row of its vocabularies."""

    files: Files
    source_rows: tuple[int, ...]
    target_rows: tuple[int, ...]
    pad_id: int
    eos_id: int


def tokenizer_for(
    family: str, sides: Sequence[Side], symbols: Sequence[Sequence[str]], settings: Mapping[str, Any],
    never: frozenset[str], begins_with_pad: bool, max_length: int,
) -> Tokenizer:  # fmt: skip
    """Return the tokenizer of a model.

    family: its class in `transformers`. sides: with SentencePiece models. symbols: all source and target symbols.
    settings: the task's state. never: symbols without a row in Hugging Face's matrix.
    """
    codes = {token_of(lang, settings["lang_tok_style"]): lang for lang in settings["langs"]}
    if family == MARIAN:
        return _marian(sides, symbols, settings, codes, never, begins_with_pad, max_length)
    known = _Known.of(sides[0], symbols[0], codes, bool(settings["encoder_langtok_last"]), max_length)
    found = None
    if tuple(settings["langtoks"]["main"]) == ("src", "tgt"):
        found = known.mbart50() if family == MBART else known.m2m_100() or known.nllb()
    if found is None:
        return _marian([sides[0]] * 2, [symbols[0]] * 2, settings, codes, never, False, max_length)
    order, files = found
    index_of = {name: index for index, name in enumerate(symbols[0])}
    rows = (*range(NUM_SPECIAL), *(index_of[name] for name in order))
    return Tokenizer(files, rows, rows, PAD_ID, EOS_ID)


@dataclass(frozen=True)
class _Known:
    """A vocabulary.

    Each method returns the order of its symbols and the files for one class, or None.
    """

    model: bytes
    names: tuple[str, ...]  # all symbols after the first four
    pieces: tuple[str, ...]
    others: tuple[str, ...]  # symbols beside the pieces; codes and the mask come first
    codes: Mapping[str, str]  # symbol -> code
    is_legacy: bool
    settings: Mapping[str, Any]

    @classmethod
    def of(
        cls, side: Side, symbols: Sequence[str], codes: Mapping[str, str], is_legacy: bool, max_length: int
    ) -> "_Known":
        names, processor = symbols[NUM_SPECIAL:], side.processor
        pieces = [processor.id_to_piece(index) for index in range(NUM_SPECIAL - 1, processor.get_piece_size())]
        is_piece = set(pieces)
        others = [name for name in names if name not in is_piece]
        others.sort(key=lambda name: name not in codes and name != MASK)  # tokenizers do not list the rest
        settings = {**NAMED, "sep_token": EOS, "cls_token": SPECIAL[0], "model_max_length": max_length}
        return cls(side.model, tuple(names), tuple(pieces), tuple(others), codes, is_legacy, settings)

    def _has_pieces(self, kind: int) -> bool:
        return set(self.pieces) <= set(self.names) and model_type(self.model) == kind

    def mbart50(self) -> tuple[list[str], Files] | None:
        symbol_of = {code: symbol for symbol, code in self.codes.items()}
        if not (self._has_pieces(UNIGRAM) and set(MBART50) == symbol_of.keys() and MASK in self.others):
            return None
        first = [*(symbol_of[code] for code in MBART50), MASK]
        later = [name for name in self.others if name not in first]
        listed = {LISTS[0]: list(MBART50)}
        settings = {**self.settings, **listed, "tokenizer_class": "MBart50Tokenizer", "mask_token": MASK}
        files = {PIECES: self.model, SETTINGS: as_json(settings), SPECIAL_TOKENS: as_json(listed)}
        return [*self.pieces, *first, *later], files

    def m2m_100(self) -> tuple[list[str], Files] | None:
        if self.is_legacy or set(self.codes.values()) != set(OF_M2M):
            return None
        symbol_of = {code: symbol for symbol, code in self.codes.items()}
        codes = [symbol_of[code] for code in OF_M2M]
        made_up = [name for name in self.others if MADE_UP_NAME.fullmatch(name) is not None]
        left_out = {*self.codes, *made_up}
        own = [name for name in self.names if name not in left_out]
        settings = {**self.settings, "tokenizer_class": "M2M100Tokenizer", "num_madeup_words": len(made_up)}
        files = {
            PIECES: self.model, VOCAB: as_json({name: index for index, name in enumerate((*SPECIAL, *own))}),
            SETTINGS: as_json(settings), SPECIAL_TOKENS: as_json({LISTS[0]: codes}),
        }  # fmt: skip
        return [*own, *codes, *made_up], files

    def nllb(self) -> tuple[list[str], Files] | None:
        if not (self._has_pieces(BPE) and CODE.fullmatch(next(iter(self.codes.values())))):
            return None
        order = [*self.pieces, *self.others]
        added = {at: self.codes.get(name, name) for at, name in enumerate(order, NUM_SPECIAL)
                 if name in self.codes or name == MASK}  # fmt: skip
        decoder = {
            str(index): {"content": name, "special": True, "normalized": name == MASK, "lstrip": name == MASK,
                         "rstrip": False, "single_word": False}
            for index, name in added.items()
        }  # fmt: skip
        listed = [name for name in added.values() if name != MASK]
        settings = {
            **self.settings, "tokenizer_class": "NllbTokenizer", "mask_token": MASK, LISTS[0]: listed,
            "added_tokens_decoder": decoder, "legacy_behaviour": self.is_legacy,
        }  # fmt: skip
        files = {PIECES: self.model, SETTINGS: as_json(settings), SPECIAL_TOKENS: as_json({LISTS[0]: listed})}
        return order, files


def _marian(
    sides: Sequence[Side], symbols: Sequence[Sequence[str]], settings: Mapping[str, Any], codes: Mapping[str, str],
    never: frozenset[str], begins_with_pad: bool, max_length: int,
) -> Tokenizer:  # fmt: skip
    """Return a Marian tokenizer.

    If `begins_with_pad`, </s> comes first and <pad> last, as in pretrained ones.
    """
    if settings["encoder_langtok_last"] and settings["langtoks"]["main"][0] is not None:
        raise UserError(
            "A model must have language tokens before its sources for Marian's tokenizer, but has them after "
            "(`--encoder-langtok-last`); no other tokenizer of `transformers` supports its languages."
        )
    orders = [_marian_order(each, never, begins_with_pad) for each in symbols]
    names = [
        [f">>{codes[each[index]]}<<" if each[index] in codes else each[index] for index in order]
        for each, order in zip(symbols, orders, strict=True)
    ]
    if names[0].index(PAD) != names[1].index(PAD):
        counts = " and ".join(str(len(each)) for each in names)
        raise UserError(
            f"A model with two vocabularies must have the same number of symbols in both, because <pad> has one id in "
            f"`transformers`, but has {counts}."
        )
    is_joined = names[0] == names[1]
    listed = [name for name in names[0] if name.startswith(">>") and name.endswith("<<")]
    ends = {} if listed else dict(zip(("source_lang", "target_lang"), settings["langs"], strict=False))
    if listed and f">>{settings['langs'][0]}<<" not in listed:
        ends = {"source_lang": settings["langs"][0]}
    values = {
        "tokenizer_class": "MarianTokenizer", "separate_vocabs": not is_joined, "model_max_length": max_length, **ends,
        **{name: token for name, token in NAMED.items() if token in names[0]}, LISTS[0]: listed,
        OURS: {"langs": list(settings["langs"]), "langtoks": list(settings["langtoks"]["main"])},
    }  # fmt: skip
    files = {
        SOURCE_PIECES: sides[0].model, TARGET_PIECES: sides[1].model, SETTINGS: as_json(values),
        VOCAB: as_json({name: index for index, name in enumerate(names[0])}),
        **({} if is_joined else {TARGET_VOCAB: as_json({name: index for index, name in enumerate(names[1])})}),
    }  # fmt: skip
    return Tokenizer(files, tuple(orders[0]), tuple(orders[1]), names[0].index(PAD), names[0].index(EOS))


def _marian_order(symbols: Sequence[str], never: frozenset[str], begins_with_pad: bool) -> list[int]:
    if not begins_with_pad:
        return list(range(len(symbols)))
    first = [EOS_ID, SPECIAL.index(UNK), BOS_ID]
    rest = [index for index in range(len(symbols)) if index not in (*first, PAD_ID)]
    return [index for index in (*first, *rest, PAD_ID) if symbols[index] not in never]
