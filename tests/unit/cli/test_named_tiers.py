"""Tiers of a recipe or a file hold for pairs in either spelling and direction."""

import json

import pytest

from fairseq_mtmoe.cli._evaluating import NamedTiers
from fairseq_mtmoe.errors import UserError

RECIPE = """
name: mine
directions: [en-xx]
corpora: [{name: a, pair: en-de, role: train, files: [a.en, a.de]}]
"""


def test_tiers_are_of_pairs_and_languages_in_either_spelling(tmp_path):
    (tmp_path / "tiers.json").write_text(json.dumps({"high": ["de_DE"], "mid": ["ro"], "low": ["en-de"]}))
    found = NamedTiers(str(tmp_path / "tiers.json")).of(["en_XX-de_DE", "cs-de", "ro_RO-en_XX", "en-fr"])
    assert found == {"en_XX-de_DE": "low", "cs-de": "high", "ro_RO-en_XX": "mid"}


def test_a_recipe_names_them_too(tmp_path):
    recipe = tmp_path / "mine.yaml"
    recipe.write_text(f"{RECIPE}tiers: {{high: [de]}}\n")
    named = NamedTiers(str(recipe))
    assert named.of(["en-de", "en-ro"]) == {"en-de": "high"} and named.identity.startswith(f"{recipe} ")
    recipe.write_text(RECIPE)
    with pytest.raises(UserError, match=r"`--tiers` must be a recipe or a file that names tiers, but .*mine\.yaml"):
        NamedTiers(str(recipe))
    with pytest.raises(UserError):
        NamedTiers("nothing-of-this-name")
