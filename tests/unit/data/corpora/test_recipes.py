"""Recipes: the shipped ones, a user's own, and a sentence for each mistake."""

import re
from dataclasses import fields
from pathlib import Path

import pytest
import yaml

from fairseq_mtmoe.data.corpora.recipes.recipe import SHIPPED, Recipe, load_recipe
from fairseq_mtmoe.data.corpora.recipes.schema import (
    MBART,
    Action,
    Corpus,
    Filters,
    HeldOut,
    Role,
    Shards,
    Vocabulary,
    mbart_code,
    plain_code,
)
from fairseq_mtmoe.errors import UserError
from tests.helpers.refused import refused

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
    with pytest.raises(UserError, match="directions` has en-fr alone"):
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
    for name, origin in (("newstest2019-de", "`mtmoe download` fetches"), ("czeng-cs", r"the training .* CzEng 2\.0")):
        corpus = next(corpus for corpus in recipe.corpora if corpus.name == name)
        with pytest.raises(UserError, match=rf"of the corpus {name} is missing: {origin}.* `--skip-missing`"):
            recipe.files_of(corpus, tmp_path)
    assert len(recipe.missing(tmp_path)) == len(recipe.corpora)
    with refused("wmt15.yaml"):
        recipe.without([corpus.name for corpus in recipe.corpora])


MISTAKES = {  # by the name in the sentence, what breaks its rule
    "mine.yaml": [("name", None)],
    "name": [("name", "a/b")],
    "corpora": [("corpora", []), ("corpora.0.role", "test")],
    "corpora: number 1": [("corpora.0", 3), ("corpora.0.name", None)],
    "corpora: b: name": [("corpora.0.name", "b")],
    "corpora: a": [("corpora.0.pair", None)],
    "corpora: a: pair": [("corpora.0.pair", "german"), ("corpora.0.pair", "en-en_XX"), ("corpora.0.langs", ["fr"])],
    "corpora: a: langs": [("corpora.0", {**OPEN, "langs": ["de_DE"]}), ("corpora.0.langs", [False])],
    "corpora: a: role": [("corpora.0.role", "dev")],
    "corpora: a: files": [("corpora.0.files", files) for files in (["a", "b", "c"], ["/etc/passwd"], ["a.tgz!../b"])],
    "corpora: a: fields: source": [("corpora.0.fields", {"source": [1]})],
    "corpora: a: address": [("corpora.0.address", ["https://a.org/x"])],
    "corpora: b: address": [("corpora.1.address", at) for at in ("ftp://a.org/x", "https://me:secret@a.org/x")],
    "corpora: b: sha256": [("corpora.1.sha256", "abc")],
    "corpora: b: bytes": [("corpora.1.bytes", 0)],
    "languages": [("languages", "iso")],
    "held_out: valid": [("held_out.valid", 0)],
    "filters: min_confidence": [("filters.min_confidence", 2)],
    "vocabulary: temperature": [("vocabulary.temperature", 0)],
    "vocabulary: character_coverage": [("vocabulary.character_coverage", 2)],
    "directions": [("directions", ["en"]), ("directions", 3)],
    "filters: max_ratio": [("filters.max_ratio", 1.0), ("filters.max_ratio", "wide")],
    "filters: copies": [("filters.copies", "remove")],
    "vocabulary: size": [("vocabulary.size", 0), ("vocabulary.size", 10**9)],
    "vocabulary: dictionary": [("vocabulary.dictionary", "dict.txt")],
    "tiers": [("tiers", {"high": ["de"], "low": ["de_DE"]})],
    "shards: pairs": [("shards.pairs", 0)],
    "shards: most": [("shards.most", 0)],
    "filters: max_characters": [("filters.max_characters", 0)],
    "corpora: b: md5": [("corpora.1.md5", "A" * 32)],
    "seed": [("seed", -1), ("seed", 1.5)],
}


def test_each_mistake_is_told_by_its_name(load):
    for name, mistakes in MISTAKES.items():
        for path, value in mistakes:
            with pytest.raises(UserError) as error:
                load(changed(path, value))
            said = error.value.names[0]
            assert said.endswith(name if name == "mine.yaml" else f"mine.yaml: {name}"), error.value
            assert "secret" not in str(error.value)
    for path in ("corpra", "corpora.0.rôle", "held_out.dev", "tiers.tiny"):  # names that nothing has
        with pytest.raises(
            UserError, match=rf"a name in .*mine.yaml.* must be one of .* but is '{path.split('.')[-1]}'"
        ):
            load(changed(path, 1))


def test_mistakes_of_several_fields(load):
    with pytest.raises(UserError, match="corpora: a: pair` must be of languages that mBART has"):
        load({**changed("corpora.0.pair", "en-cy"), "languages": "mbart"})
    content = changed("corpora.1.files", "x.zip!b.tsv")
    content["corpora"][1]["address"] = "https://a.org/x.zip"
    content["corpora"].append({**content["corpora"][1], "name": "c", "address": "https://a.org/other.zip"})
    with pytest.raises(UserError, match="corpora: c: address` must be what b has for x"):
        load(content)
    with refused("--recipe"):
        load_recipe("wmt99")


def test_texts_mean_what_they_say(load):
    """OmegaConf would fill in what the machine knows, and take `???` for a value that is missing."""
    for text in ("${oc.env:HOME}", "???"):
        content = changed("corpora.0.licence", text)
        content["corpora"][0].update(files=[text, f"{text}.b"], fields={"source": text})
        corpus = load(content).corpora[0]
        assert (corpus.licence, corpus.files, corpus.fields) == (text, [text, f"{text}.b"], {"source": text})
        with pytest.raises(UserError, match=rf"corpora: a: role` is wrong: Invalid value '{re.escape(text)}'"):
            load(changed("corpora.0.role", text))


@pytest.mark.parametrize(
    "text",
    [
        *("name: [", "- a\n- b\n", "name: a\nname: b\ncorpora: []\n", "name: 2026-13-45\n"),
        "name: !!python/object/apply:os.system ['true']\n",
        "corpora:\n- &c {name: a,\n   fields: {source: *c}}\n",
    ],
)
def test_what_is_no_recipe(load, text):
    with refused("mine.yaml"):
        load(text)


def test_the_recipe_to_copy_has_the_defaults_and_right_comments(load, tmp_path):
    own, folder = load_recipe(OWN_TEXT), load_recipe("folder")
    assert (own.filters, own.shards, own.seed) == (folder.filters, folder.shards, folder.seed)
    for name in ("train.en-de.en", "train.en-de.de"):
        (tmp_path / name).touch()
    assert [corpus.name for corpus in own.found_in(tmp_path).corpora] == ["train.en-de"]
    option = re.compile(r"# ((?:- )?[a-z_0-9]+:|  [a-z_0-9]+:)")
    recipe = load("\n".join(option.sub(r"\1", line) for line in OWN_TEXT.read_text().splitlines()))
    assert {"shop-de", "manuals-cs"} <= {corpus.name for corpus in recipe.corpora}
    assert recipe.vocabulary.model == "sentence.bpe.model"
    assert recipe.tiers == {"high": ["de", "fr"], "low": ["cs"]}


def test_the_page_names_every_field_and_its_example_loads(load):
    page = (OWN_TEXT.parents[3] / "docs" / "recipes.md").read_text(encoding="utf-8")
    names = {field.name for part in (Recipe, Corpus, Filters, HeldOut, Shards, Vocabulary) for field in fields(part)}
    assert {name for name in names - {"path", "known_languages"} if f"`{name}`" not in page} == set()
    assert [corpus.name for corpus in load(page.split("```")[1].removeprefix("yaml")).corpora] == [
        "shop-de",
        "test-{target}",
    ]


def test_ml50s_tiers_are_the_papers():
    tiers = load_recipe("ml50").tiers
    assert [len(tiers[name]) for name in ("low", "mid", "high")] == [5, 32, 12]
    assert tiers["low"] == ["az", "bn", "gu", "mn", "mr"]
