"""Folders with pretrained translators: what may lie in them is taken, and what does not fit is refused."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from fairseq_mtmoe.translation.decode.text_batches import Pieces
from fairseq_mtmoe.translation.pretrained.codes import NLLB
from fairseq_mtmoe.translation.pretrained.layout import token_of
from fairseq_mtmoe.translation.pretrained.reading import read_folder
from tests.helpers.invoked import mtmoe
from tests.helpers.piece_models import names_of
from tests.helpers.refused import refused
from tests.helpers.translators import CASES, lines, pieces, write_folder

transformers = pytest.importorskip("transformers")
WEIGHTS, PIECES = "model.safetensors", "sentencepiece.bpe.model"
SETTINGS, SPECIAL = "tokenizer_config.json", "special_tokens_map.json"
FC1, POSITIONS = "model.encoder.layers.0.fc1.weight", "model.encoder.embed_positions.weight"


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A folder of each family, to be copied."""
    root = tmp_path_factory.mktemp("folders")
    for name in ("mbart50", "nllb", "m2m", "marian", "marian_multilingual", "marian_two_vocabularies"):
        write_folder(root / name, CASES[name])
    return root


@pytest.fixture
def copied(folders, tmp_path):
    def copy(name):
        return shutil.copytree(folders / name, tmp_path / name)

    return copy


def changed(folder, file, **values):
    """Change values of a JSON file or weights, and return its folder."""
    path = folder / file
    if file == WEIGHTS:
        save_file({**load_file(path), **values}, path)
        return folder
    content = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    path.write_text(json.dumps({**content, **values}), encoding="utf-8")
    return folder


def renamed(folder, old, new):
    """Give a token of `vocab.json` another name, and return its folder."""
    names = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
    (folder / "vocab.json").write_text(json.dumps({new if name == old else name: names[name] for name in names}))
    return folder


def layout_of(folder):
    return read_folder(folder).model.layout


def test_weights_keep_their_type(copied, tmp_path):
    folder = copied("nllb")
    weights = {name: value.bfloat16() for name, value in load_file(folder / WEIGHTS).items()}
    changed(folder, WEIGHTS, **weights)
    mtmoe("import-hf", folder, tmp_path / "model.pt")
    mtmoe("export-hf", tmp_path / "model.pt", tmp_path / "ours")
    torch.testing.assert_close(load_file(tmp_path / "ours" / WEIGHTS), weights, rtol=0, atol=0)


@pytest.mark.parametrize("name", ["mbart50", "m2m", "marian_two_vocabularies"])
def test_pytorch_files_with_all_names_of_tied_weights(name, folders, copied):
    folder = copied(name)
    weights = load_file(folder / WEIGHTS)
    (folder / WEIGHTS).unlink()
    shared = weights.get("model.shared.weight")
    weights["lm_head.weight"] = weights["model.decoder.embed_tokens.weight"] if shared is None else shared
    if shared is not None:
        weights |= {f"model.{side}.embed_tokens.weight": shared for side in ("encoder", "decoder")}
    if name != "mbart50":  # as older versions wrote positions that are computed
        weights |= {f"model.{side}.embed_positions.weights": torch.zeros(3, 16) for side in ("encoder", "decoder")}
    names = sorted(weights)
    parts = {f"pytorch_model-{part}.bin": names[part::2] for part in (0, 1)}
    for file, own in parts.items():
        torch.save({key: weights[key] for key in own}, folder / file)
    index = {key: file for file, own in parts.items() for key in own}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": index}))
    one, other = read_folder(folders / name).model, read_folder(folder).model
    assert one.layout == other.layout and one.options == other.options
    torch.testing.assert_close(one.state, other.state, rtol=0, atol=0)


@pytest.mark.parametrize("name", ["mbart50", "nllb"])
def test_folders_that_transformers_saved_have_no_sentencepiece_model(name, folders, copied):
    """Version 5 saves `tokenizer.json` alone: pieces and scores are there, and cut text as before."""
    folder = copied(name)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    for file in ("sentencepiece.bpe.model", "special_tokens_map.json", "tokenizer_config.json"):
        (folder / file).unlink()
    tokenizer.save_pretrained(folder)
    before, after = map(layout_of, (folders / name, folder))
    assert (before.langs, before.vocabulary.source.symbols) == (after.langs, after.vocabulary.source.symbols)
    cut, again = ([each.vocabulary.source.processor.encode(line) for line in lines()] for each in (before, after))
    assert cut == again


def test_codes_are_found_in_any_of_their_files(folders, copied):
    folder, wanted = copied("nllb"), layout_of(folders / "nllb")
    changed(folder, SETTINGS, added_tokens_decoder={}, extra_special_tokens=None)
    assert layout_of(folder) == wanted
    codes = json.loads((folder / SPECIAL).read_text())["additional_special_tokens"]
    (folder / SPECIAL).unlink()
    changed(folder, SETTINGS, additional_special_tokens=[{"content": code} for code in codes])
    assert layout_of(folder) == wanted
    changed(folder, SETTINGS, additional_special_tokens=None)
    first = 4 + len(wanted.vocabulary.source.processor) - 3
    changed(folder, "added_tokens.json", **{code: first + at for at, code in enumerate(codes)})
    assert layout_of(folder) == wanted
    (folder / "added_tokens.json").unlink()
    with refused("nllb", SETTINGS):
        read_folder(folder)
    m2m = copied("m2m")  # as version 4 saved it
    changed(m2m, SPECIAL, additional_special_tokens=[])
    changed(m2m, SETTINGS, language_codes="m2m100", additional_special_tokens=[])
    assert layout_of(m2m) == layout_of(folders / "m2m")


def with_token(folder, token, *listed, **changes):
    """Add a token as a tokenizer of version 4 does, which may list codes without their ids; returns its row."""
    if (folder / SPECIAL).exists():
        listed = listed or json.loads((folder / SPECIAL).read_text())["additional_special_tokens"]
        changed(folder, SETTINGS, added_tokens_decoder={}, extra_special_tokens=None, **changes)
    weights = load_file(folder / WEIGHTS)
    rows = len(weights["model.shared.weight"])
    row = rows - CASES[folder.name].config.get("padding", 0)
    changed(folder, SPECIAL, additional_special_tokens=listed)
    changed(folder, "added_tokens.json", **{token: row})
    changed(folder, "config.json", vocab_size=rows + 1, decoder_vocab_size=rows + 1)
    wider = {"model.shared.weight": torch.cat([weights["model.shared.weight"], torch.zeros(1, 16)])}
    if "final_logits_bias" in weights:
        wider["final_logits_bias"] = torch.cat([weights["final_logits_bias"], torch.zeros(1, 1)], dim=1)
    changed(folder, WEIGHTS, **wider)
    return row


def rows_of(layout):
    """Hugging Face's row of each language's code."""
    index = {symbol: at for at, symbol in enumerate(layout.vocabulary.source.symbols, 4)}
    found = {lang: index[token_of(lang, layout.lang_tok_style)] for lang in layout.langs}
    return {lang: layout.source_rows[at] if layout.source_rows else at for lang, at in found.items()}


@pytest.mark.parametrize(
    ("name", "token", "lang", "listed", "changes"),
    [
        ("nllb", "tyv_Cyrl", "tyv_Cyrl", (), {}),
        ("nllb", "__tyv__", "__tyv__", (), {}),
        ("nllb", "tyv", "tyv", ("ace_Arab", "deu_Latn", "eng_Latn", "ell_Grek", "kat_Geor", "zho_Hans", "tyv"), {}),
        ("mbart50", "tyv_RU", "tyv_RU", (), {}),
        ("mbart50", "tyv", "tyv", ("tyv",), {}),
        ("m2m", "__tyv__", "tyv", (), {}),
        ("m2m", "__tyv__", "tyv", ("__tyv__",), {"language_codes": "m2m100"}),
        ("marian", ">>tyv<<", "tyv", (), {}),
        ("marian_multilingual", ">>tyv<<", "tyv", (), {}),
    ],
)
def test_an_added_language_has_its_row_and_others_keep_theirs(name, token, lang, listed, changes, folders, copied):
    """As `transformers` 4.30, 4.46 and 5 number them."""
    folder = copied(name)
    row = with_token(folder, token, *listed, **changes)
    before, after = (rows_of(layout_of(each)) for each in (folders / name, folder))
    if name == "marian":
        del before["de"]  # which the codes replace
    assert after == {**before, lang: row}


def test_codes_of_nllb_are_its_class_own_where_a_list_replaced_them(folders, copied):
    folder, first = copied("nllb"), 4 + len(names_of(pieces("bpe"))) - 3
    with_token(folder, "tyv_Cyrl", "tyv_Cyrl")
    weights = load_file(folder / WEIGHTS)["model.shared.weight"]
    row = first + len(NLLB) + 1
    changed(folder, WEIGHTS, **{"model.shared.weight": weights[:1].repeat(row + 1, 1)})
    changed(folder, "config.json", vocab_size=row + 1)
    changed(folder, "added_tokens.json", tyv_Cyrl=row)
    rows = {lang: first + at for at, lang in enumerate(NLLB)}
    assert rows_of(layout_of(folder)) == {**rows, "tyv_Cyrl": row}


@pytest.mark.parametrize(("name", "word"), [("nllb", "COVID"), ("m2m", "zh-TW"), ("marian", "<url>")])
def test_words_that_transformers_cuts_out_of_text_are_refused(name, word, copied):
    folder = copied(name)
    with_token(folder, word)
    with refused(name) as said:
        read_folder(folder)
    assert word in str(said.value)


@pytest.mark.parametrize("name", ["m2m", "marian"])
def test_characters_beside_the_pieces_are_what_transformers_makes_of_them(name, copied):
    folder = copied(name)
    vocabulary = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
    long = [piece for piece in vocabulary if len(piece) > 3 and piece[0] == "▁"]
    renamed(renamed(folder, long[0], "☃"), long[1], "☂☂")
    lacking = ["☃", "a ☃ b", "☃☃", "☂☂ ☂ x", *lines(20)]
    layout = layout_of(folder)
    side = layout.vocabulary.source
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    ours = Pieces(side, side.dictionary()).encode(lacking)
    rows = [[layout.source_rows[index] if layout.source_rows else index for index in ids] for ids in ours]
    theirs = [tokenizer(line, add_special_tokens=False).input_ids for line in lacking]
    assert rows == theirs and tokenizer.unk_token_id not in rows[0]


@pytest.mark.parametrize(
    ("name", "file", "content", "named"),
    [
        ("nllb", "config.json", {"model_type": "nllb-moe"}, "model_type"),
        ("nllb", "config.json", {"vocab_size": 300}, "nllb"),
        ("nllb", "config.json", {"vocab_size": 3000}, "nllb"),
        ("nllb", "config.json", {"encoder_attention_heads": 3}, "encoder_attention_heads"),
        ("nllb", "config.json", {"tie_word_embeddings": False}, "tie_word_embeddings"),
        ("nllb", "config.json", {"decoder_start_token_id": 5}, "decoder_start_token_id"),
        ("nllb", "config.json", {"encoder_layers": 3}, "model.encoder.layers.2.self_attn.k_proj.weight"),
        ("marian", "config.json", {"pad_token_id": 3}, "decoder_start_token_id"),
        ("marian", "config.json", {"eos_token_id": 3}, "marian config.json"),
        ("nllb", SPECIAL, {"additional_special_tokens": 3}, "nllb"),
        ("nllb", SETTINGS, {"added_tokens_decoder": {"9": "a token"}}, "nllb"),
        ("mbart50", SETTINGS, {"tokenizer_class": "MBartTokenizer"}, "mbart50 MBart50Tokenizer"),
        ("marian", SETTINGS, {"source_lang": "zh-CN"}, SETTINGS),
        ("marian_multilingual", "vocab.json", (">>fra<<", ">>fr-CA<<"), "vocab.json"),
        ("nllb", "config.json", b"[]", "config.json"),
        ("nllb", SPECIAL, b"[]", SPECIAL),
        ("nllb", PIECES, b"\x0a\xff", PIECES),
        ("nllb", PIECES, pieces("bpe", 300), f"nllb {PIECES}"),
        ("m2m", "vocab.json", b'{"a": 0, "b": 0}', "vocab.json"),
        ("m2m", "vocab.json", b'{"a": 0, "b": 1}', "vocab.json"),
        ("m2m", "tokenization_small100.py", b"raise SystemExit", "m2m tokenization_small100.py"),
        ("marian", "source.spm", b"", "source.spm"),
        ("nllb", PIECES, None, PIECES),
        ("marian", "target.spm", None, "target.spm"),
        ("nllb", WEIGHTS, {FC1: torch.zeros(24, 16, dtype=torch.int8)}, FC1),
        ("nllb", WEIGHTS, {FC1: torch.full((24, 16), torch.nan)}, FC1),
        ("nllb", WEIGHTS, {"lm_head.weight": torch.zeros(2, 2)}, "lm_head.weight"),
        ("nllb", WEIGHTS, {"score.weight": torch.zeros(2, 2)}, "score.weight"),
        ("marian", WEIGHTS, {POSITIONS: torch.ones(9, 16)}, POSITIONS),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_does_not_fit_is_refused(name, file, content, named, copied, tmp_path):
    """content: values to change, the names of a token before and after, a file's bytes, or None without the file."""
    folder = copied(name)
    if isinstance(content, dict):
        changed(folder, file, **content)
    elif isinstance(content, tuple):
        renamed(folder, *content)
    elif content is None:
        (folder / file).unlink()
    else:
        (folder / file).write_bytes(content)
    with refused(*named.split(), first=False):
        mtmoe("import-hf", folder, tmp_path / "model.pt")
    assert not (tmp_path / "model.pt").exists()


def test_adapters_without_their_model_are_refused(copied, tmp_path):
    folder = changed(copied("nllb"), "adapter_config.json")
    (folder / "config.json").unlink()
    with refused("nllb", "adapter_config.json"):
        mtmoe("import-hf", folder, tmp_path / "model.pt")
