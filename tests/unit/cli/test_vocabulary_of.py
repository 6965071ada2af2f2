"""`mtmoe prepare --vocabulary-of`: data with a translator's vocabulary and language codes."""

import json

import pytest
from fairseq.data import Dictionary, data_utils

from fairseq_mtmoe.data.translation.vocabulary import Vocabulary
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
    assert str(tmp_path) not in json.dumps(json.loads((out / "report.json").read_text()).get("recipe", {}))


def test_data_with_a_vocabulary_for_each_side_is_no_vocabulary_of_other_data(tmp_path, raw):
    models = trained_pieces(sentences("en", 200)), trained_pieces(sentences("sw", 200))
    model, old = tmp_path / "model.pt", tmp_path / "old"
    save_translator(model, models, langs=("eng", "swh"), langtoks=("tgt", None))
    prepare(raw, old, "--vocabulary-of", model)
    with refused("--vocabulary-from"):
        prepare(raw, tmp_path / "new", "--vocabulary-from", old)
    assert not (tmp_path / "new").exists()


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
    files = ["train.en-sw.en", "train.en-sw.sw"]
    corpus = {"name": "text", "pair": "en-sw", "role": "train", "files": files}
    held_out = {"valid": 2, "test": 2}
    recipe = {"name": "both", "corpora": [corpus], "directions": ["en-sw", "sw-en"], "held_out": held_out}
    (tmp_path / "both.yaml").write_text(json.dumps(recipe))
    with refused("model.pt"):
        options = ("--recipe", tmp_path / "both.yaml", "--vocabulary-of", model)
        mtmoe("prepare", "corpora", raw, tmp_path / "both", *options)


def test_another_models_data_is_not_replaced(tmp_path, raw):
    save_translator(tmp_path / "model.pt")
    save_translator(tmp_path / "other.pt", [trained_pieces(sentences("en", 100), size=50)])
    run = (raw, tmp_path / "data", "--vocabulary-of")
    prepare(*run, tmp_path / "model.pt")
    with refused("data"):
        prepare(*run, tmp_path / "other.pt")
    assert "Wrote" in prepare(*run, tmp_path / "other.pt", "--overwrite")


def test_a_language_that_the_model_lacks_is_refused_before_any_work(tmp_path, raw):
    save_translator(tmp_path / "model.pt", langs=("eng_Latn", "fra_Latn"))
    run = (raw, tmp_path / "data")
    for more, wrong in (
        (("--vocabulary-of", tmp_path / "model.pt"), "--codes"),
        (("--vocabulary-of", tmp_path / "model.pt", "--codes", "sw=swa_Latn"), "--codes"),
        (("--vocabulary-of", tmp_path / "model.pt", "--codes", "sw"), "--codes"),
        (("--codes", "sw=fra_Latn"), "--codes"),
        (("--vocabulary-of", tmp_path / "model.pt", "--codes", "sw=fra_Latn,qq=eng_Latn"), "--codes"),
        (("--vocabulary-of", tmp_path / "model.pt", "--vocabulary-from", raw), "--vocabulary-from"),
        (("--vocabulary-of", raw / "none.pt"), "none.pt"),
    ):
        with refused(wrong):
            prepare(*run, *more)
    assert not (tmp_path / "data").exists()
    prepare(*run, "--vocabulary-of", tmp_path / "model.pt", "--codes", "sw=fra_Latn")
    assert (tmp_path / "data" / "train.eng_Latn-fra_Latn.fra_Latn.bin").exists()


def test_an_extended_model_tells_back_translated_text_apart(tmp_path, raw):
    """Other models lack the tag, and say so."""
    model, extended = tmp_path / "model.pt", tmp_path / "extended.pt"
    save_translator(model, langs=("eng", "fra"))
    text = write_lines(tmp_path / "luo.txt", sentences("luo", 200))
    mtmoe("extend", model, extended, "--language", "luo", "--text", text)
    corpora = []
    for seed, kind in enumerate(("parallel", "back-translated")):
        files = [write_lines(raw / f"{kind}.{lang}", sentences(lang, 20, 7 + seed)).name for lang in ("en", "luo")]
        corpora.append({"name": kind, "pair": "en-luo", "role": "train", "files": files, "kind": kind})
    recipe = {"name": "bt", "corpora": corpora, "held_out": {"valid": 2, "test": 2}}
    (tmp_path / "bt.yaml").write_text(json.dumps(recipe))
    options = ("--recipe", tmp_path / "bt.yaml", "--workers", 1, "--codes", "en=eng,luo=luo", "--vocabulary-of")
    mtmoe("prepare", "corpora", raw, tmp_path / "data", *options, extended)
    dictionary = Dictionary.load(str(tmp_path / "data" / "dict.eng.txt"))
    rows = data_utils.load_indexed_dataset(str(tmp_path / "data" / "train.eng-luo.eng"), dictionary)
    assert 10 < sum(dictionary[int(row[0])] == "<BT>" for row in rows) <= 20
    save_translator(model, langs=("eng", "luo"))
    with refused("kind", first=False):
        mtmoe("prepare", "corpora", raw, tmp_path / "none", *options, model)
