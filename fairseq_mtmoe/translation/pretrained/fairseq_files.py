"""Read a folder with fairseq's own files of mBART-50 or M2M-100 as a `base_dense`.

`model.pt` has the weights and the options of their training. Beside it are `dict.txt`, a
SentencePiece model (the folder's only `.model`), and `langs.txt` if the options do not list the
languages.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fairseq.data import Dictionary
from torch import Tensor

from fairseq_mtmoe.checkpoints import file_io, hugging_face
from fairseq_mtmoe.checkpoints.key_maps import DECODER_EMBEDDINGS, ENCODER_EMBEDDINGS, OUTPUT
from fairseq_mtmoe.checkpoints.rebuild import model_options, plain
from fairseq_mtmoe.core.errors import UserError
from fairseq_mtmoe.core.files import regular_file, text_lines
from fairseq_mtmoe.core.transformer_options import all_options
from fairseq_mtmoe.translation.data.new_language import with_codes
from fairseq_mtmoe.translation.data.vocabulary import NUM_SPECIAL, Vocabulary
from fairseq_mtmoe.translation.model.key_map import COUNTERS
from fairseq_mtmoe.translation.pretrained.families import config_of_options
from fairseq_mtmoe.translation.pretrained.layout import PLAIN, Layout, language_name
from fairseq_mtmoe.translation.pretrained.reading import (
    TYPES,
    PretrainedTranslator,
    check_types,
    versions,
    wanted_tensors,
)  # fmt: skip
from fairseq_mtmoe.translation.pretrained.tokenizers import piece_model

MODEL, DICTIONARY, LANGS = "model.pt", "dict.txt", "langs.txt"


def read_fairseq_folder(folder: Path) -> hugging_face.Imported[PretrainedTranslator]:
    """Return the translator in a folder.

    Raises `UserError`: a file is missing, damaged or not supported.
    """
    state = file_io.load(str(folder / MODEL), mapped=True, remedy="download it again")
    given = {
        **plain(state.get("args")),
        **plain((state.get("cfg") or {}).get("task")),
        **(model_options(state) or {}),
    }
    named: Mapping[str, Tensor] = hugging_face.named_values(folder / MODEL, state.get("model"))
    weights = {name: value for name, value in named.items() if not COUNTERS.fullmatch(name)}
    if ENCODER_EMBEDDINGS not in weights or DECODER_EMBEDDINGS not in weights or not given:
        raise UserError(
            f"`{folder / MODEL}` must hold one of fairseq's translators with its options, but "
            "does not."
        )
    check_types(folder / MODEL, weights)
    weights.setdefault(OUTPUT, weights[DECODER_EMBEDDINGS])  # older versions save tied weights once
    layout = _layout(folder, given)
    rows = weights[ENCODER_EMBEDDINGS].shape[:1].numel()
    symbols = with_codes(layout.vocabulary, layout.settings).source.size
    if symbols != rows:
        raise UserError(
            f"`{folder / MODEL}` must have a row for each symbol of `{DICTIONARY}` and each of the "
            f"{len(layout.langs)} languages, {symbols:,} in all, but has {rows:,}."
        )
    options = {**given, **all_options(given)}
    config = config_of_options(folder / MODEL, options, rows, rows)
    own = config.options(has_output_bias=False)
    hugging_face.check_tensors(
        folder / MODEL, wanted_tensors(own, rows, rows), weights, types=TYPES
    )
    hugging_face.check_finite(folder / MODEL, weights)
    left_out = tuple(name for name in named if name not in weights and not name.endswith("version"))
    return hugging_face.Imported(
        PretrainedTranslator(config, layout, own, {**weights, **versions()}), left_out
    )


def _layout(folder: Path, given: Mapping[str, Any]) -> Layout:
    dictionary = Dictionary.load(
        str(regular_file(folder / DICTIONARY, "the dictionary of a fairseq model"))
    )
    models = sorted(folder.glob("*.model"))
    if len(models) != 1:
        found = ", ".join(path.name for path in models) or "none"
        raise UserError(
            f"`{folder}` must have one SentencePiece model (`*.model`), but has {found}."
        )
    langs = given.get("langs")
    langs, path = langs.split(",") if isinstance(langs, str) else langs, folder / MODEL
    if not langs:
        path = regular_file(
            folder / LANGS, "the ordered list of the model's languages, one per line"
        )
        langs = [line.strip() for line in text_lines(path) if line.strip()]
    vocabulary = Vocabulary.joined(dictionary.symbols[NUM_SPECIAL:], piece_model(models[0]))
    named = given.get("langtoks")  # overrides --encoder-langtok and --decoder-langtok
    main = named.get("main") if isinstance(named, Mapping) else None
    langtoks = tuple(
        main or (given.get("encoder_langtok"), "tgt" if given.get("decoder_langtok") else None)
    )
    langs = [language_name(path, lang) for lang in langs]
    return Layout(vocabulary, tuple(langs), given.get("lang_tok_style") or PLAIN, langtoks)
