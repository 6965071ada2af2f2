"""Back-translated corpora and weights: what is tagged, what is there how often, and what is refused."""

import json
from collections import Counter
from pathlib import Path

import pytest
from fairseq.data import Dictionary, data_utils

from fairseq_mtmoe.core.errors import UserError
from fairseq_mtmoe.translation.data.recorded_sizes import synthetic_shares
from tests.helpers.raw_corpora import change, entries, prepare_small, sentences, text_of, write_corpus
from tests.helpers.refused import refused

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
    dropped = {"held_out": 1, "duplicate": 1}
    assert (report["corpora"]["bt"]["kept"], report["corpora"]["bt"]["dropped"]) == (28, dropped)
    assert first_symbols(data, "train.en-de.en")[TAG] == 2 * 28
    others = [f"{split}.en-{lang}.{side}" for split in ("train", "valid", "test") for lang in ("de", "et")
              for side in ("en", lang)]  # fmt: skip
    assert {name for name in others if first_symbols(data, name)[TAG]} == {"train.en-de.en"}
    assert not set(sentences("made", 30)) & set(text_of(data, "valid.en-de.en"))
    assert synthetic_shares(str(data)) == {"en-de": 56 / report["pairs"]["en-de"]["train"]}


def test_the_tag_is_on_the_side_of_the_corpus_source(raw, tmp_path):
    add_synthetic(raw, "de-en")
    change(raw / "recipe.yaml", directions=["de-en"])
    prepare_small(raw, tmp_path / "data")
    tagged = [first_symbols(tmp_path / "data", f"train.en-de.{lang}")[TAG] for lang in ("en", "de")]
    assert tagged == [0, 28] and synthetic_shares(str(tmp_path / "data")).keys() == {"de-en"}


def test_weights_repeat_a_corpus_and_changes_of_weight_and_kind_are_noticed(raw, tmp_path):
    add_synthetic(raw)
    prepare_small(raw, tmp_path / "data")
    corpora = entries(raw)
    weighted, parallel = {**corpora[1], "weight": 3}, {**corpora[-1], "kind": "parallel"}
    for changed in ([*corpora[:-1], parallel], [corpora[0], weighted, *corpora[2:]]):
        change(raw / "recipe.yaml", corpora=changed)
        with refused("data"):
            prepare_small(raw, tmp_path / "data")
    change(raw / "recipe.yaml", corpora=[corpora[0], weighted, *corpora[2:-1], parallel])
    kept = prepare_small(raw, tmp_path / "data", overwrite=True)["corpora"][corpora[1]["name"]]["kept"]
    assert TAG not in (tmp_path / "data" / "dict.en.txt").read_text()
    copies = Counter(text_of(tmp_path / "data", "train.en-de.en"))
    assert Counter(copies.values()) == {3: kept, 1: len(copies) - kept}
    sizes = json.loads((tmp_path / "data" / "sizes.json").read_text())
    assert sizes["train"]["en-de"] == [sum(copies.values())] and "back-translated" not in sizes


def test_a_missing_translation_is_told_with_the_command_that_makes_it(raw, tmp_path):
    add_synthetic(raw)
    (raw / "bt-en-de.en").unlink()
    command = f"mtmoe translate MODEL --from de --to en --input {raw / 'bt-en-de.de'} --out {raw / 'bt-en-de.en'}"
    corpora = entries(raw)
    open_corpus = {"pair": "en-xx", "files": ["bt-{source}-{target}.{source}", "bt-{source}-{target}.{target}"]}
    for corpus in (corpora[-1], {**corpora[-1], **open_corpus}):
        change(raw / "recipe.yaml", corpora=[*corpora[:-1], corpus])
        with pytest.raises(UserError) as error:
            prepare_small(raw, tmp_path / "data")
        assert command in str(error.value)


def test_back_translations_are_neither_targets_nor_held_out_and_need_their_symbol(raw, tmp_path):
    add_synthetic(raw)
    corpora = entries(raw)
    few = [one for one in corpora if one["pair"] == "en-de" and (one["role"] == "test" or one["name"] == "bt")]
    change(raw / "recipe.yaml", corpora=few, directions=["en-de"])
    with refused("held_out"):
        prepare_small(raw, tmp_path / "data")
    change(raw / "recipe.yaml", corpora=corpora)
    change(raw / "recipe.yaml", directions=["en-xx", "xx-en"])
    with refused("recipe.yaml: directions"):
        prepare_small(raw, tmp_path / "data")
    (raw / "dict.txt").write_text("".join(f"{symbol} 1\n" for symbol in "abc"))
    change(raw / "recipe.yaml", directions=["en-xx"], vocabulary={"model": "spm.model", "dictionary": "dict.txt"})
    with refused("kind", first=False):
        prepare_small(raw, tmp_path / "data")
    change(raw / "recipe.yaml", vocabulary={"model": "spm.model"})
    prepare_small(raw, tmp_path / "data")  # a dictionary that is made of the model's pieces gets it
    (raw / "dict.txt").write_bytes((tmp_path / "data" / "dict.en.txt").read_bytes())
    change(raw / "recipe.yaml", vocabulary={"model": "spm.model", "dictionary": "dict.txt"})
    prepare_small(raw, tmp_path / "given")
    assert first_symbols(tmp_path / "given", "train.en-de.en")[TAG] == 28
