"""Folders with pretrained translators: what may lie in them is taken, and what does not fit is refused."""

import json
import os
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from fairseq_mtmoe.backbones.translation.pretrained.codes import NLLB
from fairseq_mtmoe.backbones.translation.pretrained.layout import token_of
from fairseq_mtmoe.backbones.translation.pretrained.reading import read_folder
from fairseq_mtmoe.checkpoints import file_io
from fairseq_mtmoe.data.translation.vocabulary import Vocabulary
from fairseq_mtmoe.evaluation.text_batches import Pieces
from tests.helpers.invoked import mtmoe
from tests.helpers.piece_models import names_of
from tests.helpers.refused import refused
from tests.helpers.translators import CASES, lines, pieces, write_folder

transformers = pytest.importorskip("transformers")
WEIGHTS, PIECES = "model.safetensors", "sentencepiece.bpe.model"


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


def change_json(path, **values):
    content = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    path.write_text(json.dumps({**content, **values}), encoding="utf-8")


def same_model(first, second):
    one, other = read_folder(first).model, read_folder(second).model
    assert one.layout == other.layout and one.options == other.options and one.state.keys() == other.state.keys()
    return all(torch.equal(value, other.state[name]) for name, value in one.state.items())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_weights_keep_their_type(dtype, tmp_path):
    write_folder(tmp_path / "theirs", CASES["nllb"])
    path = tmp_path / "theirs" / WEIGHTS
    save_file({name: value.to(dtype) for name, value in load_file(path).items()}, path)
    mtmoe("import-hf", tmp_path / "theirs", tmp_path / "model.pt")
    state = file_io.load(str(tmp_path / "model.pt"))["model"]
    assert {value.dtype for name, value in state.items() if "version" not in name} == {dtype}
    mtmoe("export-hf", tmp_path / "model.pt", tmp_path / "ours")
    before, after = load_file(path), load_file(tmp_path / "ours" / WEIGHTS)
    assert all(torch.equal(value, after[name]) and after[name].dtype == dtype for name, value in before.items())
    assert transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "ours").dtype == dtype


@pytest.mark.parametrize("name", ["mbart50", "nllb", "m2m", "marian", "marian_two_vocabularies"])
def test_pytorch_files_with_all_names_of_tied_weights(name, folders, copied):
    folder = copied(name)
    weights = load_file(folder / WEIGHTS)
    (folder / WEIGHTS).unlink()
    tied = {"model.shared.weight", "model.decoder.embed_tokens.weight"} & weights.keys()
    embeddings = weights[
        "model.shared.weight" if "model.shared.weight" in tied else "model.decoder.embed_tokens.weight"
    ]
    weights["lm_head.weight"] = embeddings
    if "model.shared.weight" in weights:
        weights |= {f"model.{side}.embed_tokens.weight": embeddings for side in ("encoder", "decoder")}
    if name != "mbart50":  # as older versions wrote positions that are computed
        weights |= {f"model.{side}.embed_positions.weights": torch.zeros(3, 16) for side in ("encoder", "decoder")}
    names = sorted(weights)
    parts = {f"pytorch_model-{part}.bin": names[part::2] for part in (0, 1)}
    for file, own in parts.items():
        torch.save({key: weights[key] for key in own}, folder / file)
    index = {key: file for file, own in parts.items() for key in own}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": index}))
    assert same_model(folders / name, folder)


@pytest.mark.parametrize("name", ["mbart50", "nllb"])
def test_folders_that_transformers_saved_have_no_sentencepiece_model(name, folders, copied):
    """Version 5 saves `tokenizer.json` alone: pieces and scores are there, and cut text as before."""
    folder = copied(name)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    for file in ("sentencepiece.bpe.model", "special_tokens_map.json", "tokenizer_config.json"):
        (folder / file).unlink()
    tokenizer.save_pretrained(folder)
    before, after = (read_folder(each).model.layout for each in (folders / name, folder))
    assert (before.langs, before.vocabulary.source.symbols) == (after.langs, after.vocabulary.source.symbols)
    cut, again = ([each.vocabulary.source.processor.encode(line) for line in lines()] for each in (before, after))
    assert cut == again


def test_codes_are_found_in_any_of_their_files(folders, copied):
    wanted = read_folder(folders / "nllb").model.layout
    folder = copied("nllb")
    change_json(folder / "tokenizer_config.json", added_tokens_decoder={}, extra_special_tokens=None)
    assert read_folder(folder).model.layout == wanted
    codes = json.loads((folder / "special_tokens_map.json").read_text())["additional_special_tokens"]
    (folder / "special_tokens_map.json").unlink()
    change_json(folder / "tokenizer_config.json", additional_special_tokens=[{"content": code} for code in codes])
    assert read_folder(folder).model.layout == wanted
    change_json(folder / "tokenizer_config.json", additional_special_tokens=None)
    first = 4 + len(wanted.vocabulary.source.processor) - 3
    (folder / "added_tokens.json").write_text(json.dumps({code: first + at for at, code in enumerate(codes)}))
    assert read_folder(folder).model.layout == wanted
    (folder / "added_tokens.json").unlink()
    with refused("nllb", "tokenizer_config.json", first=True):
        read_folder(folder)


def with_token(folder, token, *listed, **changes):
    """Add a token as a tokenizer of version 4 does, which may list codes without their ids; returns its row."""
    if (folder / "special_tokens_map.json").exists():
        listed = listed or json.loads((folder / "special_tokens_map.json").read_text())["additional_special_tokens"]
        change_json(folder / "tokenizer_config.json", added_tokens_decoder={}, extra_special_tokens=None, **changes)
    weights = load_file(folder / WEIGHTS)
    rows = len(weights["model.shared.weight"])
    text("special_tokens_map.json", {"additional_special_tokens": listed})(folder)
    row = rows - CASES[folder.name].config.get("padding", 0)
    text("added_tokens.json", {token: row})(folder)
    change_json(folder / "config.json", vocab_size=rows + 1, decoder_vocab_size=rows + 1)
    wider = {"model.shared.weight": torch.cat([weights["model.shared.weight"], torch.zeros(1, 16)])}
    if "final_logits_bias" in weights:
        wider["final_logits_bias"] = torch.cat([weights["final_logits_bias"], torch.zeros(1, 1)], dim=1)
    change_weights(folder, **wider)
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
    before, after = (rows_of(read_folder(each).model.layout) for each in (folders / name, folder))
    if name == "marian":
        del before["de"]  # which the codes replace
    assert after == {**before, lang: row}


def test_codes_of_nllb_are_its_class_own_where_a_list_replaced_them(folders, copied):
    folder, first = copied("nllb"), 4 + len(names_of(pieces("bpe"))) - 3
    with_token(folder, "tyv_Cyrl", "tyv_Cyrl")
    weights = load_file(folder / WEIGHTS)["model.shared.weight"]
    row = first + len(NLLB) + 1
    change_weights(folder, **{"model.shared.weight": weights[:1].repeat(row + 1, 1)})
    change_json(folder / "config.json", vocab_size=row + 1)
    text("added_tokens.json", {"tyv_Cyrl": row})(folder)
    rows = {lang: first + at for at, lang in enumerate(NLLB)}
    assert rows_of(read_folder(folder).model.layout) == {**rows, "tyv_Cyrl": row}


@pytest.mark.parametrize("name", ["nllb", "m2m", "mbart50", "marian"])
@pytest.mark.parametrize("word", ["COVID", "zh-TW", "<url>"])
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
    renamed(long[0], "☃")(folder)
    renamed(long[1], "☂☂")(folder)
    lacking = ["☃", "a ☃ b", "☃☃", "☂☂ ☂ x", *lines(20)]
    layout = read_folder(folder).model.layout
    side = layout.vocabulary.source
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    ours = Pieces(side, side.dictionary()).encode(lacking)
    rows = [[layout.source_rows[index] if layout.source_rows else index for index in ids] for ids in ours]
    theirs = [tokenizer(line, add_special_tokens=False).input_ids for line in lacking]
    assert rows == theirs and tokenizer.unk_token_id not in rows[0]


def test_codes_of_m2m_100_are_its_class_own_where_version_4_saved_none(folders, copied):
    folder = copied("m2m")
    text("special_tokens_map.json", {})(folder)
    change_json(folder / "tokenizer_config.json", language_codes="m2m100", additional_special_tokens=[])
    assert read_folder(folder).model.layout == read_folder(folders / "m2m").model.layout


def change_weights(folder, **values):
    save_file({**load_file(folder / WEIGHTS), **values}, folder / WEIGHTS)


def config(**values):
    """What changes `config.json`."""
    return lambda folder: change_json(folder / "config.json", **values)


def text(file, content):
    """What writes a file; JSON where the content is no text."""
    written = content if isinstance(content, str) else json.dumps(content)
    return lambda folder: (folder / file).write_text(written, encoding="utf-8")


def settings(file="tokenizer_config.json", **values):
    return lambda folder: change_json(folder / file, **values)


def renamed(old, new):
    """What gives a token of `vocab.json` another name."""

    def change(folder):
        names = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
        text("vocab.json", {new if name == old else name: index for name, index in names.items()})(folder)

    return change


def not_in_utf8(folder):
    """What adds a piece that is not UTF-8."""
    with open(folder / PIECES, "ab") as file:
        file.write(b"\x0a\x0a\x0a\x01\xff\x15\x00\x00\xc6\xc2\x18\x01")  # a piece that is not UTF-8


def hole_before_codes(folder):
    """As where the pieces are another model's: a code has the id that its own model gave it."""
    row = len(names_of(pieces("unigram"))) + 3
    text("added_tokens.json", {"xx_XX": row + 52})(folder)


def as_pytorch(**values):
    """What replaces the weights by `pytorch_model.bin`, with others."""

    def change(folder):
        torch.save({**load_file(folder / WEIGHTS), **values}, folder / "pytorch_model.bin")
        (folder / WEIGHTS).unlink()

    return change


def wrong(name, change, *named):
    return pytest.param(name, change, named, id=f"{name}-{named[0]}-{named[-1]}")


@pytest.mark.parametrize(
    ("name", "change", "named"),
    [
        wrong("nllb", config(model_type="nllb-moe"), "model_type"),
        wrong("nllb", config(vocab_size=300), "nllb"),
        wrong("nllb", config(vocab_size=3000), "nllb"),
        wrong("nllb", lambda folder: (folder / PIECES).unlink(), "nllb", PIECES),
        wrong("nllb", lambda folder: (folder / PIECES).write_bytes(b"\x0a\xff"), PIECES),
        wrong(
            "nllb", config(quantization_config={"bits": 4}),
            "quantization_config",
        ),
        wrong("nllb", not_in_utf8, PIECES),
        wrong("nllb", config(max_position_embeddings=1 << 25), "max_position_embeddings"),
        wrong("marian", config(max_position_embeddings=1 << 25), "max_position_embeddings"),
        wrong("nllb", config(encoder_attention_heads=-4), "encoder_attention_heads"),
        wrong("nllb", config(tie_word_embeddings=False), "tie_word_embeddings"),
        wrong("nllb", config(activation_function="x"), "activation_function"),
        wrong("nllb", config(decoder_start_token_id=5), "decoder_start_token_id"),
        wrong("nllb", config(encoder_layers=3),
              "model.encoder.layers.2.self_attn.k_proj.weight"),
        wrong("nllb", lambda folder: change_weights(folder, **{"model.encoder.layers.0.fc1.weight": torch.zeros(2, 2)}),
              "model.encoder.layers.0.fc1.weight"),
        wrong("nllb", lambda folder: change_weights(
            folder, **{"model.encoder.layers.0.fc1.weight": torch.zeros(24, 16, dtype=torch.int8)}),
            "model.encoder.layers.0.fc1.weight"),
        wrong("nllb", lambda folder: change_weights(folder, **{"lm_head.weight": torch.zeros(2, 2)}), "lm_head.weight"),
        wrong("nllb", lambda folder: change_weights(folder, **{"score.weight": torch.zeros(2, 2)}), "score.weight"),
        wrong("nllb", lambda folder: (folder / WEIGHTS).unlink(), "nllb"),
        wrong("mbart50", lambda folder: change_json(folder / "tokenizer_config.json", tokenizer_class="MBartTokenizer"),
              "mbart50", "MBart50Tokenizer"),
        wrong("m2m", lambda folder: (folder / "vocab.json").write_text('{"a": 0, "b": 0}'), "vocab.json"),
        wrong("m2m", lambda folder: (folder / "vocab.json").write_text('{"a": 0, "b": 1}'), "vocab.json"),
        wrong("marian", lambda folder: (folder / "target.spm").unlink(), "marian", "target.spm"),
        *(wrong("marian", text(file, ""), file) for file in ("source.spm", "target.spm")),
        wrong("nllb", lambda folder: (folder / PIECES).write_bytes(pieces("bpe", 300)), "nllb", PIECES),
        wrong("mbart50", hole_before_codes, "mbart50", PIECES),
        wrong("marian", as_pytorch(**{"model.shared.weight": torch.tensor(1.0)}),
              "model.encoder.embed_tokens.weight", "marian"),
        wrong("nllb", lambda folder: change_weights(
            folder, **{name: torch.zeros(24, 16, dtype=torch.float8_e4m3fn) for name in ("lm_head.weight", "score")}),
            "lm_head.weight", "nllb"),
        *(wrong("marian", settings(source_lang=lang), "tokenizer_config.json")
          for lang in ("zh-CN", "a/b", 3)),
        wrong("marian_multilingual", renamed(">>fra<<", ">>fr-CA<<"), "vocab.json"),
        *(wrong("nllb", text("special_tokens_map.json", content), "nllb") for content in (
            {"additional_special_tokens": 3}, {"mask_token": {}})),
        wrong("nllb", settings(added_tokens_decoder={"x": "a"}), "nllb"),
        wrong("nllb", settings(added_tokens_decoder={"9": "a token"}), "nllb"),
        wrong("marian", lambda folder: change_weights(
            folder, **{"model.encoder.embed_positions.weight": torch.zeros(65, 16)}),
            "model.encoder.embed_positions.weight", "marian"),
        wrong("nllb", settings("tokenizer.json", model=3), "nllb"),
        *(wrong("nllb", text("config.json", content), "config.json") for content in ("[]", "null", "3")),
        wrong("nllb", config(d_model="x"), "d_model", "config.json"),
        wrong("marian", config(pad_token_id=3), "decoder_start_token_id"),
        wrong("marian", config(eos_token_id=3), "marian", "config.json"),
        wrong("marian_two_vocabularies", lambda folder: (folder / "target_vocab.json").unlink(), "target_vocab.json"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(name, change, named, copied, tmp_path):
    folder = copied(name)
    change(folder)
    with refused(*named, first=False):
        mtmoe("import-hf", folder, tmp_path / "model.pt")
    assert not (tmp_path / "model.pt").exists()


@pytest.mark.parametrize("name", ["nllb", "marian"])
def test_positions_beyond_the_machines_memory_are_refused_before_they_are_computed(name, copied, monkeypatch, tmp_path):
    folder = copied(name)
    config(max_position_embeddings=1 << 24)(folder)
    monkeypatch.setattr(os, "sysconf", lambda _: 1 << 13)  # 64 MiB
    with refused("max_source_positions", first=False):
        mtmoe("import-hf", folder, tmp_path / "out.pt")



@pytest.mark.parametrize(("value", "dtype"), [("nan", torch.float32), ("inf", torch.float16), ("-inf", torch.bfloat16)])
def test_weights_that_are_no_numbers_are_refused(value, dtype, copied, tmp_path):
    folder, name = copied("marian"), "model.encoder.layers.0.fc1.weight"
    weights = {key: tensor.to(dtype) for key, tensor in load_file(folder / WEIGHTS).items()}
    weights[name][3, 5] = float(value)
    save_file(weights, folder / WEIGHTS)
    with refused(name, "marian"):
        mtmoe("import-hf", folder, tmp_path / "model.pt")
    assert not (tmp_path / "model.pt").exists()


@pytest.mark.parametrize("beside", [(), ("config.json",)], ids=str)
def test_adapters_alone_are_refused(beside, tmp_path):
    for file in ("adapter_config.json", *beside):
        (tmp_path / file).write_text("{}")
    with refused(tmp_path.name, "adapter_config.json", first=False):
        mtmoe("import-hf", tmp_path, tmp_path / "model.pt")


def test_an_empty_sentencepiece_model_is_refused_without_lines_of_the_library(copied, capfd):
    folder = copied("marian")
    (folder / "source.spm").write_bytes(b"")
    with refused("source.spm"):
        read_folder(folder)
    assert not capfd.readouterr().err


@pytest.mark.parametrize("content", ["", "{", "[]", None], ids=str)
def test_a_damaged_list_of_tokens_is_told_by_one_sentence(content, copied):
    folder = copied("nllb")
    (folder / "special_tokens_map.json").unlink()
    if content is None:
        (folder / "special_tokens_map.json").mkdir()
    else:
        (folder / "special_tokens_map.json").write_text(content)
    with refused("special_tokens_map.json"):
        read_folder(folder)


def test_a_tokenizer_of_the_folders_own_is_refused(copied):
    folder = copied("m2m")
    (folder / "tokenization_small100.py").write_text("raise SystemExit\n")
    with refused(folder.name, "tokenization_small100.py"):
        read_folder(folder)


def test_weights_without_names_are_refused(copied):
    folder = copied("nllb")
    torch.save({3: torch.zeros(1)}, folder / "pytorch_model.bin")
    (folder / WEIGHTS).unlink()
    with refused("pytorch_model.bin"):
        read_folder(folder)


def test_a_file_says_its_languages_and_vocabulary(folders, tmp_path):
    said = mtmoe("import-hf", folders / "nllb", tmp_path / "model.pt")
    assert "6 languages" in said and "m2m_100" in said
    state = file_io.load(str(tmp_path / "model.pt"))["task_state"]
    assert state["langs"] == ["ace_Arab", "deu_Latn", "eng_Latn", "ell_Grek", "kat_Geor", "zho_Hans"]
    assert Vocabulary.of_state(state) == read_folder(folders / "nllb").model.layout.vocabulary
