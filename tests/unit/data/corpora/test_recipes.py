"""Recipes: the shipped ones, a user's own, and a sentence for each mistake."""

import re
from dataclasses import fields
from pathlib import Path

import pytest
import yaml

from fairseq_mtmoe.data.corpora.recipes import (
    SHIPPED,
    Action,
    Corpus,
    Filters,
    HeldOut,
    Recipe,
    Role,
    Shards,
    Vocabulary,
    load_recipe,
    mbart_code,
    plain_code,
)
from fairseq_mtmoe.data.corpora.recipes.schema import MBART
from fairseq_mtmoe.errors import UserError

OWN_TEXT = Path(__file__).parents[4] / "examples" / "translation" / "own_text" / "own_text.yaml"
WMT15 = "cs de es et fi fr gu hi kk lt lv ro ru tr zh"
ML50 = (  # by where their text is from
    "es fr ro lv fi tr et gu kk lt cs de ja km pl ps ru ta zh ar it nl ko vi ne si my ml te ur hi af xh "
    "az bn fa gl he hr id ka mk mn mr pt sl sv th uk"
)
OWN = {
    "name": "mine",
    "corpora": [
        {"name": "a", "pair": "en-de", "role": "train", "files": ["a.en", "a.de"]},
        {"name": "b", "pair": "en-de", "role": "test", "files": "b.tsv", "fields": {"source": 2, "target": 1}},
    ],
}

OPEN = {"name": "a", "pair": "xx-de", "role": "train", "files": ["a.{source}", "a.{target}"]}


@pytest.fixture
def load(tmp_path):
    """Write a recipe and load it."""

    def call(content):
        path = tmp_path / "mine.yaml"
        path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
        return load_recipe(path)

    return call


def changed(path, value):
    """`OWN` with one value changed: `corpora.0.role`; None takes it out."""
    content = yaml.safe_load(yaml.safe_dump(OWN))
    *parents, last = path.split(".")
    place = content
    for name in parents:
        place = place[int(name)] if isinstance(place, list) else place.setdefault(name, {})
    where = int(last) if isinstance(place, list) else last
    place[where] = value
    if value is None:
        del place[where]
    return content


@pytest.mark.parametrize("name", SHIPPED)
def test_every_shipped_recipe_loads(name):
    recipe = load_recipe(name)
    assert recipe.name == name
    for corpus in recipe.corpora:
        assert corpus.address or corpus.by_hand, corpus.name
        assert corpus.licence or corpus.is_open, corpus.name
        assert "{" not in "".join((*corpus.files, *corpus.address, corpus.name)) or corpus.is_open


@pytest.mark.parametrize(("name", "languages"), [("wmt15", WMT15), ("ml50", ML50)])
def test_the_benchmarks_have_their_languages(name, languages):
    recipe = load_recipe(name)
    pairs = {f"en-{lang}" for lang in languages.split()}
    assert len(pairs) == {"wmt15": 15, "ml50": 49}[name]
    assert set(recipe.pairs) == set(recipe.trained()) == pairs
    assert sorted(lang for tier in recipe.tiers.values() for lang in tier) == sorted(languages.split())
    evaluated = [{corpus.pair for corpus in recipe.corpora if corpus.role is role} for role in (Role.valid, Role.test)]
    assert evaluated[0] == evaluated[1] == pairs - ({"en-af", "en-xh"} if name == "ml50" else set())


def test_ml50s_tiers_give_the_papers_averages():
    """ "Tricks for Training Sparse Translation Models", tables 1 and 2, ML-50: low, mid, high, and all languages."""
    tiers = load_recipe("ml50").tiers
    low, mid, high = (len(tiers[name]) for name in ("low", "mid", "high"))
    for of_low, of_mid, of_high, of_all in (
        *((10.7, 23.7, 24.7, 22.5), (8.7, 22.6, 26.5, 22.3), (8.9, 22.9, 26.5, 22.5), (8.5, 22.7, 26.5, 22.3)),
        *((9.3, 22.9, 26.5, 22.4), (10.1, 23.7, 26.0, 22.9), (10.5, 23.4, 25.9, 22.7), (8.7, 22.6, 26.6, 22.2)),
        *((9.3, 23.0, 26.5, 22.4), (9.6, 22.9, 26.8, 22.6), (9.8, 23.1, 26.7, 22.7)),
    ):
        assert (low * of_low + mid * of_mid + high * of_high) / 49 == pytest.approx(of_all, abs=0.2)


def test_files_have_one_origin_and_checksums_are_those_of_sacrebleu():
    from sacrebleu.dataset import DATASETS

    sets = [data for data in DATASETS.values() if data.md5]
    published = {address: md5 for data in sets for address, md5 in zip(data.data, data.md5, strict=True)}
    corpora = [corpus for name in SHIPPED for corpus in load_recipe(name).corpora]
    said = {}
    for corpus in corpora:
        for file, address in zip(corpus.downloads, corpus.address, strict=False):
            assert said.setdefault(file, address) == address
    found = [one for corpus in corpora for one in zip(corpus.address, corpus.md5, strict=False)]
    assert len(found) > 50 and all(published[address] == md5 for address, md5 in found)


def test_codes_go_both_ways():
    assert len(MBART) == 52 and load_recipe("ml50").data_pair("en-de") == "en_XX-de_DE"
    for code in MBART:
        plain = plain_code(code)
        assert mbart_code(plain) == mbart_code(code) == code
        assert plain_code(plain) == plain
    assert plain_code("zh_CN") == "zh"
    assert plain_code("pt_BR") == "pt_BR"
    assert mbart_code("cy") is None


def test_both_spellings_of_codes_give_the_same_recipe(load):
    plain = {**OWN, "directions": ["en-de"], "tiers": {"high": ["en-de"], "low": ["de"]}}
    mbart = yaml.safe_load(yaml.safe_dump(plain).replace("en-de", "en_XX-de_DE").replace("- de\n", "- de_DE\n"))
    assert mbart != plain
    assert load(mbart) == load(plain)


def test_a_recipe_has_what_its_file_says(load, tmp_path):
    content = {**OWN, "filters": {"copies": "keep", "max_ratio": 4}, "shards": {"most": 3}, "seed": 7}
    recipe = load(content)
    assert recipe.filters.copies is Action.keep
    assert (recipe.filters.max_ratio, recipe.shards.most, recipe.seed) == (4.0, 3, 7)
    assert recipe.corpora[1].files == ["b.tsv"]
    assert recipe.trained() == recipe.pairs == ["en-de"]
    (tmp_path / "b.tsv").touch()
    files = recipe.files_of(recipe.corpora[1], tmp_path)
    assert files.paths == (tmp_path / "b.tsv",)
    assert (files.source_lang, files.target_lang, files.fields) == ("en", "de", {"source": 2, "target": 1})


def test_a_corpus_of_several_languages(load):
    several = {
        "name": "news-{target}",
        "pair": "en-xx",
        "role": "train",
        "langs": ["de", "fr_XX"],
        "files": "news.{target}-{source}.tgz!{source}-{target}/{target}.tsv",
        "address": "https://example.org/news.{target}-{source}.tgz",
        "fields": {"target": "{target}"},
    }
    german, french = load({"name": "mine", "corpora": [several]}).corpora
    assert (german.name, german.pair, french.name, french.pair) == ("news-de", "en-de", "news-fr", "en-fr")
    assert french.files == ["news.fr-en.tgz!en-fr/fr.tsv"]
    assert french.downloads == ["news.fr-en.tgz"]
    assert french.address == ["https://example.org/news.fr-en.tgz"]
    assert french.fields == {"target": "fr"}


@pytest.mark.parametrize(
    ("directions", "trained"),
    [
        ([], ["en-de", "en-fr"]),
        (["en-xx"], ["en-de", "en-fr"]),
        (["xx-en"], ["de-en", "fr-en"]),
        (["en-xx", "xx-en"], ["en-de", "en-fr", "de-en", "fr-en"]),
        (["xx-yy"], ["de-en", "en-de", "en-fr", "fr-en"]),
        (["fr_XX-en", "en-de"], ["fr-en", "en-de"]),
    ],
)
def test_directions(load, directions, trained):
    corpora = [{"name": lang, "pair": f"en-{lang}", "role": "train", "files": f"{lang}.tsv"} for lang in ("de", "fr")]
    recipe = load({"name": "mine", "directions": directions, "corpora": corpora})
    assert recipe.trained() == trained
    assert recipe.without(["fr"]).pairs == ["en-de"]


def test_directions_without_training_data(load):
    corpora = [{"name": lang, "pair": f"en-{lang}", "role": "train", "files": f"{lang}.tsv"} for lang in ("de", "fr")]
    recipe = load({"name": "mine", "directions": ["en-fr", "de-en"], "corpora": corpora})
    assert recipe.without(["de"]).trained() == ["en-fr"]
    recipe = load({"name": "mine", "directions": ["en-fr"], "corpora": corpora})
    with pytest.raises(UserError, match="directions` has en-fr alone, for which no corpus has its files"):
        recipe.without(["fr"])
    with pytest.raises(UserError, match=r"directions` has en-fr, for which no corpus is to train on \(en-de\)"):
        load({**OWN, "directions": ["en-fr"]}).trained()


def test_both_orders_are_one_pair(load):
    names = {"a": "de-en", "b": "en-fr", "c": "en-de", "d": "fr-en"}
    corpora = [{"name": name, "pair": pair, "role": "train", "files": f"{name}.tsv"} for name, pair in names.items()]
    test = {"name": "test", "pair": "en-de", "role": "test", "files": "test.tsv"}
    recipe = load({"name": "mine", "corpora": [test, *corpora]})
    assert recipe.pairs == ["en-de", "en-fr"] and recipe.trained() == ["de-en", "en-fr", "en-de", "fr-en"]
    assert [recipe.pair_of(corpus) for corpus in recipe.corpora] == ["en-de", "en-de", "en-fr", "en-de", "en-fr"]
    recipe = load({"name": "mine", "corpora": [test, corpora[0]]})
    assert recipe.pairs == recipe.trained() == ["de-en"]  # as its only corpus for training is named


def test_every_pair_is_every_pair_whose_files_are_there(tmp_path):
    """Also where the corpora say `en-xx`, as those of the recipe to copy do."""
    raw = tmp_path / "raw"
    raw.mkdir()
    for pair in ("en-ha", "en-zu", "ha-zu"):
        for lang in pair.split("-"):
            (raw / f"train.{pair}.{lang}").touch()
    text = OWN_TEXT.read_text(encoding="utf-8")
    (tmp_path / "own.yaml").write_text(text.replace("directions: [en-xx]", "directions: [xx-yy]"), encoding="utf-8")
    found = load_recipe(tmp_path / "own.yaml").found_in(raw)
    assert found.trained() == ["en-ha", "en-zu", "ha-en", "ha-zu", "zu-en", "zu-ha"]
    assert load_recipe(OWN_TEXT).found_in(raw).trained() == ["en-ha", "en-zu"]


def test_a_folder_of_files_in_either_spelling(tmp_path):
    for name in ("train.en-de.en", "train.en-de.de", "train.en_XX-fr_XX.en_XX", "train.en_XX-fr_XX.fr_XX"):
        (tmp_path / name).touch()
    for name in ("test.en-de.en", "test.en-de.de", "notes.txt", "train.en-de.fr", "tiers.json"):
        (tmp_path / name).touch()
    recipe = load_recipe("folder").found_in(tmp_path)
    assert [corpus.name for corpus in recipe.corpora] == ["train.en-de", "train.en-fr", "test.en-de"]
    assert recipe.trained() == ["en-de", "en-fr"]
    files = recipe.files_of(recipe.corpora[1], tmp_path)
    assert [path.name for path in files.paths] == ["train.en_XX-fr_XX.en_XX", "train.en_XX-fr_XX.fr_XX"]
    assert files.target_lang == "fr"


def test_a_folder_that_does_not_fit(tmp_path):
    for names, words in (
        ("", "must have files such as train"),
        ("de", "train.en-de.en` is missing: en-de needs both sides"),
        ("en de en_XX de_DE", "must have each pair in one spelling of its codes"),
    ):
        for lang in names.split():
            (tmp_path / f"train.{'en_XX-de_DE' if '_' in lang else 'en-de'}.{lang}").touch()
        with pytest.raises(UserError, match=words):
            load_recipe("folder").found_in(tmp_path)


def test_a_missing_file_says_where_it_is_from(tmp_path):
    recipe = load_recipe("wmt15")
    corpus = next(corpus for corpus in recipe.corpora if corpus.name == "newstest2019-de")
    with pytest.raises(UserError, match=r"dev.tgz` of the corpus newstest2019-de is missing: `mtmoe download` fetches"):
        recipe.files_of(corpus, tmp_path)
    corpus = next(corpus for corpus in recipe.corpora if corpus.name == "czeng-cs")
    with pytest.raises(UserError, match=r"the training data of CzEng 2\.0 from https://"):
        recipe.files_of(corpus, tmp_path)
    count = len(recipe.corpora)
    assert len(recipe.missing(tmp_path)) == count
    every = f"; files of {count} of {count} corpora are missing in all, and `--skip-missing` leaves these corpora out"
    with pytest.raises(UserError, match=every):
        recipe.files_of(corpus, tmp_path)
    with pytest.raises(UserError, match="must have a corpus for training whose files are there, but has none"):
        recipe.without([corpus.name for corpus in recipe.corpora])


MISTAKES = [
    ("corpra", 1, "a name in .*mine.yaml` must be one of name, languages, .* but is 'corpra'"),
    ("name", None, "must be a recipe with `name`"),
    ("name", "a/b", "name` must be letters, digits"),
    ("corpora", [], "corpora` must be a list of corpora"),
    ("corpora.0", 3, "corpora: number 1` must be"),
    ("corpora.0.name", None, "corpora: number 1` must have `name`, but has not"),
    ("corpora.0.name", "a b", "corpora: a b: name` must be letters"),
    ("corpora.0.name", "b", "corpora: b: name` must be different from all others"),
    ("corpora.0.rôle", "train", "a name in .*corpora: a` must be one of name, pair, role"),
    ("corpora.0.pair", None, "corpora: a` must have `pair`, but has not"),
    ("corpora.0.pair", "german", "corpora: a: pair` must be two different codes of languages, such as en-de"),
    ("corpora.0.pair", "en-en", "corpora: a: pair` must be two different codes"),
    ("corpora.0.pair", "en-en_XX", "corpora: a: pair` must be two different codes"),
    ("corpora.0", {**OPEN, "langs": ["en", "de"]}, "corpora: a: langs` must be other languages .* xx-de .* 'de'"),
    ("corpora.0", {**OPEN, "langs": ["de_DE"]}, "corpora: a: langs` must be other languages .* xx-de .* 'de_DE'"),
    ("corpora.0.role", "dev", "corpora: a: role` is wrong: Invalid value 'dev'"),
    ("corpora.0.role", "test", "corpora` must be among others some with `role: train`"),
    ("corpora.0.files", ["a", "b", "c"], "corpora: a: files` must be one file with both sides"),
    ("corpora.0.files", ["/etc/passwd"], "corpora: a: files` must be paths below RAW"),
    ("corpora.0.files", ["a.tgz!../b"], "corpora: a: files` must be paths below RAW"),
    ("corpora.0.files", ["a.{target}"], "corpora: a: pair` must be one with `xx` where other fields have"),
    ("corpora.0.langs", ["fr"], "corpora: a: pair` must be one with `xx` in the place of the languages of `langs`"),
    ("corpora.0.langs", [False], "corpora: a: langs` must be a list of texts"),
    ("corpora.0.fields", {"source": [1]}, "corpora: a: fields: source` must be a text or a number"),
    ("corpora.0.address", ["https://a.org/x"], "corpora: a: address` must be one for each of a.en, a.de"),
    ("corpora.1.address", "ftp://a.org/x", "corpora: b: address` must be one of the web"),
    ("corpora.1.address", "https://me:secret@a.org/x", "corpora: b: address` must be without a name or password"),
    ("corpora.1.sha256", "abc", "corpora: b: sha256` must be 64 digits from 0 to f"),
    ("corpora.1.md5", "A" * 32, "corpora: b: md5` must be 32 digits from 0 to f"),
    ("corpora.1.bytes", 0, "corpora: b: bytes` must be above 0"),
    ("corpora.1.bytes", "many", "corpora: b: bytes.*` is wrong: Value 'many'"),
    ("languages", "iso", "languages` must be one of plain, mbart"),
    ("directions", ["en"], "directions` must be two different codes"),
    ("directions", 3, "directions` must be a list of texts"),
    ("held_out.valid", 0, "held_out: valid` must be at least 1"),
    ("held_out.dev", 5, "a name in .*held_out` must be one of valid, test"),
    ("filters.max_ratio", 1.0, "filters: max_ratio` must be above 1"),
    ("filters.max_ratio", "wide", "filters: max_ratio` is wrong: Value 'wide'"),
    ("filters.max_characters", 0, "filters: max_characters` must be at least 1"),
    ("filters.copies", "remove", "filters: copies` is wrong: Invalid value 'remove'"),
    ("filters.min_confidence", 2, "filters: min_confidence` must be from 0 to 1"),
    ("vocabulary.size", 0, "vocabulary: size` must be from 1 to 1,000,000"),
    ("vocabulary.size", 10**9, "vocabulary: size` must be from 1 to 1,000,000, but is 1000000000 instead"),
    ("vocabulary.temperature", 0, "vocabulary: temperature` must be above 0"),
    ("vocabulary.character_coverage", 2, "vocabulary: character_coverage` must be from 0.98 to 1"),
    ("vocabulary.dictionary", "dict.txt", "vocabulary: dictionary` must be absent without a `model`"),
    ("shards.pairs", 0, "shards: pairs` must be at least 1"),
    ("shards.most", 0, "shards: most` must be at least 1"),
    ("tiers", {"tiny": ["de"]}, "a name in .*tiers` must be one of high, mid, low"),
    ("tiers", {"high": ["de"], "low": ["de_DE"]}, "tiers` must be languages or pairs, each in one tier"),
    ("seed", -1, "seed` must be a whole number"),
    ("seed", 1.5, "seed` must be a whole number"),
]


def test_each_mistake_has_its_sentence(load):
    for path, value, words in MISTAKES:
        with pytest.raises(UserError) as error:
            load(changed(path, value))
        sentence = str(error.value)
        assert re.search(words, sentence), sentence
        assert "mine.yaml" in sentence and sentence.endswith(".") and "secret" not in sentence


def test_mistakes_of_several_fields(load):
    with pytest.raises(UserError, match="corpora: a: pair` must be of languages that mBART has"):
        load({**changed("corpora.0.pair", "en-cy"), "languages": "mbart"})
    content = changed("corpora.1.files", "x.zip!b.tsv")
    content["corpora"][1]["address"] = "https://a.org/x.zip"
    content["corpora"].append({**content["corpora"][1], "name": "c", "address": "https://a.org/other.zip"})
    with pytest.raises(UserError, match="corpora: c: address` must be what b has for x"):
        load(content)
    with pytest.raises(UserError, match="`--recipe` must be one of wmt15, ml50, catalogs, folder, or a file"):
        load_recipe("wmt99")


@pytest.mark.parametrize("text", ["${oc.env:HOME}", "${", "???"])
def test_texts_mean_what_they_say(load, text):
    """OmegaConf would fill in what the machine knows, and take `???` for a value that is missing."""
    content = changed("corpora.0.address", [f"https://example.org/{part}{text}" for part in "ab"])
    about = {"files": [text, f"{text}.b"], "format": text, "fields": {"source": text}, "licence": f"\\{text}"}
    content["corpora"][0].update(about)
    corpus = load({**content, "vocabulary": {"model": text}}).corpora[0]
    assert {name: getattr(corpus, name) for name in about} == about
    assert corpus.address == [f"https://example.org/{part}{text}" for part in "ab"]
    with pytest.raises(UserError, match=rf"corpora: a: role` is wrong: Invalid value '{re.escape(text)}'"):
        load(changed("corpora.0.role", text))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("name: [", "must be a recipe in YAML, but cannot be read"),
        ("- a\n- b\n", "must be a recipe: names, and what they stand for, but is 'list'"),
        ("name: a\nname: b\ncorpora: []\n", "line 1 begins what has `name` twice"),
        ("name: !!python/object/apply:os.system ['true']\n", "could not determine a constructor"),
        ("name: 2026-13-45\n", "must be a recipe with `corpora`"),
        ("corpora:\n- &c {name: a,\n   fields: {source: *c}}\n", r"line 3 has `\*c` within what that stands for"),
        ("name: &n [[*n]]\n", r"line 1 has `\*n` within"),
    ],
)
def test_what_is_no_recipe(load, text, words):
    with pytest.raises(UserError, match=words):
        load(text)


def test_the_example_of_ones_own_says_what_the_defaults_are(tmp_path):
    """Its comments explain every field, and what it leaves to defaults is what they are."""
    own, folder = load_recipe(OWN_TEXT), load_recipe("folder")
    assert (own.filters, own.shards, own.seed) == (folder.filters, folder.shards, folder.seed)
    for split in ("train", "valid", "test"):
        for lang in ("en", "de"):
            (tmp_path / f"{split}.en-de.{lang}").touch()
    assert [corpus.name for corpus in own.found_in(tmp_path).corpora] == ["train.en-de", "valid.en-de", "test.en-de"]
    text, page = OWN_TEXT.read_text(), (OWN_TEXT.parents[3] / "docs" / "recipes.md").read_text(encoding="utf-8")
    for part in (Recipe, Corpus, Filters, HeldOut, Shards, Vocabulary):
        for name in {field.name for field in fields(part)} - {"path", "known_languages"}:
            assert name in ("md5", "bytes", "format") or f"{name}:" in text, name
            assert f"`{name}`" in page, f"{name} in docs/recipes.md"
    (tmp_path / "page.yaml").write_text(page.split("```")[1].removeprefix("yaml"), encoding="utf-8")
    assert [corpus.name for corpus in load_recipe(tmp_path / "page.yaml").corpora] == ["shop-de", "test-{target}"]


def test_the_commented_lines_of_the_example_are_right(load):
    option = re.compile(r"# ((?:- )?[a-z_0-9]+:|  [a-z_0-9]+:)")
    recipe = load("\n".join(option.sub(r"\1", line) for line in OWN_TEXT.read_text().splitlines()))
    assert {"shop-de", "manuals-cs"} <= {corpus.name for corpus in recipe.corpora}
    assert recipe.vocabulary.model == "sentence.bpe.model"
    assert recipe.tiers == {"high": ["de", "fr"], "low": ["cs"]}
