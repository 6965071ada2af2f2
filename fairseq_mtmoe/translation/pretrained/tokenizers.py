"""Read tokenizers of pretrained translators in Hugging Face's folders.

mBART-50 and NLLB-200 have a SentencePiece model, whose piece ids are one higher in the embedding
matrix, followed by language codes. M2M-100 has a `vocab.json` beside the SentencePiece model.
OPUS-MT has two SentencePiece models and one or two `vocab.json`.
"""

import itertools
import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from fairseq_mtmoe.core.errors import UserError
from fairseq_mtmoe.core.files import read_bytes, read_json
from fairseq_mtmoe.core.piece_models import (
    BPE,
    CONTROL,
    NORMAL,
    UNIGRAM,
    UNKNOWN,
    character_table,
    check_pre_tokenizer,
    serialized,
)
from fairseq_mtmoe.core.sentencepieces import load_sentencepiece
from fairseq_mtmoe.translation.data.languages import MBART50
from fairseq_mtmoe.translation.data.vocabulary import NUM_SPECIAL, Side, Vocabulary
from fairseq_mtmoe.translation.pretrained.codes import NLLB, SETS
from fairseq_mtmoe.translation.pretrained.families import MARIAN, MBART, TranslatorConfig
from fairseq_mtmoe.translation.pretrained.layout import (
    BRACKETS,
    EOS,
    MADE_UP_NAME,
    MASK,
    NO_ROW,
    OF_MARIAN,
    PAD,
    PLAIN,
    SPECIAL,
    UNK,
    Layout,
    filled,
    language_name,
    read_values,
    token_of,
)

PIECES = "sentencepiece.bpe.model"
TOKENIZER = "tokenizer.json"
VOCAB = "vocab.json"
TARGET_VOCAB = "target_vocab.json"
SOURCE_PIECES = "source.spm"
TARGET_PIECES = "target.spm"
SETTINGS = "tokenizer_config.json"
SPECIAL_TOKENS = "special_tokens_map.json"
ADDED_TOKENS = "added_tokens.json"
LISTS = ("additional_special_tokens", "extra_special_tokens")
# In `SETTINGS` of Marian's tokenizer in our exports: languages, and their tokens' places
OURS = "fairseq_mtmoe"
CODE = re.compile(r"([a-z]{2,4}_[A-Za-z]{2,4}|__\w+__)")  # as en_XX and eng_Latn
LISTED_CODE = re.compile(r"([a-z]{2,8}(?:_\w+)?)")  # other forms, of special tokens alone
CODE_OF_M2M = re.compile(r"__(\w+?)__")


class _Files:
    """The values in the JSON files of a folder's tokenizer; {} for missing files.

    Raises `UserError`: one is damaged.
    """

    def __init__(self, folder: Path) -> None:
        self.tokenizer = read_values(folder / TOKENIZER)
        self.settings = read_values(folder / SETTINGS)
        self.special = read_values(folder / SPECIAL_TOKENS)
        self.added = read_values(folder / ADDED_TOKENS)

    def piece_rows(self) -> dict[str, int]:
        """Return the rows of the pieces in `tokenizer.json`."""
        vocabulary = (self.tokenizer.get("model") or {}).get("vocab") or {}
        if isinstance(vocabulary, dict):
            return vocabulary
        return {piece: row for row, (piece, _) in enumerate(vocabulary)}

    def added_rows(self) -> dict[str, int]:
        """Return the rows of tokens that were added to the pieces."""
        rows = {token["content"]: token["id"] for token in self.tokenizer.get("added_tokens") or ()}
        return rows | self.rows_beside()

    def rows_beside(self) -> dict[str, int]:
        """Return the rows of added tokens in the files beside `tokenizer.json`."""
        decoder = self.settings.get("added_tokens_decoder") or {}
        rows = {_content(token): int(row) for row, token in decoder.items()}
        return rows | {name: int(row) for name, row in self.added.items()}

    def special_tokens(self) -> list[str]:
        """Return special tokens that are listed without rows, in their order."""
        tokens: list[str] = []
        for content in (self.special, self.settings):
            for key in LISTS:
                listed = content.get(key) or ()
                tokens += map(_content, listed.values() if isinstance(listed, dict) else listed)
        return tokens


def read_tokenizer(folder: Path, config: TranslatorConfig, values: Mapping[str, Any]) -> Layout:
    """Return a folder's vocabulary and languages.

    Raises `UserError`: its tokenizer is damaged or not supported.

    values: of the folder's `config.json`.
    """
    # Such as SMaLL-100's, whose sentences differ from M2M-100's
    for path in folder.glob("tokenization_*.py"):
        raise UserError(
            f"`{folder}` has code of its own for its tokenizer, `{path.name}`, which is not run: "
            "only tokenizers of `transformers` are supported."
        )
    files = _Files(folder)
    try:
        if config.model_type == MARIAN or OURS in files.settings:
            return _of_marian(folder, config, files)
        if config.model_type == MBART:
            _expect_mbart50(folder, files.settings, values)
        return _of_pieces(folder, config, files)
    except UserError:
        raise
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        raise UserError(
            f"`{folder}` must contain the files of a tokenizer as `transformers` writes them, but "
            "their values cannot be read; download them again."
        ) from error


def _of_pieces(folder: Path, config: TranslatorConfig, files: _Files) -> Layout:
    """Return the layout of an mBART-50, NLLB-200 or M2M-100."""
    model = _pieces(folder, files)
    listed = _listed_tokens(folder, files, config)
    names = _names(folder, model, files, listed)
    # The classes add a mask beyond the rows of a model that has none
    if names.get(config.vocab_size) == MASK:
        del names[config.vocab_size]
    symbols = filled(names, config.vocab_size, folder)
    style = BRACKETS if config.model_type == MBART else PLAIN
    is_m2m = (folder / VOCAB).exists()
    pattern = CODE_OF_M2M if is_m2m else CODE
    langs = []
    tokens = {*SPECIAL, MASK}
    processor = model.processor
    for index, symbol in enumerate(symbols):
        code = pattern.fullmatch(symbol)
        if code is None and symbol in listed:
            code = LISTED_CODE.fullmatch(symbol)
        if code is not None and processor.piece_to_id(symbol) == processor.unk_id():
            langs.append(code[1])
            tokens.add(symbol)
            symbols[index] = token_of(code[1], style)
    _expect_no_words(folder, tokens, [*files.added_rows(), *listed])
    if not langs:
        raise UserError(
            f"`{folder}` does not name the model's languages: list them as `{LISTS[0]}` in "
            f"`{SPECIAL_TOKENS}` or `{SETTINGS}`, or add the model's `{TOKENIZER}`."
        )
    vocabulary = Vocabulary.joined(symbols[NUM_SPECIAL:], model.model)
    is_legacy = files.settings.get("legacy_behaviour") is True and not is_m2m
    return Layout(vocabulary, tuple(langs), style, ("src", "tgt"), is_legacy)


def _expect_mbart50(folder: Path, settings: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    name = settings.get("tokenizer_class") or values.get("tokenizer_class")
    if not str(name).startswith("MBart50Tokenizer"):
        raise UserError(
            f"`{folder}` must contain an mBART-50, whose tokenizer is an `MBart50Tokenizer`, but "
            f"its tokenizer is {name!r}; mBART-25 (cc25) is not supported, because its language "
            "codes end the sentence."
        )


def _pieces(folder: Path, files: _Files) -> Side:
    """Return a folder's SentencePiece model as a side without symbols."""
    if (folder / TOKENIZER).exists() and not (folder / PIECES).exists():
        return Side((), _model_of(files.tokenizer))
    return Side((), piece_model(folder / PIECES))


def piece_model(path: Path) -> bytes:
    """Return a file's content (UserError: it is not a SentencePiece model)."""
    model = read_bytes(path, "a SentencePiece model of the tokenizer")
    if not model:  # the library accepts an empty model and fails later
        raise UserError(f"`{path}` must be a SentencePiece model, but is empty: download it again.")
    try:
        load_sentencepiece(model)
    except RuntimeError as error:
        raise UserError(
            f"`{path}` is not a SentencePiece model, or is damaged: download it again."
        ) from error
    return model


def _model_of(tokenizer: Mapping[str, Any]) -> bytes:
    """Return the SentencePiece model from which a `tokenizer.json` was made.

    Raises `UserError`: there is none.
    """
    try:
        model = tokenizer["model"]
        kind = {"Unigram": UNIGRAM, "BPE": BPE}[model["type"]]
        listed = model["vocab"]
        if kind == BPE:
            listed = [(name, -rank) for rank, name in enumerate(sorted(listed, key=listed.get))]
        if [name for name, _ in listed[:NUM_SPECIAL]] != list(SPECIAL):
            raise ValueError(f"its first pieces are not {SPECIAL}")
        check_pre_tokenizer(tokenizer["pre_tokenizer"])
        others = {*SPECIAL, *(token["content"] for token in tokenizer["added_tokens"])}
        pieces = [(name, float(score), NORMAL) for name, score in listed if name not in others]
        first = [(UNK, 0.0, UNKNOWN), (SPECIAL[0], 0.0, CONTROL), (EOS, 0.0, CONTROL)]
        special = {"unk": 0, "bos": 1, "eos": 2, "pad": -1}
        return serialized(first + pieces, character_table(tokenizer["normalizer"]), special, kind)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise UserError(
            f"`{TOKENIZER}` does not contain a SentencePiece model, and there is no `{PIECES}` "
            f"beside it: copy the `{PIECES}` of the model from which this one was trained."
        ) from error


def _names(folder: Path, side: Side, files: _Files, listed: Iterable[str]) -> dict[int, str]:
    """Return the names of the embedding matrix' rows: pieces, then added tokens.

    Tokens that are `listed` without ids have the free rows after the pieces, as the classes number
    their codes before any token that a user adds.
    """
    if (folder / VOCAB).exists():
        names = _numbered(folder / VOCAB)
        if [names.get(index) for index in range(NUM_SPECIAL)] != list(SPECIAL):
            raise UserError(
                f"`{folder / VOCAB}` must begin with the tokens {', '.join(SPECIAL)}, but does "
                "not: it belongs to another kind of model."
            )
    else:
        processor = side.processor
        pieces = [processor.id_to_piece(index) for index in range(processor.get_piece_size())]
        if sorted(pieces[: NUM_SPECIAL - 1]) != sorted((SPECIAL[0], EOS, UNK)):
            raise UserError(
                f"`{folder / PIECES}` must begin with the pieces <unk>, <s> and </s>, but does "
                "not: it belongs to another kind of model."
            )
        names = dict(enumerate((*SPECIAL, *pieces[NUM_SPECIAL - 1 :])))
    rows = {name: index for index, name in names.items()}
    end = max(names) + 1
    tokens = files.piece_rows() | files.added_rows()
    for name, index in sorted(tokens.items(), key=lambda token: token[1]):
        if name not in rows and names.setdefault(index, name) != name:
            raise UserError(
                f"`{folder}` has two tokens with the id {index}, `{names[index]}` and `{name}`: "
                "its tokenizer's files belong to different models."
            )
        rows.setdefault(name, index)
    free = (row for row in itertools.count(end) if row not in names)
    # An old class of NLLB's has its codes even if a user's list replaced them
    unlisted = NLLB if max(names) - end > len(NLLB) and NLLB[0] not in rows else ()
    for name in dict.fromkeys((*unlisted, *listed)):
        if name not in rows:
            names[next(free)] = name
    if max(names) + 1 != len(names) and not (folder / VOCAB).exists():
        raise UserError(
            f"`{folder}` has no token with the id {next(free)}, although higher ids have one: "
            f"`{PIECES}` or `{TOKENIZER}` belongs to another model."
        )
    return names


def _expect_no_words(folder: Path, tokens: Collection[str], added: Iterable[str]) -> None:
    """Raise a `UserError` if text would be cut at `added` tokens.

    Our text is not cut there.
    """
    for name in added:
        if name not in tokens and MADE_UP_NAME.fullmatch(name) is None:
            raise UserError(
                f"`{folder}` has the added token {name!a}, at which `transformers` splits text "
                "before SentencePiece does: only pieces and language codes such as eng_Latn are "
                "supported."
            )


def _numbered(path: Path) -> dict[int, str]:
    """Return the tokens of a `vocab.json` by their ids.

    Raises `UserError`: it is no vocabulary.
    """
    rows = read_json(path, "the vocabulary of a tokenizer")
    names = {row: name for name, row in rows.items()}
    if len(names) != len(rows) or not all(isinstance(row, int) for row in names):
        raise UserError(
            f"`{path}` must give each token a number of its own as id, but does not: download it "
            "again."
        )
    return names


def _listed_tokens(folder: Path, files: _Files, config: TranslatorConfig) -> dict[str, None]:
    """Return special tokens that are listed without ids, in their order, as keys."""
    tokens = files.special_tokens()
    if (folder / VOCAB).exists():  # an M2M-100, which has no mask
        codes = files.settings.get("language_codes")
        # Version 4 of `transformers` may save only the name of the code set
        if codes is None and not any(map(CODE_OF_M2M.fullmatch, tokens)):
            codes = "m2m100"
        first = [token_of(code, PLAIN) for code in SETS.get(str(codes), ())]
        return dict.fromkeys((*first, *tokens))
    if config.model_type == MBART:
        tokens = [*MBART50, *tokens]
    return dict.fromkeys((*tokens, MASK))


def _content(token: Any) -> str:
    content: str = token["content"] if isinstance(token, dict) else token
    return content


# ---- Marian ----


def _of_marian(folder: Path, config: TranslatorConfig, files: _Files) -> Layout:
    settings = files.settings
    models = [piece_model(folder / name) for name in (SOURCE_PIECES, TARGET_PIECES)]
    is_joined = config.share_encoder_decoder_embeddings
    numbered = _numbered(folder / VOCAB)
    added = files.rows_beside()
    _expect_no_words(folder, {*SPECIAL, *filter(OF_MARIAN.fullmatch, added)}, added)
    new = {index: name for name, index in added.items() if index not in numbered}
    names = filled(numbered | new, config.vocab_size, folder)
    targets = names
    if not is_joined:
        numbered = {**new, **_numbered(folder / TARGET_VOCAB)}
        targets = filled(numbered, config.decoder_vocab_size, folder)
    for side in (names, targets):
        for token, index in ((PAD, config.pad_token_id), (EOS, config.eos_token_id)):
            if token not in side or side.index(token) != index:
                raise UserError(
                    f"`{folder}` has another token than {token} with the id {index}, which "
                    "`config.json` names: use the files of one model."
                )
        if UNK not in side:
            raise UserError(
                f"`{folder}` has no {UNK} in its vocabulary: use the vocabulary of the same model."
            )
    codes = []
    for match in map(OF_MARIAN.fullmatch, names):
        if match is not None:
            codes.append(language_name(folder / VOCAB, match[1]))
    langs = []
    for end in ("source", "target"):
        langs.append(language_name(folder / SETTINGS, settings.get(f"{end}_lang") or end))
    langtoks: tuple[str | None, str | None] = (None, None)
    if codes:
        langs[1:] = codes
        langtoks = ("tgt", None)
    if OURS in settings:
        langs = settings[OURS]["langs"]
        source_token, target_token = settings[OURS]["langtoks"]
        langtoks = (source_token, target_token)
    langs = list(dict.fromkeys(langs))
    sides = []
    rows = []
    for each, model in zip((names, targets), models, strict=True):
        symbols, ids = _marian_side(each, langs)
        sides.append(Side(tuple(symbols), model))
        rows.append(ids)
    if all(ids == tuple(range(len(ids))) for ids in rows):
        rows = []
    return Layout(Vocabulary(*sides), tuple(langs), PLAIN, langtoks, False, *rows)


def _marian_side(names: list[str], langs: Iterable[str]) -> tuple[list[str], tuple[int, ...]]:
    """Return the symbols after fairseq's four, and the rows of all.

    Languages without a code have no row.
    """
    row_of = dict.fromkeys(SPECIAL, NO_ROW)
    for row, name in enumerate(names):
        match = OF_MARIAN.fullmatch(name)
        row_of[name if match is None else token_of(match[1], PLAIN)] = row
    for lang in langs:
        row_of.setdefault(token_of(lang, PLAIN), NO_ROW)
    symbols = list(row_of)
    return symbols[NUM_SPECIAL:], tuple(row_of.values())
