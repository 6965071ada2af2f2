"""`mtmoe prepare` as a user runs it: killed and run again, and its shards in the hands of stock fairseq."""

import json
import os
import re
import signal
import time

import pytest

from fairseq_mtmoe.core.errors import UserError
from fairseq_mtmoe.core.tiers import TIER_RULE
from tests.helpers.commands import run, start_command, train
from tests.helpers.invoked import invoked, mtmoe
from tests.helpers.raw_corpora import digests, prepare_small, sentences, write_corpus, write_raw
from tests.helpers.refused import refused

SLOWLY = """
import time
from fairseq_mtmoe.corpora.engine import encoding
encode = encoding.encode_lines
encoding.encode_lines = lambda *arguments: (time.sleep(0.3), encode(*arguments))[1]
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpora")
    write_raw(folder / "raw")
    prepare_small(folder / "raw", folder / "data")
    return folder


def test_killed_by_signal_9_it_goes_on_with_the_stage_to_the_same_bytes(made, tmp_path):
    raw, data = made / "raw", tmp_path / "data"
    command = ("mtmoe", "prepare", "corpora", raw, data, "--recipe", raw / "recipe.yaml", "--workers", 1)
    with start_command(*command, before=SLOWLY) as first:
        deadline = time.monotonic() + 120
        while not list(tmp_path.glob(".data.work/encoded/*/*.npz")):
            assert time.monotonic() < deadline, first.err()
            time.sleep(0.02)
        os.kill(first.pid, signal.SIGKILL)
        assert first.wait(30) == -signal.SIGKILL
    assert not data.exists()
    with start_command(*command) as second:
        assert second.wait(120) == 0, second.err()
        assert f"Wrote {data}" in second.out()
        assert "Reading and cleaning" not in second.err()
    assert digests(data) == digests(made / "data")


def test_without_what_is_missing(made, tmp_path):
    raw = tmp_path / "raw"
    write_raw(raw)
    (raw / "train-de-1.en").unlink()
    with open(raw / "train-et-0.en", "ab") as file:
        file.write(b"caf\xe9\n \n\n")
    command = ("prepare", "corpora", raw, tmp_path / "data", "--recipe", raw / "recipe.yaml", "--workers", 1)
    lines = rf"train-et-0.en` has 57 lines, and `{raw}/train-et-0.et` has 54; line N of one"
    with pytest.raises(UserError, match=lines):
        mtmoe(*command, "--skip-missing")
    assert not (tmp_path / "data").exists()
    with open(raw / "train-et-0.et", "ab") as file:
        file.write(b"kohv\nja\nei\n")
    shown = invoked(*command, "--skip-missing").stderr
    assert "Left out" in shown and "train-de-1" in shown
    assert "Unreadable lines are left out (2 empty, 1 encoding); bad_lines.tsv lists them." in shown


def test_a_folder_with_settings(made, tmp_path):
    raw = tmp_path / "raw"
    raw.mkdir()
    for lang, size in (("de", 90), ("et", 70)):
        write_corpus(raw, f"train.en-{lang}", sentences(lang, size), sentences((lang, 1), size, lang), f"en-{lang}")
    command = ("prepare", "corpora", raw, tmp_path / "data", "--workers", 1, "--recipe")
    settings = ("folder", "--vocab-size", 70, "--character-coverage", 1, "--held-out", 12)
    result = invoked(*command, *settings)
    report = json.loads((tmp_path / "data" / "report.json").read_text())
    assert [(pair["valid"], pair["test"]) for pair in report["pairs"].values()] == [(12, 12), (12, 12)]
    assert len((tmp_path / "data" / "dict.de.txt").read_text().splitlines()) == 66  # and fairseq's four
    assert report["symbols"] == 70
    assert TIER_RULE in result.stdout and "`--vocab-size`" in result.stderr
    shown = invoked(*command, "folder", *settings[3:], "--overwrite").stderr
    assert "pieces by default: two pieces for each different character and one for every 4,000" in shown
    for wrong, name in (
        ((*settings, "--held-out", 80, "--overwrite"), "--held-out"),
        ((made / "raw" / "recipe.yaml", "--vocab-size", 70), "--vocab-size"),
    ):
        with refused(name, first=False):
            mtmoe(*command, *wrong)


def test_fairseq_trains_on_the_shards_and_so_does_the_plugin(made, tmp_path):
    langs = ("--lang-dict", made / "data" / "langs.txt", "--encoder-langtok", "tgt", "--decoder-langtok")
    sampling = ("--sampling-method", "temperature", "--sampling-temperature", 1.5, "--max-epoch", 3)
    output = train(
        made / "data", tmp_path, "--task", "translation_heated", *langs, "--lang-pairs",
        made / "data" / "lang_pairs.txt", *sampling, "--disable-validation",
    ).stdout  # fmt: skip
    assert "end of epoch 3" in output
    output = run(  # which reads no file of pairs, and finds no shards
        "fairseq-train", ":".join(map(str, sorted((made / "data").glob("shard*")))), "--task",
        "translation_multi_simple_epoch", "--lang-pairs", "en-de,en-et", *langs, *sampling, "--arch",
        "transformer_iwslt_de_en", "--encoder-layers", 1, "--decoder-layers", 1, "--optimizer", "adam",
        "--max-tokens", 1000, "--no-save", "--save-dir", tmp_path / "stock", "--cpu", "--num-workers", 0,
    ).stdout  # fmt: skip
    assert re.search(r"num of shards: \{'main:en-de': 3, 'main:en-et': 1\}", output)
    assert "valid on 'valid' subset" in output and "end of epoch 3" in output
