"""From raw corpora to a data directory: the same bytes however the work was done, and stages that are done once."""

import csv
import gzip
import itertools
import json
import os
import shutil
import signal
import tarfile
from dataclasses import dataclass

import pytest
from fairseq.data import Dictionary

from fairseq_mtmoe.corpora import blocks
from fairseq_mtmoe.corpora.data_dir import STAMP
from fairseq_mtmoe.corpora.engine.encoding import encode_block
from fairseq_mtmoe.corpora.engine.state import BAD_LINES
from fairseq_mtmoe.corpora.engine.work import WorkFolder
from fairseq_mtmoe.corpora.engine.workers import Workers, local_workers
from fairseq_mtmoe.translation.decode.test_sets import Speller, load_references
from tests.helpers.raw_corpora import Counting, change, digests, entries, prepare_small, sentences, text_of, write_raw
from tests.helpers.reading import written
from tests.helpers.refused import refused
from tests.integration.corpora.test_engine_workers import local_cluster


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Raw corpora, and the data directory that one go makes of them."""
    folder = tmp_path_factory.mktemp("corpora!")  # `!` is what stands before an archive's member, too
    write_raw(folder / "raw")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "BLOCK", 20)
        report = prepare_small(folder / "raw", folder / "data")
    return folder, report


@pytest.fixture
def folder(raw, tmp_path):
    """Raw corpora and their data directory, to prepare again after a change."""
    prepare_small(raw, tmp_path / "data")
    return tmp_path


def pairs_of(data, split, lang):
    """All sentence pairs of a split, of all shards."""
    name = f"{split}.en-{lang}"
    shards = sorted(path.parent for path in data.glob(f"shard*/{name}.en.idx"))
    sides = [[text_of(shard, f"{name}.{side}") for side in ("en", lang)] for shard in shards]
    return [list(zip(*both, strict=True)) for both in sides]


def test_every_pair_that_is_worth_it_is_there_once(made):
    folder, report = made
    shards = pairs_of(folder / "data", "train", "de")
    sizes = json.loads((folder / "data" / "shard0" / "sizes.json").read_text())["train"]
    assert [len(shard) for shard in shards] == sizes["en-de"] and len(shards) == 3
    raw = [
        pair
        for number, size in enumerate((90, 60))
        for pair in zip(sentences(("en-de", number), size), sentences(("de", number), size, "de"), strict=True)
    ]
    [valid] = pairs_of(folder / "data", "valid", "de")
    trained = [pair for row in itertools.zip_longest(*shards) for pair in row if pair]  # they are dealt out in turn
    assert len(valid) == 10 and set(valid) <= set(raw)
    drawn = {text for lang in ("de", "et") for pair in pairs_of(folder / "data", "valid", lang)[0] for text in pair}
    assert trained == [pair for pair in raw if not drawn.intersection(pair)]
    corpora = report["corpora"]
    dropped = {"held_out": 1, "duplicate": 2, "near_duplicate": 1}  # what is drawn is not lost
    assert corpora["train-de-0"]["read"] == 94 and corpora["train-de-0"]["dropped"] == dropped
    assert corpora["train-de-1"]["dropped"]["duplicate"] == 2  # one of the first corpus, too
    assert corpora["train-de-0"]["drawn"] + corpora["train-de-1"]["drawn"] == corpora["train-et-0"]["drawn"] == 10
    for corpus in (one for one in corpora.values() if one["role"] == "train"):
        assert corpus["read"] == corpus["kept"] + corpus["drawn"] + sum(corpus["dropped"].values())
        assert len(corpus["samples"]["held_out"]) == 1


def test_evaluation_text_is_all_there(made):
    folder, report = made
    [test] = pairs_of(folder / "data", "test", "et")
    expected = list(zip(sentences("test", 8), sentences("test et", 8, "et"), strict=True))
    raw = folder / "data" / "shard0" / "raw"
    sides = [(raw / f"test.en-et.{lang}").read_text().splitlines() for lang in ("en", "et")]
    assert test == expected == list(zip(*sides, strict=True)) and report["pairs"]["en-et"]["test"] == 8
    assert not list((folder / "data").glob("shard[1-9]/*test*"))


def test_the_manifest_says_what_every_file_holds_and_was_made_of(made):
    folder, _ = made
    manifest = json.loads((folder / "data" / "manifest.json").read_text())
    found = digests(folder / "data")
    assert manifest["files"] == {name: sha for name, sha in found.items() if name not in ("manifest.json", STAMP)}
    names = ("train-de-0.en", "train-de-0.de")
    assert manifest["raw"]["train-de-0"] == {name: digests(folder / "raw")[name] for name in names}


def test_the_same_bytes_for_any_size_of_blocks_by_several_processes(raw, made, tmp_path, monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK", 7)
    with local_workers(2) as workers:
        prepare_small(raw, tmp_path / "data", workers)
    assert digests(tmp_path / "data") == digests(made[0] / "data")


def test_the_same_bytes_on_a_cluster_that_loses_a_worker(raw, made, tmp_path):
    """In the midst of encoding."""
    killed = []
    with local_cluster(tmp_path, 2) as (local, hands):

        @dataclass(frozen=True)
        class Killing(Workers):
            def results(self, jobs):
                for result in hands.results(jobs):
                    if jobs[0].func is encode_block and not killed:
                        killed.append(local.workers[0].pid)
                        os.kill(killed[0], signal.SIGKILL)
                    yield result

        prepare_small(raw, tmp_path / "data", Killing())
    assert killed and digests(tmp_path / "data") == digests(made[0] / "data")


def test_a_finished_stage_is_not_done_again_and_an_interrupted_one_is(raw, made, tmp_path):
    cleaned, selected = {"parts_of", "clean_part"}, {"filter_corpus", "compare", "draw_pair"}
    for job, done in (
        ("clean_part", cleaned),
        ("filter_corpus", {*cleaned, "filter_corpus"}),
        ("encode_block", {*selected, "encode_block"}),
        ("write_side", {"encode_block", "write_side"}),
    ):
        workers = Counting(stop_before=job)
        with pytest.raises(KeyboardInterrupt):
            prepare_small(raw, tmp_path / "data", workers)
        assert set(workers.done) == done and not (tmp_path / "data").exists()
    workers = Counting()
    prepare_small(raw, tmp_path / "data", workers)
    assert set(workers.done) == {"write_side"} and digests(tmp_path / "data") == digests(made[0] / "data")


@pytest.mark.parametrize(
    ("settings", "redone"),
    [
        ({"shards": {"pairs": 1000}}, {"write_side"}),
        ({"vocabulary": {"size": 60}}, {"gather_block", "encode_block", "write_side"}),
        ({"seed": 7}, {"filter_corpus", "compare", "draw_pair", "encode_block", "write_side"}),
    ],
)
def test_a_change_of_the_recipe_redoes_the_first_stage_that_depends_on_it_and_the_rest(settings, redone, folder):
    change(folder / "raw" / "recipe.yaml", **settings)
    workers = Counting()
    prepare_small(folder / "raw", folder / "data", workers, overwrite=True)
    assert set(workers.done) == redone
    prepare_small(folder / "raw", folder / "anew")
    assert digests(folder / "data") == digests(folder / "anew")


def test_packed_corpora_are_unpacked_once_and_make_the_same_ids(folder):
    raw, corpora, before = folder / "raw", entries(folder / "raw"), digests(folder / "data")
    with tarfile.open(raw / "all.tgz", "w:gz") as archive:
        for corpus in corpora:
            for number, name in enumerate(corpus["files"]):
                if corpus["name"] == "train-de-0":
                    (raw / f"{name}.gz").write_bytes(gzip.compress((raw / name).read_bytes()))
                    corpus["files"][number] = f"{name}.gz"
                else:
                    archive.add(raw / name, f"v7/{name}")
                    corpus["files"][number] = f"all.tgz!*/{name}"
    change(raw / "recipe.yaml", corpora=corpora)
    workers = Counting()
    prepare_small(raw, folder / "packed", workers)
    ids = [name for name in before if name.endswith((".bin", ".idx"))]
    assert [digests(folder / "packed")[name] for name in ids] == [before[name] for name in ids]
    assert workers.done["unpack"] == 3 and not (folder / ".packed.work" / "cleaned" / "unpacked").exists()


def test_a_damaged_file_of_a_stage_is_one_sentence(folder):
    victim = min(folder.glob(".data.work/encoded/*/000000.npz"))
    victim.write_bytes(victim.read_bytes()[:300])
    shutil.rmtree(folder / "data")
    with refused(victim.name):
        prepare_small(folder / "raw", folder / "data")
    assert not (folder / "data").exists()


def test_too_little_text_and_a_second_run_at_once_are_refused(raw, tmp_path):
    with WorkFolder(tmp_path / "data").locked(), refused("data"):
        prepare_small(raw, tmp_path / "data")
    assert not (tmp_path / ".data.work").exists()
    for valid, compared in ((40, 0), (26, 2)):  # of 54 clean pairs, and 51 different ones
        change(raw / "recipe.yaml", held_out={"valid": valid, "test": 10})
        workers = Counting()
        with refused("held_out"):
            prepare_small(raw, tmp_path / "data", workers)
        assert workers.done["compare"] == compared  # told as early as it is known
    texts = sentences("same", 45)  # of which nothing is left
    written(raw, "\n".join(texts), "\n".join([*texts[:40], *["Это предложение"] * 5]))
    copies = {"name": "copies", "pair": "en-fi", "role": "train", "files": ["a", "b"]}
    change(raw / "recipe.yaml", corpora=[copies, *entries(raw)])
    with refused("en-fi"):
        prepare_small(raw, tmp_path / "data")
    assert not (tmp_path / "data").exists()


def test_evaluation_reads_every_reference_of_a_test_set(raw, tmp_path):
    texts = {"src lang='en'": ("One", "Two"), "ref lang='et' translator='A'": ("Üks", "Kaks"),
             "ref lang='et' translator='B'": ("", "Kaks!")}  # fmt: skip
    sides = []
    for side, (first, second) in texts.items():
        sides.append(f"<{side}><seg id='1'>{first}</seg><seg id='2'>{second}</seg></{side[:3]}>")
    written(raw, f"<dataset><doc id='d'>{''.join(sides)}</doc></dataset>")
    more = {"name": "set", "pair": "en-et", "role": "test", "files": ["a"], "format": "wmt"}
    change(raw / "recipe.yaml", corpora=[*entries(raw), more], shards={"pairs": 1000})
    prepare_small(raw, tmp_path / "data")
    spell = Speller(Dictionary.load(str(tmp_path / "data" / "dict.et.txt")), "sentencepiece")
    found = load_references(str(tmp_path / "data"), "test", "en-et", spell, "text")
    assert found.lines[8:] == ["Üks", "Kaks"] and found.more == ([*[""] * 9, "Kaks!"],)


def test_an_empty_corpus_for_evaluation_is_as_none_and_lines_without_text_are_kept(raw, tmp_path):
    """A split without a corpus is drawn from training text."""
    corpora = [corpus for corpus in entries(raw) if corpus["name"] != "test-de"]
    written(raw, "", "")
    corpora.append({"name": "test-de", "pair": "en-de", "role": "test", "files": ["a", "b"]})
    change(raw / "recipe.yaml", corpora=corpora, shards={"pairs": 1000})
    lines = (raw / "test-et.en").read_text().splitlines()
    (raw / "test-et.en").write_text("\n".join(["", *lines[1:3], "", *lines[4:]]) + "\n")
    assert prepare_small(raw, tmp_path / "data")["pairs"]["en-de"]["test"] == 10
    assert "test-de (en-de) has no readable" in (tmp_path / "data" / "report.md").read_text(encoding="utf-8")
    assert (tmp_path / "data" / "raw" / "test.en-et.en").read_text() == (raw / "test-et.en").read_text()
    assert len(text_of(tmp_path / "data", "test.en-de.en")) == 10 and not (tmp_path / "data" / BAD_LINES).exists()


def test_both_orders_of_a_pair_are_one_pair(folder):
    """It has the order of its test set; the recipe trains both directions."""
    before, corpora = digests(folder / "data"), entries(folder / "raw")
    corpus = next(corpus for corpus in corpora if corpus["name"] == "train-de-0")
    corpus["pair"], corpus["files"] = "de-en", corpus["files"][::-1]
    change(folder / "raw" / "recipe.yaml", corpora=corpora, directions=["en-xx", "de-en"])
    report = prepare_small(folder / "raw", folder / "turned")
    after = digests(folder / "turned")
    same = [name for name in before if name.endswith((".bin", ".idx", "sizes.json"))]
    assert {name: after[name] for name in same} == {name: before[name] for name in same} and set(before) == set(after)
    directions = {name: pair["directions"] for name, pair in report["pairs"].items()}
    assert directions == {"en-de": ["en-de", "de-en"], "en-et": ["en-et"]}
    with refused("data"):
        prepare_small(folder / "raw", folder / "data")


def test_lines_in_are_lines_out_and_lines_listed(raw, tmp_path):
    more = [f"{en}\t{de}" for en, de in zip(sentences("more", 40), sentences("more de", 40, "de"), strict=True)]
    lines = ["en\tde", *more[:9], 'one"column', *more[9:], *["only\t"] * 10, "-\tabsent"]
    (raw / "in").mkdir()
    (raw / "in" / "more.tsv.gz").write_bytes(gzip.compress("\n".join(lines).encode(), mtime=0))
    for lang, text in (("en", b"caf\xe9 \xff\n\n"), ("et", b"kohv\nja\n")):
        with open(raw / f"train-et-0.{lang}", "ab") as file:
            file.write(text)
    corpus = {"name": "more", "pair": "en-de", "role": "train", "files": ["in/more.tsv.gz"]}
    corpus["fields"] = {"source": "en", "target": "de", "absent": "-"}
    change(raw / "recipe.yaml", corpora=[*entries(raw), corpus])
    report = prepare_small(raw, tmp_path / "data")
    listed = (tmp_path / "data" / BAD_LINES).read_text(encoding="utf-8").splitlines()
    head, *rows = csv.reader(listed, delimiter="\t")
    assert head == ["corpus", "file", "line", "reason", "excerpt"]
    assert [row[:4] for row in (rows[0], *rows[-2:])] == [
        ["more", "in/more.tsv.gz", "11", "columns"],
        ["train-et-0", "train-et-0.en", "55", "encoding"],
        ["train-et-0", "train-et-0.en", "56", "empty"],
    ]
    assert rows[0][4] == 'one"column'
    for name, number in {"train-et-0": 56, "more": len(lines) - 1}.items():
        made = report["corpora"][name]
        number -= made["bad"].pop("untranslated", 0)  # which is no fault
        bad = sum(row[0] == name for row in rows)
        assert made["read"] + bad == number and sum(made["bad"].values()) == bad
    samples = report["corpora"]["more"]["bad_samples"]
    assert {reason: len(lines) for reason, lines in samples.items()} == {"columns": 1, "empty": 5, "untranslated": 1}
    workers = Counting()
    assert prepare_small(raw, tmp_path / "data", workers) is None and not workers.done
