"""Data sets by name: mtdata's real index and sacreBLEU's test sets as corpora, and a look at their text."""

import gettext
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import django
import pytest

from fairseq_mtmoe.corpora.blocks import CorpusFiles
from fairseq_mtmoe.corpora.engine.samples import check_sample
from fairseq_mtmoe.corpora.monolingual import write_text
from fairseq_mtmoe.corpora.raw_files import items_of
from fairseq_mtmoe.corpora.recipes.from_yaml import load_recipe
from fairseq_mtmoe.corpora.recipes.named.codes import long_code, recipe_code
from fairseq_mtmoe.corpora.recipes.named.entries import place_of
from fairseq_mtmoe.corpora.recipes.named.of_mtdata import of_mtdata
from fairseq_mtmoe.corpora.recipes.named.of_sacrebleu import of_sacrebleu
from fairseq_mtmoe.corpora.recipes.schema import Role
from tests.helpers.invoked import mtmoe
from tests.helpers.refused import refused


def test_codes_are_those_of_a_recipe():
    codes = {"eng": "en", "hau": "ha", "por_BR": "pt_BR", "zho_CN": "zh", "zho_Hant": "zh_Hant", "ces": "cs"}
    codes |= {"hau_Latn": "ha", "zho_Hans": "zh", "srp_Latn": "sr_Latn", "ace_Arab": "ace_Arab"}
    assert {code: recipe_code(code) for code in codes} == codes
    assert [long_code(code) for code in ("en", "ha", "cs", "pt_BR")] == ["eng", "hau", "ces", "por_BR"]


def test_an_index_lists_the_data_sets_of_some_languages():
    lines = mtmoe("download", "--from", "mtdata", "--langs", "eng,sw", "--list").splitlines()
    assert any("Flores-flores200_dev-1-eng-swh_Latn" in line and "en-sw " in line for line in lines)
    assert any("Statmt-" in line for line in lines) and lines[-1].split()[0] == str(len(lines) - 5)
    assert "ha-en" in mtmoe("download", "--from", "sacrebleu", "--langs", "eng,hau")


@pytest.mark.parametrize(("arguments", "name"), [
    ("--from sacrebleu --langs en", "--langs"), ("--from sacrebleu --langs en,eng", "--langs"),
    ("--from sacrebleu --langs en,English", "--langs"), ("--from sacrebleu --langs en,xx", "--from sacrebleu"),
    ("--from sacrebleu --langs en,ha RAW --recipe ml50", "--from"),
    ("--langs en,ha RAW --recipe ml50", "mtmoe download"),
])  # fmt: skip
def test_a_list_that_cannot_be_made_is_one_sentence(arguments, name):
    with refused(name):
        mtmoe("download", *arguments.split())


def test_codes_of_one_language_are_one_code():
    codes = {"hau_Latn": "ha", "swh": "sw", "arb_Arab": "ar", "cmn": "zh", "nob": "nb", "nno_Latn": "nn", "tgl": "tl",
             "srp_Latn": "sr_Latn", "arz": "arz", "no code!": "no code!"}  # fmt: skip
    assert {code: recipe_code(code) for code in codes} == codes


def test_a_multi_parallel_name_stands_for_every_pair_of_its_languages():
    entry = {"mtdata": "Microsoft-ntrex-128-{source}-{target}", "pair": "xx-yy", "langs": ["sw", "en", "zh"]}
    entries = of_mtdata("here", entry)
    assert [entry["pair"] for entry in entries] == ["sw-en", "sw-zh", "en-zh"]
    assert [entry["files"][0][-11:] for entry in entries] == ["ref.swa.txt", "ref.swa.txt", "src.eng.txt"]
    assert entries[1]["name"] == "Microsoft-ntrex-128-swa-zho_CN"
    (into_english,) = of_mtdata("here", {**entry, "pair": "xx-en", "langs": ["sw"]})
    assert into_english["pair"] == "sw-en"
    with refused("here: pair"):
        of_mtdata("here", {**entry, "langs": ["sw"]})


def test_a_name_may_have_other_codes_of_its_languages():
    (data_set,) = of_mtdata("here", {"mtdata": "Flores-flores200_dev-1-swa-hau"})
    assert (data_set["name"], data_set["pair"]) == ("Flores-flores200_dev-1-hau_Latn-swh_Latn", "ha-sw")


def test_text_in_one_language_is_for_the_only_direction(tmp_path):
    path = tmp_path / "mine.yaml"
    for direction in ("en-sw", "en-xx"):
        path.write_text(
            f"directions: [{direction}]\ncorpora: [{{files: [a.en, a.sw], pair: en-sw}}]\n"
            "mono: {mtdata: Leipzig-news-2020_10k-swa, kind: back-translated}\n"
        )
        assert [corpus.pair for corpus in load_recipe(path).corpora] == ["en-sw", "en-sw"]


def test_a_pair_turns_the_order_of_files_and_columns():
    (texts,) = of_mtdata("here", {"mtdata": "Statmt-commoncrawl_wmt13-1-deu-eng"})
    (turned,) = of_mtdata("here", {"mtdata": "Statmt-commoncrawl_wmt13-1-deu-eng", "pair": "en-de", "weight": 3})
    assert texts["pair"] == "de-en" and [file[-2:] for file in texts["files"]] == ["de", "en"]
    assert turned["pair"] == "en-de" and turned["files"] == texts["files"][::-1] and turned["weight"] == 3
    (table,) = of_mtdata("here", {"mtdata": "Statmt-wikititles-3-hau-eng", "pair": "en-ha"})
    assert (table["format"], table["fields"]) == ("tsv", {"source": 2, "target": 1})
    assert table["files"] == ["data.statmt.org/wikititles/v3/wikititles-v3.ha-en.tsv"]


@pytest.mark.parametrize(("name", "pair", "named"), [
    ("swh_Latn", "en-sw", "en-sw"), ("zho_Hans", "zh-en", "zh-en"), ("pes_Arab", "en-fa_IR", "en-fa"),
    ("zho_Hant", "en-zh", ""), ("hau_Latn", "en-sw", ""), ("swh_Latn", "en-de_malformed-code", ""),
    ("hau_Latn", "en-xx", "en-ha"),
])  # fmt: skip
def test_a_pair_may_name_a_language_by_another_of_its_codes(name, pair, named):
    entry = {"mtdata": f"Flores-flores200_dev-1-eng-{name}", "pair": pair}
    if not named:
        with refused("here: pair"):
            of_mtdata("here", entry)
        return
    (data_set,) = of_mtdata("here", entry)
    assert data_set["pair"] == named
    target = name if pair.startswith("en") else "eng_Latn"
    assert data_set["files"][1].endswith(f"/{target}.dev")


def test_languages_of_a_name_may_be_spelled_as_the_index_does():
    entry = {"mtdata": "Leipzig-news-2020_10k-{target}", "pair": "en-xx", "kind": "back-translated", "langs": "sw"}
    assert [text["pair"] for text in of_mtdata("here", entry)] == ["en-sw"]
    entry = {"mtdata": "Flores-flores200_dev-1-eng-{target}", "pair": "en-xx", "langs": {"sw": "swh_Latn"}}
    assert [text["pair"] for text in of_mtdata("here", entry)] == ["en-sw"]


@pytest.mark.parametrize(("field", "entry"), [
    ("pair", {"pair": "en"}), ("pair", {"pair": "en-ha-sw"}),
    ("pair", {"pair": ["en-ha"]}), ("langs", {"langs": 3}), ("langs", {"langs": None}),
    ("langs", {"langs": ["English"]}),
    ("langs", {"langs": []}), ("langs", {"langs": ["qq"]}), ("limit", {"limit": "3"}),
])  # fmt: skip
def test_a_wrong_choice_of_data_sets_is_one_sentence(field, entry):
    name = "Statmt-newsdev_enha-2021-eng-{target}" if "langs" in entry else "Statmt-newsdev_enha-2021-eng-hau"
    with refused() as error:
        of_mtdata("here", {"mtdata": name, "pair": "en-xx", **entry})
    assert str(error.value).startswith(f"`here: {field}")
    if "langs" in entry and entry["langs"] != ["qq"]:
        with refused(f"here: {field}"):
            of_sacrebleu("here", {"sacrebleu": "wmt21", "pair": "en-xx", **entry})


@pytest.mark.parametrize("entry", [
    {"mtdata": None}, {"mtdata": []}, {"mtdata": ""}, {"mtdata": {"a": "b"}},
    {"mtdata": "Statmt-newsdev_enha-2021-eng-{target}"},
    {"mtdata": "Statmt-newsdev_enha-2021-eng-hau", "langs": ["ha"]},
    {"mtdata": "Statmt-newsdev_enha-2021-eng-hau", "kind": "back-translated"},
    {"mtdata": "Leipzig-news-2020_10k-swa", "role": "test", "pair": "en-sw"},
    {"mtdata": "TALPCo-talpco-1-jpn-tha"},  # a table for each language
])  # fmt: skip
def test_a_wrong_name_is_one_sentence(entry):
    with refused("here: mtdata"):
        of_mtdata("here", entry)


def test_a_file_of_two_entries_has_one_checksum(tmp_path):
    path = tmp_path / "mine.yaml"
    files = "files: [a.tgz!x.en, a.tgz!x.ha], pair: en-ha"
    for first, second in (("", "md5"), ("md5", "md5"), ("md5", "other")):
        sums = {"": "", "md5": f", md5: {'a' * 32}", "other": f", md5: {'b' * 32}"}
        entries = f"{{{files}, name: x{sums[first]}}}, {{{files}, name: y{sums[second]}}}"
        path.write_text(f"corpora: [{entries}]\n")
        if second == "md5":
            (item,) = items_of(load_recipe(path).corpora)
            assert item.md5 == "a" * 32
            continue
        with refused("a.tgz"):
            items_of(load_recipe(path).corpora)


@pytest.mark.parametrize("entry", ["mtdata: x, sacrebleu: y", "mtdata: x, files: y", "datasets: x, files: y"])
def test_an_entry_has_its_text_from_one_place(tmp_path, entry):
    path = tmp_path / "mine.yaml"
    path.write_text(f"corpora: [{{files: [a.en, a.ha], pair: en-ha}}, {{{entry}, pair: en-ha}}]\n")
    first, second = (part.split(":")[0] for part in entry.split(", "))
    with refused("mine.yaml: corpora", first, second):
        load_recipe(path)


@pytest.mark.parametrize("field", ["data_set", "text_of"])
def test_a_field_that_names_set_is_refused_in_a_recipe(tmp_path, field):
    path = tmp_path / "mine.yaml"
    path.write_text(f"corpora: [{{files: [a.en, a.ha], pair: en-ha, {field}: ../x}}]\n")
    with refused(f"mine.yaml: corpora: {field}"):
        load_recipe(path)


def test_a_pattern_stands_for_at_most_its_limit():
    entries = of_mtdata("here", {"mtdata": "Statmt-*-eng-hau", "limit": 20})
    assert {entry["pair"] for entry in entries} == {"en-ha"} and len(entries) > 2
    for limit in (1, None):
        with refused("here: limit"):
            of_mtdata("here", {"mtdata": "Statmt-*-eng-hau", "limit": limit})
    with refused("here: mtdata"):
        of_mtdata("here", {"mtdata": "Statmt-nothing*-eng-hau", "limit": 1})
    dev = {"mtdata": "Stat*-newsdev_en*-eng-{target}", "pair": "en-xx", "langs": ["ha", "ta"], "limit": 1}
    assert [entry["pair"] for entry in of_mtdata("here", dev)] == ["en-ha", "en-ta"]


@pytest.mark.parametrize(("entry", "words"), [
    ({"mtdata": "Statmt-newsdev_enhaa-2021-eng-hau"}, "the most similar one is Statmt-newsdev_enha-2021-eng-hau"),
    ({"mtdata": "Flores-flores101_dev-1-eng-hau"}, "the same file, flores101_dataset/dev/zul_Latn.dev, for both"),
    ({"mtdata": "Motorola-lang_revitalization-20240604-eng-lld"}, "whose format (xlsx) cannot be read"),
    ({"mtdata": "Statmt-wikititles-3-hau-eng", "pair": "en-sw"}, "must be ha-en or en-ha"),
    ({"mtdata": "Leipzig-news-2020_10k-swa", "pair": "sw-en"}, "a pair that ends in sw"),
])  # fmt: skip
def test_a_mistake_of_the_recipe_or_the_index_is_one_sentence(entry, words):
    with refused() as error:
        of_mtdata("mine.yaml: corpora: number 1", entry)
    assert words in str(error.value) and "mine.yaml: corpora: number 1: " in str(error.value)


def test_test_sets_of_sacrebleu_bring_checksum_and_citation():
    entries = of_sacrebleu("here", {"sacrebleu": "wmt20", "pair": "en-xx", "langs": ["de", "cs"]})
    assert [(entry["name"], entry["role"]) for entry in entries] == [
        ("sacrebleu-wmt20-en-de", "test"), ("sacrebleu-wmt20-en-cs", "test")]  # fmt: skip
    german = entries[0]
    assert german["files"][1].endswith(".tgz!sgm/newstest2020-ende-ref.de.sgm")
    assert len(german["md5"]) == 1 and german["format"] == "sgm"
    for entry in ({"sacrebleu": "wmt99", "pair": "en-de"}, {"sacrebleu": "wmt21/B", "pair": "en-ru"},
                  {"sacrebleu": "iwslt17", "pair": "en-fr"}):  # fmt: skip
        with refused("here: sacrebleu"):
            of_sacrebleu("here", entry)
    with refused("here: pair"):
        of_sacrebleu("here", {"sacrebleu": "wmt20", "pair": "en-sw"})


def test_a_place_is_below_raw_whatever_the_address():
    assert place_of("https://a.org/x/y%20z.tgz") == "a.org/x/y z.tgz"
    assert place_of("https://a.org/get/", "corpus.zip") == "a.org/get/corpus.zip"
    assert place_of("https://a.org/get?id=1!2") == "a.org/get_id=1_2"


def test_text_in_one_language_is_taken_out_of_its_archive(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(
        "directions: [en-sw]\ncorpora: [{files: [a.en, a.sw]}]\n"
        "mono: {mtdata: Leipzig-news-2020_10k-swa, pair: en-sw}\n"
    )
    own, mono = load_recipe(path).corpora
    assert (own.name, own.pair, own.role) == ("a.en", "en-sw", Role.train) and mono.is_synthetic
    sentences = tmp_path / "swa_news-sentences.txt"
    sentences.write_text("1\tHabari ya leo.\n\n2\t\n3\tKaribu sana.\n")
    archive = tmp_path / mono.downloads[0]
    archive.parent.mkdir(parents=True)
    with tarfile.open(archive, "w:gz") as file:
        file.add(sentences, "swa_news_2020_10K/swa_news_2020_10K-sentences.txt")
    write_text(mono, tmp_path)
    assert (tmp_path / "mono" / "Leipzig-news-2020_10k-swa.sw").read_text() == "Habari ya leo.\nKaribu sana.\n"
    sentences.write_text("no column\n")
    with tarfile.open(archive, "w:gz") as file:
        file.add(sentences, "swa_news_2020_10K/swa_news_2020_10K-sentences.txt")
    (tmp_path / mono.files[1]).unlink()
    with refused(mono.text_of, first=False):
        write_text(mono, tmp_path)
    assert not (tmp_path / mono.files[1]).exists()


@pytest.fixture
def data_set(tmp_path):
    """Write German and English of Django's catalog as a data set of two languages."""
    catalog = Path(django.__file__).parent / "conf" / "locale" / "de" / "LC_MESSAGES" / "django.mo"
    with catalog.open("rb") as file:
        messages = gettext.GNUTranslations(file)._catalog
    texts = [(key, text) for key, text in messages.items() if isinstance(key, str) and key and len(text) > 20]
    english, german = ([" ".join(side.split()) for side in sides] for sides in zip(*texts, strict=True))

    def write(source, target, langs):
        for lines, name in ((source, "source"), (target, "target")):
            (tmp_path / name).write_text("".join(f"{line}\n" for line in lines))
        files = tmp_path / "source", tmp_path / "target"
        return CorpusFiles("x", files, *langs, data_set="mtdata OPUS-x-v1-eng-deu")

    return write, english, german


def test_a_data_set_must_be_what_its_name_says(data_set):
    write, english, german = data_set
    check_sample(write(english, german, ("en", "de")))
    check_sample(write(english[:5], german[:5], ("en", "sw")))  # too little to tell
    check_sample(write(english, german, ("en", "tlh")))  # a language that the model does not know
    for target, lang, words in ((english, "de", "both sides are equal"), (german, "sw", "its text in sw is in de")):
        with refused("OPUS-x-v1-eng-deu") as error:
            check_sample(write(english, target, ("en", lang)))
        assert words in str(error.value) and "mtdata" in str(error.value)
    swapped = write(german, english, ("en", "de"))
    with refused("OPUS-x-v1-eng-deu"):
        check_sample(swapped)


@pytest.mark.scheduled  # writing it takes 20 s
def test_the_index_is_written_once_by_mtdata_itself(tmp_path):
    code = "from fairseq_mtmoe.corpora.recipes.named.mtdata_index import data_set_of as find; print(find('{}', 'x'))"
    (tmp_path / "mtdata_mine.py").write_text("raise SystemExit('code of the current folder runs')\n")
    environment = {**os.environ, "MTDATA": str(tmp_path / "cache")}
    for is_first in (True, False):
        command = [sys.executable, "-c", code.format("Statmt-wikititles-3-hau-eng")]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
        assert ("once" in done.stderr) == is_first and "wikititles-v3.ha-en.tsv" in done.stdout
