"""Write tokenizers of translators to Hugging Face's folders.

If a tokenizer class of `transformers` knows the model's languages, the folder gets its files.
Otherwise it gets Marian's tokenizer, which works with any SentencePiece model and any codes
(`>>de<<` before the text).
"""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from fairseq_mtmoe.checkpoints.hugging_face import as_json
from fairseq_mtmoe.core.errors import UserError
from fairseq_mtmoe.translation.data.languages import MBART50
from fairseq_mtmoe.translation.data.new_pieces import BPE, UNIGRAM, model_type
from fairseq_mtmoe.translation.data.vocabulary import NUM_SPECIAL, Side, Vocabulary
from fairseq_mtmoe.translation.pretrained.codes import OF_M2M
from fairseq_mtmoe.translation.pretrained.families import (
    BOS_ID,
    EOS_ID,
    MARIAN,
    MBART,
    PAD_ID,
    TranslatorConfig,
)
from fairseq_mtmoe.translation.pretrained.layout import (
    EOS,
    MADE_UP_NAME,
    MASK,
    PAD,
    SPECIAL,
    UNK,
    token_of,
)
from fairseq_mtmoe.translation.pretrained.tokenizers import (
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
    start_id: int  # the decoder's first input


def tokenizer_for(
    config: TranslatorConfig,
    vocabulary: Vocabulary,
    symbols: Sequence[Sequence[str]],
    settings: Mapping[str, Any],
    never: Set[str],
) -> Tokenizer:
    """Return the tokenizer of a model with our token ids in its config.

    symbols: all source and target symbols.
    settings: the task's state.
    never: symbols without a row in Hugging Face's matrix.
    """
    family = config.model_type
    if family != MARIAN and tuple(settings["langtoks"]["main"]) == ("src", "tgt"):
        codes = {lang: token_of(lang, settings["lang_tok_style"]) for lang in settings["langs"]}
        is_legacy = bool(settings["encoder_langtok_last"])
        max_length = config.max_position_embeddings
        vocab = _Known(vocabulary.source, symbols[0], codes, is_legacy, max_length)
        tokenizer = vocab.mbart50() if family == MBART else vocab.m2m_100() or vocab.nllb()
        if tokenizer is not None:
            order, files = tokenizer
            index_of = {name: index for index, name in enumerate(symbols[0])}
            rows = (*range(NUM_SPECIAL), *(index_of[name] for name in order))
            return Tokenizer(files, rows, rows, PAD_ID, EOS_ID, EOS_ID)
    return _marian(config, vocabulary, symbols, settings, never)


class _Known:
    """A vocabulary, with its languages' symbols by `codes`.

    Each method returns the order of its symbols and the files for one class, or None.
    """

    def __init__(
        self,
        side: Side,
        symbols: Sequence[str],
        codes: Mapping[str, str],
        is_legacy: bool,
        max_length: int,
    ) -> None:
        self.model = side.model
        self.codes = codes
        self.is_legacy = is_legacy
        self.max_length = max_length
        self.names = symbols[NUM_SPECIAL:]
        processor = side.processor
        piece_ids = range(NUM_SPECIAL - 1, processor.get_piece_size())
        self.pieces = [processor.id_to_piece(index) for index in piece_ids]
        pieces = set(self.pieces)
        listed = {*codes.values(), MASK}
        self.others = [name for name in self.names if name not in pieces]
        self.others.sort(key=lambda name: name not in listed)  # tokenizers do not list the rest

    def _has_pieces(self, kind: int) -> bool:
        return set(self.pieces) <= set(self.names) and model_type(self.model) == kind

    def _files(self, kind: str, listed: list[str], **settings: Any) -> Files:
        names = {**NAMED, "sep_token": EOS, "cls_token": SPECIAL[0]}
        values = {**names, "model_max_length": self.max_length, "tokenizer_class": kind, **settings}
        return {
            PIECES: self.model,
            SETTINGS: as_json(values),
            SPECIAL_TOKENS: as_json({LISTS[0]: listed}),
        }

    def mbart50(self) -> tuple[list[str], Files] | None:
        """Return the symbols' order and the files of mBART-50's tokenizer."""
        if not self._has_pieces(UNIGRAM):
            return None
        if set(MBART50) != self.codes.keys() or MASK not in self.others:
            return None
        first = [*(self.codes[code] for code in MBART50), MASK]
        listed = list(MBART50)
        later = [name for name in self.others if name not in first]
        files = self._files("MBart50Tokenizer", listed, mask_token=MASK, **{LISTS[0]: listed})
        return [*self.pieces, *first, *later], files

    def m2m_100(self) -> tuple[list[str], Files] | None:
        """Return the symbols' order and the files of M2M-100's tokenizer."""
        if self.is_legacy or self.codes.keys() != set(OF_M2M):
            return None
        codes = [self.codes[code] for code in OF_M2M]
        made_up = [name for name in self.others if MADE_UP_NAME.fullmatch(name) is not None]
        left_out = {*codes, *made_up}
        words = [name for name in self.names if name not in left_out]
        files = self._files("M2M100Tokenizer", codes, num_madeup_words=len(made_up))
        files[VOCAB] = _vocabulary((*SPECIAL, *words))
        return [*words, *codes, *made_up], files

    def nllb(self) -> tuple[list[str], Files] | None:
        """Return the symbols' order and the files of NLLB-200's tokenizer."""
        if not (self._has_pieces(BPE) and CODE.fullmatch(next(iter(self.codes)))):
            return None
        order = [*self.pieces, *self.others]
        added = {symbol: code for code, symbol in self.codes.items()} | {MASK: MASK}
        decoder = {}
        for index, name in enumerate(order, NUM_SPECIAL):
            if name in added:
                is_mask = name == MASK
                decoder[str(index)] = {
                    "content": added[name],
                    "special": True,
                    "normalized": is_mask,
                    "lstrip": is_mask,
                    "rstrip": False,
                    "single_word": False,
                }
        listed = [added[name] for name in order if name in added and name != MASK]
        more = {
            "added_tokens_decoder": decoder,
            "legacy_behaviour": self.is_legacy,
            LISTS[0]: listed,
        }
        return order, self._files("NllbTokenizer", listed, mask_token=MASK, **more)


def _vocabulary(names: Sequence[str]) -> bytes:
    """Return the content of a `vocab.json`."""
    return as_json({name: index for index, name in enumerate(names)})


def _marian(
    config: TranslatorConfig,
    vocabulary: Vocabulary,
    symbols: Sequence[Sequence[str]],
    settings: Mapping[str, Any],
    never: Set[str],
) -> Tokenizer:
    """Return a Marian tokenizer.

    If the decoder begins with <pad>, </s> comes first and <pad> last, as in pretrained ones.
    """
    langtoks = settings["langtoks"]["main"]
    if settings["encoder_langtok_last"] and langtoks[0] is not None:
        raise UserError(
            "A model with `--encoder-langtok-last` cannot have Marian's tokenizer, which puts "
            "language tokens before the source, and no other tokenizer of `transformers` "
            "supports its languages."
        )
    langs = settings["langs"]
    codes = {token_of(lang, settings["lang_tok_style"]): f">>{lang}<<" for lang in langs}
    begins_with_pad = config.decoder_start_token_id == PAD_ID
    orders = [_marian_order(each, never, begins_with_pad) for each in symbols]
    names: list[list[str]] = []
    for each, order in zip(symbols, orders, strict=True):
        names.append([codes.get(each[index], each[index]) for index in order])
    if names[0].index(PAD) != names[1].index(PAD):
        counts = " and ".join(str(len(each)) for each in names)
        raise UserError(
            "A model with two vocabularies must have equally many symbols in both, because <pad> "
            f"has one id in `transformers`, but this model has {counts}."
        )
    is_joined = names[0] == names[1]
    listed = [name for name in names[0] if name.startswith(">>") and name.endswith("<<")]
    ends: dict[str, str] = {}
    if not listed:
        ends = dict(zip(("source_lang", "target_lang"), langs, strict=False))
    elif f">>{langs[0]}<<" not in listed:
        ends = {"source_lang": langs[0]}
    values = {
        "tokenizer_class": "MarianTokenizer",
        "separate_vocabs": not is_joined,
        "model_max_length": config.max_position_embeddings,
        **ends,
        **{name: token for name, token in NAMED.items() if token in names[0]},
        LISTS[0]: listed,
        OURS: {"langs": langs, "langtoks": langtoks, "pairs": settings.get("pairs", ())},
    }
    files: Files = {
        SOURCE_PIECES: vocabulary.source.model,
        TARGET_PIECES: vocabulary.target.model,
        SETTINGS: as_json(values),
        VOCAB: _vocabulary(names[0]),
    }
    if not is_joined:
        files[TARGET_VOCAB] = _vocabulary(names[1])
    pad_id = names[0].index(PAD)
    eos_id = names[0].index(EOS)
    start_id = pad_id if begins_with_pad else eos_id
    return Tokenizer(files, tuple(orders[0]), tuple(orders[1]), pad_id, eos_id, start_id)


def _marian_order(symbols: Sequence[str], never: Set[str], begins_with_pad: bool) -> list[int]:
    if not begins_with_pad:
        return list(range(len(symbols)))
    first = [EOS_ID, SPECIAL.index(UNK), BOS_ID]
    rest = [index for index in range(len(symbols)) if index not in (*first, PAD_ID)]
    return [index for index in (*first, *rest, PAD_ID) if symbols[index] not in never]
