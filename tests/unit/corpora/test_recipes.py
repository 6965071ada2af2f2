"""Recipes: the shipped ones, a user's own, and a sentence for each mistake."""

import copy
import json
import re
from dataclasses import fields
from pathlib import Path

import pycountry
import pytest
import yaml

from fairseq_mtmoe.core.errors import UserError
from fairseq_mtmoe.corpora.readers import FORMATS
from fairseq_mtmoe.corpora.recipes import SHIPPED, schema
from fairseq_mtmoe.corpora.recipes.from_yaml import load_recipe
from fairseq_mtmoe.corpora.recipes.named.entries import place_of
from fairseq_mtmoe.corpora.recipes.recipe import Recipe
from fairseq_mtmoe.corpora.recipes.schema import Role
from tests.helpers.refused import refused

OWN_TEXT = Path(__file__).parents[3] / "examples" / "translation" / "own_text" / "own_text.yaml"
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
TWO_PAIRS = [{"name": lang, "pair": f"en-{lang}", "role": "train", "files": f"{lang}.tsv"} for lang in ("de", "fr")]


@pytest.fixture
def load(tmp_path):
    """Write a recipe and load it."""

    def call(content):
        path = tmp_path / "mine.yaml"
        path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
        return load_recipe(path)

    return call


def touch(folder, split, *pairs):
    """Empty files of both sides of these pairs."""
    for pair in pairs:
        for lang in pair.split("-"):
            (folder / f"{split}.{pair}.{lang}").touch()


def changed(path, value):
    """Return `OWN` with one value changed, such as `corpora.0.role`."""
    node = content = copy.deepcopy(OWN)
    *parents, last = (int(name) if name.isdigit() else name for name in path.split("."))
    for name in parents:
        node = node[name] if isinstance(node, list) else node.setdefault(name, {})
    node[last] = value
    return content


def test_a_misspelt_field_is_answered_with_a_similar_one(load):
    with refused("mine.yaml: corpora: a: rolle") as caught:
        load(changed("corpora.0.rolle", "train"))
    assert str(caught.value).endswith("is no known name; the most similar one is role.")


@pytest.mark.parametrize("name", SHIPPED)
def test_every_shipped_recipe_loads(name):
    recipe = load_recipe(name)
    assert recipe.name == name
    for corpus in recipe.corpora:
        assert (corpus.address or corpus.by_hand) and (corpus.licence or corpus.is_open), corpus.name
        assert "{" not in "".join((*corpus.files, *corpus.address, corpus.name)) or corpus.is_open
        assert corpus.format in FORMATS
    if name == "catalogs":  # the demo's text is in the installed packages
        assert len(recipe.corpora) > 200 and recipe.missing(Path(pycountry.__file__).parents[1]) == []


@pytest.mark.parametrize(("name", "languages"), [("wmt15", WMT15), ("ml50", ML50)])
def test_the_benchmarks_have_their_languages(name, languages):
    recipe = load_recipe(name)
    pairs = {f"en-{lang}" for lang in languages.split()}
    assert len(pairs) == {"wmt15": 15, "ml50": 49}[name]
    if name == "ml50":  # the paper's tiers
        assert [len(recipe.tiers[tier]) for tier in ("low", "mid", "high")] == [5, 32, 12]
        assert recipe.tiers["low"] == ["az", "bn", "gu", "mn", "mr"]
    assert set(recipe.pairs) == set(recipe.trained()) == pairs
    assert sorted(lang for tier in recipe.tiers.values() for lang in tier) == sorted(languages.split())
    evaluated = [{corpus.pair for corpus in recipe.corpora if corpus.role is role} for role in (Role.valid, Role.test)]
    assert evaluated[0] == evaluated[1] == pairs - ({"en-af", "en-xh"} if name == "ml50" else set())


def test_files_have_one_origin_and_checksums_are_those_of_sacrebleu():
    from sacrebleu.dataset import DATASETS

    sets = [data for data in DATASETS.values() if data.md5]
    published = {place_of(one): md5 for data in sets for one, md5 in zip(data.data, data.md5, strict=True)}
    corpora = [corpus for name in SHIPPED for corpus in load_recipe(name).corpora]
    said = {}
    for corpus in corpora:
        for file, address in zip(corpus.downloads, corpus.address, strict=False):
            assert said.setdefault(file, place_of(address)) == place_of(address)
    found = [one for corpus in corpora for one in zip(corpus.address, corpus.md5, strict=False)]
    assert len(found) > 50 and all(published[place_of(address)] == md5 for address, md5 in found)


def test_directions_with_and_without_training_data(load):
    for directions, trained in (
        ([], ["en-de", "en-fr"]),
        (["xx-yy"], ["de-en", "en-de", "en-fr", "fr-en"]),
        (["fr_XX-en", "en-de"], ["fr-en", "en-de"]),
    ):
        recipe = load({"name": "mine", "directions": directions, "corpora": TWO_PAIRS})
        assert recipe.trained() == trained and recipe.without(["fr"]).pairs == ["en-de"]
    assert recipe.without(["de"]).trained() == ["fr-en"]
    recipe = load({"name": "mine", "directions": ["en-fr"], "corpora": TWO_PAIRS})
    with refused("mine.yaml: directions"):
        recipe.without(["fr"])
    with refused("mine.yaml: directions"):
        load({**OWN, "directions": ["en-fr"]}).trained()
    with refused("mine.yaml"):  # a corpus that contains itself
        load("corpora:\n- &c {name: a,\n   fields: {source: *c}}\n")


def test_every_pair_is_every_pair_whose_files_are_there(tmp_path):
    """Also where the corpora say `en-xx`, as those of the recipe to copy do."""
    touch(tmp_path, "train", "en-ha", "en-zu", "ha-zu")
    text = OWN_TEXT.read_text(encoding="utf-8")
    (tmp_path / "own.yaml").write_text(text.replace("directions: [en-xx]", "directions: [xx-yy]"), encoding="utf-8")
    found = load_recipe(tmp_path / "own.yaml").found_in(tmp_path)
    assert found.trained() == ["en-ha", "en-zu", "ha-en", "ha-zu", "zu-en", "zu-ha"]
    assert load_recipe(OWN_TEXT).found_in(tmp_path).trained() == ["en-ha", "en-zu"]


def test_a_folder_of_files_in_either_spelling(tmp_path):
    touch(tmp_path, "train", "en-de", "en_XX-fr_XX")
    touch(tmp_path, "test", "en-de")
    for name in ("notes.txt", "train.en-de.fr", "tiers.json"):
        (tmp_path / name).touch()
    recipe = load_recipe("folder").found_in(tmp_path)
    assert [corpus.name for corpus in recipe.corpora] == ["train.en-de", "train.en-fr", "test.en-de"]
    assert recipe.trained() == ["en-de", "en-fr"]
    files = recipe.files_of(recipe.corpora[1], tmp_path)
    assert [path.name for path in files.paths] == ["train.en_XX-fr_XX.en_XX", "train.en_XX-fr_XX.fr_XX"]
    assert files.target_lang == "fr"


@pytest.mark.parametrize(
    ("names", "pair"),
    [(("train.nl", "train.sw"), "nl-sw"), (("fr_et.txt",), "fr-et"), (("text.da-en.da",), "da-en"), (("a",), "en-de")],
)
def test_misnamed_files_are_answered_with_right_names_of_their_languages(tmp_path, names, pair):
    for name in names:
        (tmp_path / name).touch()
    with refused(tmp_path.name) as caught:
        load_recipe("folder").found_in(tmp_path)
    files = [f"train.{pair}.{lang}" for lang in pair.split("-")]
    assert " and ".join(files) in str(caught.value)


def test_folders_that_lack_files_are_refused(tmp_path):
    with refused("flores200"):  # which has only test sets
        load_recipe("flores200").found_in(tmp_path)
    with refused(tmp_path.name):
        load_recipe("folder").found_in(tmp_path)
    (tmp_path / "train.en-de.de").touch()
    with refused("train.en-de.en"):
        load_recipe("folder").found_in(tmp_path)
    touch(tmp_path, "train", "en-de", "en_XX-de_DE")
    with refused(tmp_path.name):  # which has the pair twice
        load_recipe("folder").found_in(tmp_path)


def test_a_missing_file_says_where_it_is_from(tmp_path):
    recipe = load_recipe("wmt15")
    origins = {
        "Statmt-newstest_ende-2019-eng-deu": "`mtmoe download` fetches",
        "czeng-cs": r"the training .* CzEng 2\.0",
    }
    for name, origin in origins.items():
        corpus = next(corpus for corpus in recipe.corpora if corpus.name == name)
        with pytest.raises(UserError, match=rf"of the corpus {name} does not exist: {origin}.* `--skip-missing`"):
            recipe.files_of(corpus, tmp_path)
    with refused("wmt15.yaml"):
        recipe.without([corpus.name for corpus in recipe.missing(tmp_path)])


SHARED = {"name": "t-{source}-{target}", "pair": "xx-yy", "role": "train", "files": ["t.{source}", "t.{target}"]}

# What breaks the rule of a field, whose name the sentence has; a list is of several mistakes.
WRONG = {
    "name": "a/b", "corpora": [[]], "languages": "iso", "directions": [["en"]], "seed": -1,
    "tiers": [{"high": ["de"], "low": ["de_DE"]}, {"high": ["sv"]}, {"mid": ["de-fr"]}], "tiers.tiny": [[]],
    "corpra": 1, "shards.pairs": 0, "held_out.valid": 0, "filters.min_confidence": 2, "filters.max_ratio": 1.0,
    "filters.copies": "remove", "filters.duplicates": "keep", "vocabulary.character_coverage": 2,
    "vocabulary.size": 10**9, "vocabulary.dictionary": "dict.txt",
    "corpora.0": [3, {"recipe": "flores"}, {"recipe": "ntrex", "langs": ["qq"]}, {**SHARED, "langs": ["de"]}],
    "corpora.0.name": ["b", ".hidden"], "corpora.0.pair": ["german", "en-en_XX"], "corpora.0.langs": [[False]],
    "corpora.0.role": ["dev", "test"], "corpora.0.fields.text": 1, "corpora.0.kind": "synthetic",
    "corpora.0.files": [["a", "b", "c"], ["/etc/passwd"], ["a.tgz!../b"]], "corpora.0.weight": 101,
    "corpora.0.address": [["https://a.org/x"]], "corpora.1.address": ["ftp://a.org/x", "https://me:secret@a.org/x"],
    "corpora.1.sha256": "abc", "corpora.1.kind": "back-translated",
}  # fmt: skip


@pytest.mark.parametrize("path", WRONG)
def test_each_mistake_is_told_by_its_name(load, path):
    *parents, name = path.split(".")
    for value in WRONG[path] if isinstance(WRONG[path], list) else [WRONG[path]]:
        with pytest.raises(UserError) as error:
            load(changed(path, value))
        sentence = str(error.value)
        assert "mine.yaml" in sentence and "secret" not in sentence
        assert name.isdigit() or name in sentence or "role" in sentence, sentence
        assert not parents or parents[0] in sentence


def test_the_recipe_to_copy_has_the_defaults_and_right_comments(load, tmp_path):
    own, folder = load_recipe(OWN_TEXT), load_recipe("folder")
    assert (own.filters, own.shards, own.seed) == (folder.filters, folder.shards, folder.seed)
    touch(tmp_path, "train", "en-de")
    assert [corpus.name for corpus in own.found_in(tmp_path).corpora] == ["train.en-de"]
    option = re.compile(r"# ((?:- )?[a-z_0-9]+:|  [a-z_0-9]+:)")
    recipe = load("\n".join(option.sub(r"\1", line) for line in OWN_TEXT.read_text().splitlines()))
    assert {"shop-de", "manuals-cs"} <= {corpus.name for corpus in recipe.corpora}
    assert recipe.vocabulary.model == "sentence.bpe.model" and recipe.tiers == {"high": ["de", "fr"], "low": ["cs"]}


def test_the_page_names_every_field_and_its_example_loads(load):
    page = (OWN_TEXT.parents[3] / "docs" / "reference" / "recipes.md").read_text(encoding="utf-8")
    parts = (Recipe, schema.Corpus, schema.Filters, schema.HeldOut, schema.Shards, schema.Vocabulary)
    names = {field.name for part in parts for field in fields(part)}
    of_commands = {"path", "known_languages", "codes", "of_sources"}
    assert {name for name in names - of_commands if f"`{name}`" not in page} == set()
    corpora = load(page.split("```yaml")[1].split("```")[0]).corpora
    assert [corpus.name for corpus in corpora] == ["shop-de", "test-{target}"]


def test_every_pair_of_text_with_the_same_sentences_in_all_languages(tmp_path):
    (tmp_path / "r.yaml").write_text(json.dumps({
        "name": "r", "directions": ["xx-yy"],
        "corpora": [{**SHARED, "langs": {"de": "deu", "sw": "swh-TZ", "zu": "zul"}},
                    {"recipe": "flores200", "langs": ["zu", "sw"]}, {"recipe": "ntrex", "langs": ["zh_Hant"]}],
    }))  # fmt: skip
    recipe = load_recipe(tmp_path / "r.yaml")
    assert [(one.name, one.pair, one.files) for one in recipe.corpora[:3]] == [
        ("t-de-sw", "de-sw", ["t.deu", "t.swh-TZ"]), ("t-de-zu", "de-zu", ["t.deu", "t.zul"]),
        ("t-sw-zu", "sw-zu", ["t.swh-TZ", "t.zul"]),
    ]  # fmt: skip
    assert len(recipe.trained()) == 6
    names = ["flores200-dev-sw", "flores200-dev-zu", "flores200-devtest-sw", "flores200-devtest-zu", "ntrex-zh_Hant"]
    assert [one.name for one in recipe.corpora[3:]] == names
    assert recipe.corpora[5].files[1] == "flores200_dataset.tar.gz!flores200_dataset/devtest/swh_Latn.devtest"
    assert recipe.corpora[7].address[1].endswith("/newstest2019-ref.zho-TW.txt")
