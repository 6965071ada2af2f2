"""Read tokenizers of pretrained translators in Hugging Face's folders.

mBART-50 and NLLB-200 have a SentencePiece model, whose piece ids are one higher in the embedding matrix, followed by
language codes. M2M-100 has a `vocab.json` beside the SentencePiece model. OPUS-MT has two SentencePiece models and one
or two `vocab.json`.
"""

import itertools
import re
import struct
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, Required

from fairseq_mtmoe.backbones.piece_models import (
    BPE,
    CONTROL,
    NORMAL,
    UNIGRAM,
    UNKNOWN,
    character_table,
    check_pre_tokenizer,
    serialized,
)
from fairseq_mtmoe.backbones.translation.pretrained.codes import MBART50, NLLB, SETS
from fairseq_mtmoe.backbones.translation.pretrained.families import MARIAN, MBART, TranslatorConfig
from fairseq_mtmoe.backbones.translation.pretrained.layout import (
    BRACKETS,
    EOS,
    MADE_UP_NAME,
    MASK,
    OF_MARIAN,
    PAD,
    PLAIN,
    SPECIAL,
    UNK,
    Layout,
    filled,
    language_name,
    token_name,
    token_of,
)
from fairseq_mtmoe.data.translation.vocabulary import NUM_SPECIAL, Side, Vocabulary
from fairseq_mtmoe.errors import UserError, raise_invalid
from fairseq_mtmoe.io.files import read_bytes, read_json
from fairseq_mtmoe.io.sentencepieces import load_sentencepiece
from fairseq_mtmoe.io.typed import Name, fault

PIECES, TOKENIZER, VOCAB, TARGET_VOCAB = (
    *("sentencepiece.bpe.model", "tokenizer.json"),
    *("vocab.json", "target_vocab.json"),
)
SOURCE_PIECES, TARGET_PIECES = "source.spm", "target.spm"
SETTINGS, SPECIAL_TOKENS, ADDED_TOKENS = "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"
LISTS = ("additional_special_tokens", "extra_special_tokens")
OURS = "fairseq_mtmoe"  # in `SETTINGS` of Marian's tokenizer in our exports: languages, and their tokens' places
_TOKEN: Any = Literal["src", "tgt"] | None
_FORM: Any = {"langs": Required[list[Name]], "langtoks": Required[tuple[_TOKEN, _TOKEN]]}
CODE = re.compile(r"[a-z]{2,4}_[A-Za-z]{2,4}|__\w+__")  # of mBART-50 and NLLB-200: en_XX, eng_Latn
LISTED_CODE = re.compile(r"[a-z]{2,8}(_\w+)?")  # other forms, of special tokens alone
CODE_OF_M2M = re.compile(r"__(\w+?)__")


def read_tokenizer(folder: Path, config: TranslatorConfig, values: Mapping[str, Any]) -> Layout:
    """Return a folder's vocabulary and languages.

    Raises `UserError`: its tokenizer is damaged or not supported.

    values: of the folder's `config.json`.
    """
    settings = _json(folder / SETTINGS)
    for path in folder.glob("tokenization_*.py"):  # such as SMaLL-100's, whose sentences differ from M2M-100's
        raise UserError(f"`{folder}` must have a tokenizer of `transformers`, but has its own, `{path.name}`.")
    if config.model_type == MARIAN or OURS in settings:
        return _of_marian(folder, config, settings)
    if config.model_type == MBART:
        _expect_mbart50(folder, settings, values)
    model, listed = _pieces(folder), _listed_tokens(folder, settings, config)
    names = _names(folder, model, listed)
    if names.get(config.vocab_size) == MASK:  # the classes add it beyond the rows of a model that has none
        del names[config.vocab_size]
    symbols = filled(names, config.vocab_size, folder)
    style = BRACKETS if config.model_type == MBART else PLAIN
    is_m2m = (folder / VOCAB).exists()
    langs, tokens = [], {*SPECIAL, MASK}
    for index, symbol in enumerate(symbols):
        is_piece = model.processor.piece_to_id(symbol) != model.processor.unk_id()
        match = CODE_OF_M2M.fullmatch(symbol) if is_m2m else CODE.fullmatch(symbol)
        if listed.get(symbol) and match is None:
            match = LISTED_CODE.fullmatch(symbol)
        if match is not None and not is_piece:
            langs.append(match[1] if is_m2m and symbol.startswith("__") else symbol)
            tokens.add(symbol)
            symbols[index] = token_of(langs[-1], style)
    _expect_no_words(folder, tokens, [*dict(_added_ids(folder)), *listed])
    if not langs:
        raise UserError(
            f"`{folder}` must name its languages as `{LISTS[0]}` in `{SPECIAL_TOKENS}` or `{SETTINGS}`, or in "
            f"`{TOKENIZER}`, but does not."
        )
    vocabulary = Vocabulary.joined(symbols[NUM_SPECIAL:], model.model)
    is_legacy = settings.get("legacy_behaviour") is True and not is_m2m
    return Layout(vocabulary, tuple(langs), style, ("src", "tgt"), is_legacy)


def _expect_mbart50(folder: Path, settings: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    found = settings.get("tokenizer_class") or values.get("tokenizer_class")
    if not str(found).startswith("MBart50Tokenizer"):
        raise UserError(
            f"`{folder}` must hold an mBART-50, whose tokenizer is an `MBart50Tokenizer`, but names {found!r}: "
            "mBART-25 (cc25) is not supported, because its language codes end the sentence."
        )


def _pieces(folder: Path) -> Side:
    """Return a folder's SentencePiece model as a side without symbols."""
    if (folder / PIECES).exists():
        return Side((), piece_model(folder / PIECES))
    if (folder / TOKENIZER).exists():
        return Side((), _model_of(read_json(folder / TOKENIZER)))
    raise UserError(f"`{folder}` must have `{PIECES}`, the SentencePiece model of its tokenizer, but has none.")


def piece_model(path: Path) -> bytes:
    """Return a file's content (UserError: it is not a SentencePiece model)."""
    model = read_bytes(path)
    if not model:  # the library accepts an empty model and fails later
        raise UserError(f"`{path}` must be a SentencePiece model, but is empty: download it again.")
    try:
        load_sentencepiece(model)
    except RuntimeError as error:
        raise UserError(f"`{path}` must be a SentencePiece model, but is another file or damaged.") from error
    return model


def _model_of(tokenizer: Any) -> bytes:
    """Return the SentencePiece model from which a `tokenizer.json` was made.

    Raises `UserError`: there is none.
    """
    try:
        model = tokenizer["model"]
        kind = {"Unigram": UNIGRAM, "BPE": BPE}[model["type"]]
        listed = sorted(model["vocab"], key=model["vocab"].get) if kind == BPE else [name for name, _ in model["vocab"]]
        scores = (
            [-float(rank) for rank in range(len(listed))]
            if kind == BPE
            else [float(each[1]) for each in model["vocab"]]
        )
        if listed[:NUM_SPECIAL] != list(SPECIAL):
            raise ValueError(f"its first pieces are not {SPECIAL}")
        check_pre_tokenizer(tokenizer["pre_tokenizer"])
        added = {token["content"] for token in tokenizer["added_tokens"]}
        pieces = [(name, score, NORMAL) for name, score in zip(listed, scores, strict=True) if name not in added]
        first = [(UNK, 0.0, UNKNOWN), (SPECIAL[0], 0.0, CONTROL), (EOS, 0.0, CONTROL)]
        return serialized(
            first + [one for one in pieces if one[0] not in SPECIAL], character_table(tokenizer["normalizer"]),
            {"unk": 0, "bos": 1, "eos": 2, "pad": -1}, kind,
        )  # fmt: skip
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, OverflowError, struct.error) as error:
        raise UserError(
            f"`{TOKENIZER}` must have a SentencePiece model if there is no `{PIECES}` beside it, but has none: copy "
            f"the `{PIECES}` of the model from which this one was trained."
        ) from error


def _names(folder: Path, side: Side, listed: Iterable[str]) -> dict[int, str]:
    """Return the names of the embedding matrix' rows: pieces, then added tokens.

    Tokens that are `listed` without ids have the free rows after the pieces, as the classes number their codes before
    any token that a user adds.
    """
    if (folder / VOCAB).exists():
        names = _numbered(folder / VOCAB)
        if [names.get(index) for index in range(NUM_SPECIAL)] != list(SPECIAL):
            raise UserError(f"`{folder / VOCAB}` must begin with {', '.join(SPECIAL)}, but does not.")
    else:
        processor = side.processor
        pieces = [processor.id_to_piece(index) for index in range(processor.get_piece_size())]
        if sorted(pieces[: NUM_SPECIAL - 1]) != sorted((SPECIAL[0], EOS, UNK)):
            raise UserError(f"`{folder / PIECES}` must begin with <unk>, <s> and </s>, but does not.")
        names = dict(enumerate((*SPECIAL, *pieces[NUM_SPECIAL - 1 :])))
    ids = sorted(_ids(folder), key=lambda item: item[1])
    _expect_same_rows(folder, names, ids)
    rows, end = {name: index for index, name in names.items()}, max(names) + 1
    for name, index in ids:
        if name not in rows and names.setdefault(index, name) != name:
            raise UserError(
                f"`{folder}` must have one token for each row of its matrix, but has `{names[index]}` and `{name}` for "
                f"row {index}."
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
            f"`{folder}` must have a token for each row of its matrix up to the last code, but has none for row "
            f"{next(free)}: `{PIECES}` or `{TOKENIZER}` is another model's."
        )
    return names


def _expect_no_words(folder: Path, tokens: Collection[str], added: Iterable[str]) -> None:
    """Raise a `UserError` if text would be cut at `added` tokens, which our text is not."""
    for name in added:
        if name not in tokens and MADE_UP_NAME.fullmatch(name) is None:
            raise UserError(
                f"`{folder}` must have no tokens beside pieces and language codes such as eng_Latn, but has {name!a}, "
                "at which `transformers` cuts text before SentencePiece does."
            )


def _expect_same_rows(folder: Path, names: Mapping[int, str], tokens: Iterable[tuple[str, int]]) -> None:
    """Raise a `UserError` if `tokens` contradict the vocabulary's rows."""
    rows = {name: index for index, name in names.items()}
    for name, index in tokens:
        row, holder = rows.get(name, index), names.get(index, name)
        if row != index or holder != name:
            other = f"row {row}" if row != index else f"that of {holder!r}"
            raise UserError(
                f"`{folder}` must give each token one row of its matrix, but its tokenizer's files give {name!r} row "
                f"{index} and {other}."
            )


def _numbered(path: Path) -> dict[int, str]:
    """Return the tokens of a `vocab.json` by their ids."""
    found = read_json(path, "the vocabulary of a tokenizer")
    if not isinstance(found, dict) or any(type(index) is not int or index < 0 for index in found.values()):
        raise UserError(f"`{path}` must give each token its id, but does not.")
    names = {index: token_name(path, name) for name, index in found.items()}
    if len(names) != len(found):
        raise UserError(f"`{path}` must give each token an id of its own, but gives two the same.")
    return names


def _listed_tokens(folder: Path, settings: Mapping[str, Any], config: TranslatorConfig) -> dict[str, bool]:
    """Return special tokens that are listed without ids, in their order, and whether each can be a code."""
    tokens: dict[str, bool] = {}
    masks = {} if (folder / VOCAB).exists() else {MASK: False}  # M2M-100 has no mask
    for file in (SPECIAL_TOKENS, SETTINGS):
        with _tokens_of(folder / file) as content:
            for token in (token for key in LISTS for token in _listed(content.get(key))):
                tokens[token_name(folder / file, _content(token))] = True
            if (mask := content.get("mask_token")) is not None:
                masks[token_name(folder / file, _content(mask))] = False
    if (folder / VOCAB).exists():  # version 4 of `transformers` may save only the name of the code set
        default = None if any(map(CODE_OF_M2M.fullmatch, tokens)) else "m2m100"
        codes = SETS.get(str(settings.get("language_codes", default)), ())
        tokens = {**dict.fromkeys((token_of(code, PLAIN) for code in codes), True), **tokens}
    elif config.model_type == MBART:
        tokens = {**dict.fromkeys(MBART50, True), **tokens}
    return tokens | masks


@contextmanager
def _tokens_of(path: Path) -> Iterator[dict[str, Any]]:
    """Yield a file's content, or {} without the file.

    Raise a `UserError` if the block finds wrong types in it.
    """
    content = _json(path)
    try:
        yield content
    except (TypeError, LookupError, ValueError, AttributeError, OverflowError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"`{path}` must have tokens as `transformers` writes them, but does not.") from error


def _listed(tokens: Any) -> Iterable[Any]:
    if tokens is not None and not isinstance(tokens, list | dict):
        raise TypeError("no list")
    return tokens.values() if isinstance(tokens, dict) else tokens or ()


def _content(token: Any) -> Any:
    return token["content"] if isinstance(token, dict) else token


def _ids(folder: Path) -> Iterator[tuple[str, int]]:
    """Yield tokens with ids from all files, pieces too."""
    with _tokens_of(folder / TOKENIZER) as content:
        vocabulary = (content.get("model") or {}).get("vocab") or {}
        is_unigram = not isinstance(vocabulary, dict)
        pieces = ((one[0], at) for at, one in enumerate(vocabulary)) if is_unigram else vocabulary.items()
        yield from _checked(folder / TOKENIZER, pieces)
    yield from _added_ids(folder)


def _added_ids(folder: Path) -> Iterator[tuple[str, int]]:
    """Yield tokens with ids that were added to the pieces."""
    with _tokens_of(folder / TOKENIZER) as content:
        added = ((_content(token), token["id"]) for token in content.get("added_tokens") or ())
        yield from _checked(folder / TOKENIZER, added)
    yield from _ids_beside(folder)


def _ids_beside(folder: Path) -> Iterator[tuple[str, int]]:
    """Yield tokens with ids from the files beside `tokenizer.json`."""
    with _tokens_of(folder / SETTINGS) as content:
        decoder = content.get("added_tokens_decoder") or {}
        yield from _checked(folder / SETTINGS, ((_content(token), index) for index, token in decoder.items()))
    with _tokens_of(folder / ADDED_TOKENS) as content:
        yield from _checked(folder / ADDED_TOKENS, content.items())


def _checked(path: Path, tokens: Iterable[tuple[Any, Any]]) -> Iterator[tuple[str, int]]:
    for name, index in tokens:
        if not isinstance(index, int | str) or isinstance(index, bool) or int(index) < 0:
            raise ValueError("no row")
        yield token_name(path, name), int(index)


def _json(path: Path) -> dict[str, Any]:
    """Return a file's content, or {} without the file."""
    content = read_json(path) if path.exists() else {}
    if not isinstance(content, dict):
        raise_invalid(str(path), "a dictionary", content)
    return content


# ---- Marian ----


def _of_marian(folder: Path, config: TranslatorConfig, settings: Mapping[str, Any]) -> Layout:
    models = [_marian_pieces(folder / name) for name in (SOURCE_PIECES, TARGET_PIECES)]
    is_joined = config.share_encoder_decoder_embeddings
    numbered, added = _numbered(folder / VOCAB), dict(_ids_beside(folder))
    _expect_same_rows(folder, numbered, added.items())
    _expect_no_words(folder, {*SPECIAL, *filter(OF_MARIAN.fullmatch, added)}, added)
    new = {index: name for name, index in added.items() if index not in numbered}
    names = filled(numbered | new, config.vocab_size, folder)
    targets = names
    if not is_joined:
        targets = filled({**new, **_numbered(folder / TARGET_VOCAB)}, config.decoder_vocab_size, folder)
    for side in (names, targets):
        for token, index in ((PAD, config.pad_token_id), (EOS, config.eos_token_id)):
            if token not in side or side.index(token) != index:
                raise UserError(f"`{folder}` must have {token} as token {index}, as in `config.json`, but has not.")
        if UNK not in side:
            raise UserError(f"`{folder}` must have {UNK} in its vocabulary, but has not.")
    codes = [language_name(folder / VOCAB, found[1]) for found in map(OF_MARIAN.fullmatch, names) if found is not None]
    given = ((side, settings.get(f"{side}_lang")) for side in ("source", "target"))
    ends = [side if lang is None else language_name(folder / SETTINGS, lang) for side, lang in given]
    langs = tuple(dict.fromkeys([ends[0], *codes] if codes else ends))
    langtoks: tuple[str | None, str | None] = ("tgt" if codes else None, None)
    if (form := settings.get(OURS)) is not None:
        if (found := fault(form, _FORM, OURS)) is not None:
            raise UserError(f"`{folder / SETTINGS}` {found}.")
        langs, langtoks = tuple(language_name(folder / SETTINGS, lang) for lang in form["langs"]), form["langtoks"]
    sides, rows = [], []
    for each, model in zip((names, targets), models, strict=True):
        symbols, ids = _marian_side(each, langs)
        sides.append(Side(tuple(symbols), model))
        rows.append(ids)
    if all(ids == tuple(range(len(ids))) for ids in rows):
        rows = []
    return Layout(Vocabulary(*sides), langs, PLAIN, (langtoks[0], langtoks[1]), False, *rows)


def _marian_pieces(path: Path) -> bytes:
    if not path.exists():
        raise UserError(
            f"`{path.parent}` must have `{path.name}`, a SentencePiece model of its tokenizer, but has none."
        )
    return piece_model(path)


def _marian_side(names: list[str], langs: tuple[str, ...]) -> tuple[list[str], tuple[int | None, ...]]:
    """Return the symbols after fairseq's four, and the rows of all.

    Languages without a code have no row.
    """
    index_of = {name: index for index, name in enumerate(names)}
    symbols, rows = [], [index_of.get(name) for name in SPECIAL]
    for index, name in enumerate(names):
        if name not in SPECIAL:
            found = OF_MARIAN.fullmatch(name)
            symbols.append(token_of(found[1], PLAIN) if found is not None else name)
            rows.append(index)
    known = set(symbols)
    more = [token for token in (token_of(lang, PLAIN) for lang in langs) if token not in known]
    return symbols + more, (*rows, *(None for _ in more))
