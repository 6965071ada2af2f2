"""Back-translated corpora and weights: what is tagged, what is there how often, and what is refused."""

import json
from collections import Counter
from pathlib import Path

import pytest
from fairseq.data import Dictionary, data_utils

from fairseq_mtmoe.data.corpora.recipes.recipe import load_recipe
from fairseq_mtmoe.data.translation.recorded_sizes import synthetic_shares
from fairseq_mtmoe.errors import UserError
from tests.helpers.raw_corpora import change, entries, prepare_small, sentences, text_of, write_corpus

SIZE = {"vocabulary": {"size": 60}, "shards": {"pairs": 1000}}
TAG = "<BT>"


def add_synthetic(raw: Path, pair: str = "en-de", **more):
    """30 back-translations, of which one has a test sentence as its target, and one is that of another."""
    codes = pair.split("-")
    sides = {"en": sentences("made", 30), "de": sentences("mono", 30, "de")}
    target = sides[codes[1]]
    target[5], target[7] = sentences("test de", 8, "de")[3] if codes[1] == "de" else sentences("test", 8)[3], target[6]
    sides[codes[0]][7] = sides[codes[0]][6]
    files = write_corpus(raw, f"bt-{pair}", *(sides[code] for code in codes), pair)
    made = {"name": "bt", "pair": pair, "role": "train", "files": files, "kind": "back-translated", **more}
    change(raw / "recipe.yaml", corpora=[*entries(raw), made], **SIZE)


def first_symbols(data, name):
    dictionary = Dictionary.load(str(data / f"dict.{name.split('.')[-1]}.txt"))
    return Counter(dictionary[int(one[0])] for one in data_utils.load_indexed_dataset(str(data / name), dictionary))


def test_sources_of_back_translations_begin_with_one_symbol_and_nothing_else_does(raw, tmp_path):
    add_synthetic(raw, weight=2)
    report, data = prepare_small(raw, tmp_path / "data"), tmp_path / "data"
    assert report["corpora"]["bt"]["kept"] == 28 and report["corpora"]["bt"]["dropped"] == {
        "held_out": 1, "duplicate": 1
    }  # fmt: skip
    assert first_symbols(data, "train.en-de.en")[TAG] == 2 * 28
    others = [f"{split}.en-{lang}.{side}" for split in ("train", "valid", "test") for lang in ("de", "et")
              for side in ("en", lang)]  # fmt: skip
    assert {name for name in others if first_symbols(data, name)[TAG]} == {"train.en-de.en"}
    kept = {line.removeprefix(TAG).strip() for line in text_of(data, "train.en-de.en")}
    assert set(sentences("made", 30)[:5]) < kept and not set(sentences("made", 30)) & set(
        text_of(data, "valid.en-de.en")
    )
    shares = synthetic_shares(str(data))
    assert shares == {"en-de": 56 / report["pairs"]["en-de"]["train"]}
    assert (
        f"| {'back-translated'} " in (data / "report.md").read_text()
        and f"{shares['en-de']:.2%}" in (data / "report.md").read_text()
    )


def test_the_tag_is_on_the_side_of_the_corpus_source(raw, tmp_path):
    add_synthetic(raw, "de-en")
    change(raw / "recipe.yaml", directions=["de-en"])
    prepare_small(raw, tmp_path / "data")
    tagged = [first_symbols(tmp_path / "data", f"train.en-de.{lang}")[TAG] for lang in ("en", "de")]
    assert tagged == [0, 28] and synthetic_shares(str(tmp_path / "data")).keys() == {"de-en"}


def test_weights_repeat_a_corpus_and_a_change_of_kind_is_noticed(raw, tmp_path):
    add_synthetic(raw)
    plain = prepare_small(raw, tmp_path / "data")
    corpora = entries(raw)
    corpora[1]["weight"] = 3
    del corpora[-1]["kind"]
    change(raw / "recipe.yaml", corpora=corpora)
    with pytest.raises(UserError, match="overwrite"):
        prepare_small(raw, tmp_path / "data")
    report = prepare_small(raw, tmp_path / "data", overwrite=True)
    name = corpora[1]["name"]
    assert report["corpora"][name]["weight"] == 3 and TAG not in (tmp_path / "data" / "dict.en.txt").read_text()
    copies = Counter(text_of(tmp_path / "data", "train.en-de.en"))
    assert sorted(set(copies.values())) == [1, 3]
    assert len([1 for count in copies.values() if count == 3]) == report["corpora"][name]["kept"]
    more = report["pairs"]["en-de"]["train"] - plain["pairs"]["en-de"]["train"]
    assert more == 2 * report["corpora"][name]["kept"]
    sizes = json.loads((tmp_path / "data" / "sizes.json").read_text())
    assert sizes["train"]["en-de"] == [sum(copies.values())] and "back-translated" not in sizes


def test_a_missing_translation_is_told_with_the_command_that_makes_it(raw, tmp_path):
    add_synthetic(raw)
    (raw / "bt-en-de.en").unlink()
    command = f"mtmoe translate MODEL --from de --to en --input {raw / 'bt-en-de.de'} --out {raw / 'bt-en-de.en'}"
    with pytest.raises(UserError) as error:
        prepare_small(raw, tmp_path / "data")
    assert command in str(error.value)
    corpora = entries(raw)
    corpora[-1] |= {"pair": "en-xx", "files": ["bt-{source}-{target}.{source}", "bt-{source}-{target}.{target}"]}
    change(raw / "recipe.yaml", corpora=corpora)
    with pytest.raises(UserError) as error:  # of a language that is found by its text
        prepare_small(raw, tmp_path / "data")
    assert command in str(error.value)


def test_back_translations_are_no_targets_and_need_their_symbol(raw, tmp_path):
    add_synthetic(raw)
    for directions in (["en-xx", "xx-en"], ["de-en"]):
        change(raw / "recipe.yaml", directions=directions)
        with pytest.raises(UserError, match="directions` must be without de-en for the corpus bt"):
            prepare_small(raw, tmp_path / "data")
    (raw / "dict.txt").write_text("".join(f"{symbol} 1\n" for symbol in "abc"))
    change(raw / "recipe.yaml", directions=["en-xx"], vocabulary={"model": "spm.model", "dictionary": "dict.txt"})
    with pytest.raises(UserError, match="given vocabulary must have <BT>"):
        prepare_small(raw, tmp_path / "data")
    change(raw / "recipe.yaml", vocabulary={"model": "spm.model"})
    prepare_small(raw, tmp_path / "data")  # a dictionary that is made of the model's pieces gets it
    (raw / "dict.txt").write_bytes((tmp_path / "data" / "dict.en.txt").read_bytes())
    change(raw / "recipe.yaml", vocabulary={"model": "spm.model", "dictionary": "dict.txt"})
    prepare_small(raw, tmp_path / "given")
    assert first_symbols(tmp_path / "given", "train.en-de.en")[TAG] == 28
    with pytest.raises(UserError, match="bt: kind` must be absent unless `role` is train"):
        corpora = entries(raw)
        change(raw / "recipe.yaml", corpora=[*corpora[:-1], {**corpora[-1], "role": "valid"}])
        load_recipe(raw / "recipe.yaml")


def test_held_out_pairs_are_drawn_of_what_people_wrote(raw, tmp_path):
    add_synthetic(raw)
    corpora = [one for one in entries(raw) if one["pair"] == "en-de" and (one["role"] == "test" or one["name"] == "bt")]
    change(raw / "recipe.yaml", corpora=corpora, directions=["en-de"])
    with pytest.raises(UserError, match=r"held_out` must leave en-de .* takes 10 of 0"):
        prepare_small(raw, tmp_path / "data")
