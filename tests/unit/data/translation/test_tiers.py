"""Tiers: from the file, by pair or target language, or else by size."""

import json

import pytest
from hypothesis import HealthCheck, given, settings

from fairseq_mtmoe.data.corpora.build import read_ranked_tiers
from fairseq_mtmoe.data.translation.tiers import TIERS, load_tiers
from fairseq_mtmoe.errors import UserError
from tests.helpers.damage import damaged, value_or_sentence

SIZES = {"en-de": 1000, "en-fr": 500, "en-ro": 499, "en-fi": 125, "en-gu": 124, "en-kk": 1}


def test_the_file_names_pairs_or_target_languages_and_of_others_the_size_decides(tmp_path):
    assert load_tiers(tmp_path, SIZES) == {
        "en-de": "high", "en-fr": "high", "en-ro": "mid", "en-fi": "mid", "en-gu": "low", "en-kk": "low",
    }  # fmt: skip
    (tmp_path / "tiers.json").write_text(json.dumps({"low": ["en-de"], "mid": ["fr"]}))
    tiers = load_tiers(tmp_path, SIZES)
    assert (tiers["en-de"], tiers["en-fr"], tiers["en-kk"]) == ("low", "mid", "low")
    assert load_tiers(tmp_path, {"en-de": 0, "en-ro": 0}) == {"en-de": "low"} and load_tiers(tmp_path, {}) == {}


def test_names_of_no_language_of_the_data_are_said(tmp_path, caplog):
    (tmp_path / "tiers.json").write_text(json.dumps({"low": ["en-de", "en-ge"], "mid": ["fr", "xx", "fi", "lt"]}))
    load_tiers(tmp_path, {"en-de": 5, "en-fr": 7}, ["fi", "lt"])
    assert caplog.messages == [
        f"{tmp_path / 'tiers.json'} names en-ge, xx, which are no language pairs or languages of the data"
    ]
    load_tiers(tmp_path, {"en-de": 5})
    assert len(caplog.messages) == 1


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "must be a JSON file"),
        ('{"high": "en-de"}', "must map high, mid and low to lists"),
        ('{"high": [null], "low": ["en-de"]}', "must map high, mid and low to lists"),
        ("[" * 100_000, "must be a JSON file, but cannot be read as one: it is nested too deeply"),
        ('{"tiny": []}', "must be one of high, mid, low, but is 'tiny' instead"),
    ],
)
def test_a_wrong_file_is_one_sentence(text, sentence, tmp_path):
    (tmp_path / "tiers.json").write_text(text)
    with pytest.raises(UserError, match=sentence):
        load_tiers(tmp_path, SIZES)


def test_what_is_no_file_is_not_passed_over(tmp_path):
    path = tmp_path / "tiers.json"
    path.symlink_to("nowhere")
    with pytest.raises(UserError, match="must be a file of tiers, but is a link that leads nowhere"):
        load_tiers(tmp_path, SIZES)
    path.unlink()
    path.mkdir()
    with pytest.raises(UserError, match="must be a file of tiers, but is a folder"):
        load_tiers(tmp_path, SIZES)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=damaged(b'{"high": ["en-de"], "mid": ["ro"], "low": ["en-gu", "kk"]}', b'{"T1-high": ["de"]}'))
def test_a_damaged_file_is_read_or_is_a_sentence(tmp_path, content):
    (tmp_path / "tiers.json").write_bytes(content)
    tiers = value_or_sentence(lambda: load_tiers(tmp_path, SIZES))
    assert tiers is None or set(tiers.values()) <= set(TIERS)
    tiers = value_or_sentence(lambda: read_ranked_tiers(tmp_path / "tiers.json"))
    assert tiers is None or set(tiers) <= set(TIERS)
