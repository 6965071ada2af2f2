"""`mtmoe prepare --vocabulary-of`: data with a translator's vocabulary and language codes."""

import json

import pytest
from fairseq.data import Dictionary, data_utils

from fairseq_mtmoe.translation.data.vocabulary import Vocabulary
from tests.helpers.invoked import mtmoe
from tests.helpers.piece_models import trained_pieces
from tests.helpers.pretrained_translators import save_translator, sentences, write_lines
from tests.helpers.refused import refused


def prepare(raw, out, *options):
    return mtmoe("prepare", "corpora", raw, out, "--recipe", "folder", "--workers", 1, *options)


@pytest.fixture
def raw(tmp_path):
    (tmp_path / "raw").mkdir()
    for seed, (split, size) in enumerate({"train": 40, "valid": 5, "test": 6}.items()):
        for lang in ("en", "sw"):
            write_lines(tmp_path / "raw" / f"{split}.en-sw.{lang}", sentences(lang, size, seed))
    return tmp_path / "raw"


@pytest.mark.parametrize("style", ["multilingual", "mbart"])
def test_data_has_the_models_pieces_ids_and_codes(tmp_path, raw, style):
    langs = {"multilingual": ("eng_Latn", "fra_Latn", "swh_Latn"), "mbart": ("en_XX", "fr_XX", "sw_KE")}[style]
    model, out = tmp_path / "model.pt", tmp_path / "data"
    vocabulary = save_translator(model, langs=langs, style=style).source
    said = prepare(raw, out, "--vocabulary-of", model)
    assert "--init-model" in said and str(model) in said
    assert tuple((out / "langs.txt").read_text().split()) == langs
    assert (out / "lang_pairs.txt").read_text() == f"{langs[0]}-{langs[2]}\n"
    assert (out / "lang_tok_style.txt").exists() is (style == "mbart")
    dictionary = Dictionary.load(str(out / f"dict.{langs[2]}.txt"))
    assert dictionary == vocabulary.dictionary() and (out / "spm.model").read_bytes() == vocabulary.model
    ids = data_utils.load_indexed_dataset(str(out / f"test.{langs[0]}-{langs[2]}.{langs[2]}"), dictionary)
    cuts = [vocabulary.processor.encode(line, out_type=str) for line in sentences("sw", 6, 2)]
    assert [dictionary.string(row).split() for row in ids] == cuts
    assert "up to date" in prepare(raw, out, "--vocabulary-of", model)


@pytest.mark.parametrize("joined", [True, False])
def test_two_models_cut_sources_and_targets(tmp_path, raw, joined):
    models = trained_pieces(sentences("en", 200)), trained_pieces(sentences("sw", 200), "unigram", 40)
    langs, model, out = ("eng", "swh"), tmp_path / "model.pt", tmp_path / "data"
    made = save_translator(model, models, langs=langs, joined=joined, langtoks=("tgt", None))
    prepare(raw, out, "--vocabulary-of", model)
    dictionaries = [Dictionary.load(str(out / f"dict.{lang}.txt")) for lang in langs]
    assert Vocabulary.of_data(out, *(dictionary.symbols for dictionary in dictionaries)) == made
    sides = zip(langs, dictionaries, (made.source, made.target), ("en", "sw"), strict=True)
    for lang, dictionary, side, short in sides:
        ids = data_utils.load_indexed_dataset(str(out / f"test.eng-swh.{lang}"), dictionary)
        cuts = [side.processor.encode(line, out_type=str) for line in sentences(short, 6, 2)]
        assert [dictionary.string(row).split() for row in ids] == cuts
    corpus = {"name": "text", "pair": "en-sw", "role": "train", "files": ["train.en-sw.en", "train.en-sw.sw"]}
    held_out = {"valid": 2, "test": 2}
    recipe = {"name": "both", "corpora": [corpus], "directions": ["en-sw", "sw-en"], "held_out": held_out}
    (tmp_path / "both.yaml").write_text(json.dumps(recipe))
    with refused("model.pt"):
        prepare(raw, tmp_path / "both", "--recipe", tmp_path / "both.yaml", "--vocabulary-of", model)
    with refused("--vocabulary-from"):
        prepare(raw, tmp_path / "new", "--vocabulary-from", out)


def test_a_language_that_the_model_lacks_is_refused_before_any_work(tmp_path, raw):
    save_translator(tmp_path / "model.pt", langs=("eng_Latn", "fra_Latn"))
    run = (raw, tmp_path / "data")
    for more in ((), ("--codes", "sw=swa_Latn"), ("--codes", "sw"), ("--codes", "sw=fra_Latn,qq=eng_Latn")):
        with refused("--codes"):
            prepare(*run, "--vocabulary-of", tmp_path / "model.pt", *more)
    with refused("--codes"):
        prepare(*run, "--codes", "sw=fra_Latn")
    with refused("--vocabulary-from"):
        prepare(*run, "--vocabulary-of", tmp_path / "model.pt", "--vocabulary-from", raw)
    assert not (tmp_path / "data").exists()
    prepare(*run, "--vocabulary-of", tmp_path / "model.pt", "--codes", "sw=fra_Latn")
    assert (tmp_path / "data" / "train.eng_Latn-fra_Latn.fra_Latn.bin").exists()
