"""Tiers: from the file, by pair or target language, or else by size."""

import json

from hypothesis import HealthCheck, given, settings

from fairseq_mtmoe.core.tiers import TIERS, load_tiers
from tests.helpers.damage import damaged, value_or_sentence
from tests.helpers.refused import refused

SIZES = {"en-de": 1000, "en-fr": 500, "en-ro": 499, "en-fi": 125, "en-gu": 124, "en-kk": 1}


def test_the_file_names_pairs_or_target_languages_and_of_others_the_size_decides(tmp_path):
    assert load_tiers(tmp_path, SIZES) == {
        "en-de": "high", "en-fr": "high", "en-ro": "mid", "en-fi": "mid", "en-gu": "low", "en-kk": "low",
    }  # fmt: skip
    (tmp_path / "tiers.json").write_text(json.dumps({"low": ["en-de"], "mid": ["fr"]}))
    tiers = load_tiers(tmp_path, SIZES)
    assert (tiers["en-de"], tiers["en-fr"], tiers["en-kk"]) == ("low", "mid", "low")
    assert load_tiers(tmp_path, {"en-de": 0, "en-ro": 0}) == {"en-de": "low"} and load_tiers(tmp_path, {}) == {}
    (tmp_path / "tiers.json").write_text('{"tiny": ["en-de"]}')
    with refused("tiers.json"):
        load_tiers(tmp_path, SIZES)


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=damaged(b'{"high": ["en-de"], "mid": ["ro"], "low": ["en-gu", "kk"]}'))
def test_a_damaged_file_is_read_or_is_a_sentence(tmp_path, content):
    (tmp_path / "tiers.json").write_bytes(content)
    tiers = value_or_sentence(lambda: load_tiers(tmp_path, SIZES))
    assert tiers is None or set(tiers.values()) <= set(TIERS)
