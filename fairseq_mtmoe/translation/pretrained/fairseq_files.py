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
from fairseq_mtmoe.checkpoints.key_maps import (
    DECODER_EMBEDDINGS,
    EMBEDDINGS,
    ENCODER_EMBEDDINGS,
    OUTPUT,
)
from fairseq_mtmoe.checkpoints.rebuild import model_options, plain
from fairseq_mtmoe.core.errors import UserError
from fairseq_mtmoe.core.files import read_text, regular_file
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
)
from fairseq_mtmoe.translation.pretrained.tokenizers import piece_model

MODEL = "model.pt"
DICTIONARY = "dict.txt"
LANGS = "langs.txt"


def read_fairseq_folder(folder: Path) -> hugging_face.Imported[PretrainedTranslator]:
    """Return the translator in a folder.

    Raises `UserError`: a file is missing, damaged or not supported.
    """
    state = file_io.load(str(folder / MODEL), mapped=True, remedy="download it again")
    trained_options = {
        **plain(state.get("args")),
        **plain((state.get("cfg") or {}).get("task")),
        **(model_options(state) or {}),
    }
    named: Mapping[str, Tensor] = hugging_face.named_values(folder / MODEL, state.get("model"))
    weights = {name: value for name, value in named.items() if not COUNTERS.fullmatch(name)}
    if not weights.keys() >= {*EMBEDDINGS} or not trained_options:
        raise UserError(
            f"`{folder / MODEL}` is not a translator of fairseq with its options: "
            "download it again."
        )
    check_types(folder / MODEL, weights)
    weights.setdefault(OUTPUT, weights[DECODER_EMBEDDINGS])  # older versions save tied weights once
    layout = _layout(folder, trained_options)
    rows = weights[ENCODER_EMBEDDINGS].shape[:1].numel()
    symbols = with_codes(layout.vocabulary, layout.settings).source.size
    if symbols != rows:
        raise UserError(
            f"`{folder / MODEL}` has embeddings of {rows:,} symbols, but `{DICTIONARY}` and the "
            f"{len(layout.langs)} languages have {symbols:,}: use the files of one model."
        )
    options = {**trained_options, **all_options(trained_options)}
    config = config_of_options(folder / MODEL, options, rows, rows)
    our_options = config.options(has_output_bias=False)
    wanted = wanted_tensors(our_options, rows, rows)
    hugging_face.check_tensors(folder / MODEL, wanted, weights, types=TYPES)
    hugging_face.check_finite(folder / MODEL, weights)
    left_out = tuple(name for name in named if name not in weights and not name.endswith("version"))
    translator = PretrainedTranslator(config, layout, our_options, {**weights, **versions()})
    return hugging_face.Imported(translator, left_out)


def _layout(folder: Path, options: Mapping[str, Any]) -> Layout:
    dictionary_path = regular_file(folder / DICTIONARY, "the dictionary of a fairseq model")
    dictionary = Dictionary.load(str(dictionary_path))
    models = sorted(folder.glob("*.model"))
    if len(models) != 1:
        names = ", ".join(path.name for path in models) or "none"
        raise UserError(
            f"`{folder}` must contain one SentencePiece model (`*.model`), but contains {names}."
        )
    path = folder / MODEL
    langs = options.get("langs")
    if isinstance(langs, str):
        langs = langs.split(",")
    if not langs:
        path = folder / LANGS
        langs = read_text(path, "the ordered list of the model's languages").split()
    vocabulary = Vocabulary.joined(dictionary.symbols[NUM_SPECIAL:], piece_model(models[0]))
    named = options.get("langtoks")  # overrides --encoder-langtok and --decoder-langtok
    main = named.get("main") if isinstance(named, Mapping) else None
    pair = (options.get("encoder_langtok"), "tgt" if options.get("decoder_langtok") else None)
    langtoks = tuple(main or pair)
    style = options.get("lang_tok_style") or PLAIN
    langs = tuple(language_name(path, lang) for lang in langs)
    return Layout(vocabulary, langs, style, langtoks)
