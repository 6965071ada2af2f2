"""From raw corpora to a data directory: the same bytes however the work was done, and what a change does again."""

import json
import os
import re
import shutil
import signal

import pytest
import sentencepiece
import yaml
from fairseq.data import Dictionary

from fairseq_mtmoe.data.corpora.data_dir import STAMP
from fairseq_mtmoe.data.corpora.engine import reading, store
from fairseq_mtmoe.data.corpora.engine.encoding import encode_block
from fairseq_mtmoe.data.corpora.engine.store import WorkFolder
from fairseq_mtmoe.data.corpora.engine.workers import cluster, local_workers
from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.evaluation.test_sets import Speller, load_references
from tests.helpers.raw_corpora import (
    Counting,
    change,
    digests,
    prepare_small,
    sentences,
    text_of,
    write_corpus,
    write_raw,
)
from tests.helpers.refused import refused


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Raw corpora, and the data directory that one go makes of them."""
    folder = tmp_path_factory.mktemp("corpora")
    write_raw(folder / "raw")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "BLOCK", 20)
        report = prepare_small(folder / "raw", folder / "data")
    return folder, report


@pytest.fixture
def raw(made, tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "BLOCK", 20)
    shutil.copytree(made[0] / "raw", tmp_path / "raw")
    return tmp_path / "raw"


def pairs_of(data, split, lang):
    """All sentence pairs of a split, of all shards."""
    found = []
    for shard in sorted(data.glob("shard*")):
        name = f"{split}.en-{lang}"
        if (shard / f"{name}.en.idx").exists():
            sides = (text_of(shard, f"{name}.{side}") for side in ("en", lang))
            found.append(list(zip(*sides, strict=True)))
    return found


def test_every_pair_that_is_worth_it_is_there_once(made):
    folder, report = made
    [*shards] = pairs_of(folder / "data", "train", "de")
    sizes = json.loads((folder / "data" / "shard0" / "sizes.json").read_text())["train"]
    assert [len(shard) for shard in shards] == sizes["en-de"] and len(shards) == 3
    raw = [
        pair
        for number, size in enumerate((90, 60))
        for pair in zip(sentences(("en-de", number), size), sentences(("de", number), size, "de"), strict=True)
    ]
    [valid] = pairs_of(folder / "data", "valid", "de")
    trained = sorted(pair for shard in shards for pair in shard)
    assert len(valid) == 10 and set(valid) <= set(raw)
    drawn = {text for lang in ("de", "et") for pair in pairs_of(folder / "data", "valid", lang)[0] for text in pair}
    assert trained == sorted(pair for pair in raw if not drawn.intersection(pair))
    corpora = report["corpora"]
    assert corpora["train-de-0"]["read"] == 94 and corpora["train-de-0"]["dropped"] == {
        "held_out": 1,  # what is drawn is not lost
        "duplicate": 2,
        "near_duplicate": 1,
    }
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
    assert test == expected == list(zip(*sides, strict=True))
    assert report["pairs"]["en-et"]["test"] == 8 and report["pairs"]["en-et"]["valid"] == 10
    assert not list((folder / "data").glob("shard[1-9]/*test*"))


def test_the_manifest_says_what_every_file_holds_and_was_made_of(made):
    folder, _ = made
    manifest = json.loads((folder / "data" / "manifest.json").read_text())
    found = digests(folder / "data")
    assert manifest["files"] == {name: sha for name, sha in found.items() if name not in ("manifest.json", STAMP)}
    names = ("train-de-0.en", "train-de-0.de")
    assert manifest["raw"]["train-de-0"] == {name: digests(folder / "raw")[name] for name in names}


def test_the_same_bytes_for_any_size_of_blocks_by_several_processes(raw, made, tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "BLOCK", 7)
    with local_workers(2) as workers:
        prepare_small(raw, tmp_path / "data", workers)
    assert digests(tmp_path / "data") == digests(made[0] / "data")


class LosingOne:
    """The workers of a local cluster, of which one is killed in the midst of encoding."""

    def __init__(self, hands, local):
        self.hands, self.local = hands, local
        self.killed = False

    def map_blocks(self, jobs):
        jobs = list(jobs)
        for result in self.hands.map_blocks(jobs):
            if jobs[0].func is encode_block and not self.killed:
                os.kill(self.local.workers[0].pid, signal.SIGKILL)
                self.killed = True
            yield result


@pytest.mark.slow
def test_the_same_bytes_on_a_cluster_that_loses_a_worker(raw, made, tmp_path):
    distributed = pytest.importorskip("distributed")
    settings = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None, "local_directory": str(tmp_path)}
    with distributed.LocalCluster(**settings) as local, cluster(local.scheduler_address) as hands:
        workers = LosingOne(hands, local)
        prepare_small(raw, tmp_path / "data", workers)
    assert workers.killed and digests(tmp_path / "data") == digests(made[0] / "data")


def test_stopped_after_every_job_it_goes_on_to_the_same_bytes(raw, made, tmp_path):
    once, redone = Counting(), Counting()
    prepare_small(raw, tmp_path / "once", once)
    while not redone.done["write_side"]:  # shards are written in one go
        workers = Counting(stop_after=1)
        with pytest.raises(KeyboardInterrupt):
            prepare_small(raw, tmp_path / "data", workers)
        assert not (tmp_path / "data").exists()
        redone.done += workers.done
    del once.done["write_side"], redone.done["write_side"]
    assert redone.done == once.done
    prepare_small(raw, tmp_path / "data")
    assert digests(tmp_path / "data") == digests(made[0] / "data")


def test_another_corpus_redoes_only_what_depends_on_it(raw, tmp_path):
    prepare_small(raw, tmp_path / "data")
    names = ("train-et-0.en", "train-et-0.et")
    for name, line in zip(names, ("gugu nunu mimi lolo.", "et kekeke sisi."), strict=True):
        with open(raw / name, "a") as file:
            file.write(f"{line}\n")
    workers = Counting()
    prepare_small(raw, tmp_path / "data", workers, overwrite=True)
    blocks = 3  # of 55 pairs
    assert workers.done["clean_part"] == blocks and workers.done["_compare"] == 1
    assert workers.done["_draw"] == 1
    with_all = Counting()
    prepare_small(raw, tmp_path / "anew", with_all)
    assert with_all.done["clean_part"] > 3 * blocks and with_all.done["_compare"] == 2
    assert digests(tmp_path / "data") == digests(tmp_path / "anew")


def test_what_is_there_is_kept_or_replaced_as_told(raw, tmp_path):
    data = tmp_path / "data"
    assert prepare_small(raw, data) is not None
    before = digests(data)
    workers = Counting()
    assert prepare_small(raw, data, workers) is None and not workers.done
    change(raw / "recipe.yaml", seed=7)
    with pytest.raises(
        UserError, match=r"was made with seed 1 \(now 7\), and models .* --overwrite .* again only what"
    ):
        prepare_small(raw, data)
    assert digests(data) == before
    assert prepare_small(raw, data, overwrite=True) is not None
    assert digests(data) != before


def test_a_second_run_at_once_and_a_missing_corpus_are_one_sentence_and_leave_nothing(raw, tmp_path):
    with WorkFolder(tmp_path / "data").held(), refused("data"):
        prepare_small(raw, tmp_path / "data")
    (raw / "train-et-0.en").unlink()
    with refused("train-et-0.en", "--skip-missing"):
        prepare_small(raw, tmp_path / "data")
    assert not (tmp_path / ".data.work").exists()


def test_a_damaged_block_is_one_sentence_or_made_again(raw, made, tmp_path):
    prepare_small(raw, tmp_path / "data")
    victim = sorted((tmp_path / ".data.work").glob("ids-*/000000-*.npz"))[0]
    whole = victim.read_bytes()
    for damaged in (whole[:100], whole[:300] + bytes([whole[300] ^ 255]) + whole[301:]):
        shutil.rmtree(tmp_path / "data")
        victim.write_bytes(damaged)
        if damaged == whole[:100]:  # no archive any more
            prepare_small(raw, tmp_path / "data")
            assert digests(tmp_path / "data") == digests(made[0] / "data")
    with refused(victim.name):
        prepare_small(raw, tmp_path / "data")
    assert not (tmp_path / "data").exists()


def test_too_little_text_to_hold_out_is_one_sentence(raw, tmp_path):
    for valid, compared in ((40, 0), (26, 2)):  # of 54 clean pairs, and 51 different ones
        change(raw / "recipe.yaml", held_out={"valid": valid, "test": 10})
        workers = Counting()
        with refused("held_out"):
            prepare_small(raw, tmp_path / "data", workers)
        assert workers.done["_compare"] == compared  # told as early as it is known


def test_a_recipe_without_a_size_takes_the_pieces_that_the_text_allows(raw, tmp_path):
    change(raw / "recipe.yaml", vocabulary={"size": 32000})
    with pytest.raises(UserError, match=r"recipe\.yaml: vocabulary: size` must be at most \d+ for this text") as error:
        prepare_small(raw, tmp_path / "data")
    most = int(re.search(r"at most (\d+)", str(error.value))[1])
    change(raw / "recipe.yaml", vocabulary={"temperature": 5.0})
    report = prepare_small(raw, tmp_path / "data")
    model = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "data" / "spm.model"))
    assert model.get_piece_size() == report["fewer_pieces"] == most
    assert f"Vocabulary: {most:,} pieces, as the text allows no more" in (tmp_path / "data" / "report.md").read_text()
    assert f"Vocabulary: {most:,} pieces" in (tmp_path / ".data.work" / "log.txt").read_text()
    assert prepare_small(raw, tmp_path / "data") is None


def test_data_whose_vocabulary_earlier_versions_made_without_a_size_stays(raw, tmp_path):
    change(raw / "recipe.yaml", vocabulary={"size": 32000, "model": "spm.model"})
    prepare_small(raw, tmp_path / "data")
    stamp = (tmp_path / "data" / STAMP).read_text()
    assert '"size": 32000' in stamp  # as versions up to 0.1.11 wrote it of a recipe that says nothing
    change(raw / "recipe.yaml", vocabulary={"model": "spm.model"})
    assert prepare_small(raw, tmp_path / "data") is None and (tmp_path / "data" / STAMP).read_text() == stamp


def test_evaluation_reads_every_reference_of_a_test_set(raw, tmp_path):
    source, first, second = sentences("more", 5), sentences("one", 5, "et"), sentences("two", 4, "et")

    def document(kind, texts, system):
        segments = "".join(f'<seg id="{number}">{text}</seg>' for number, text in enumerate(texts, start=1))
        return f'<{kind} setid="s" srclang="en"><doc docid="d" sysid="{system}">{segments}</doc></{kind}>'

    (raw / "set.en.sgm").write_text(document("srcset", source, ""), encoding="utf-8")
    (raw / "set.et.sgm").write_text(document("refset", first, "a") + document("refset", second, "b"), encoding="utf-8")
    corpora = corpora_of(raw)
    more = {"name": "set", "pair": "en-et", "role": "test", "files": ["set.en.sgm", "set.et.sgm"]}
    change(raw / "recipe.yaml", corpora=[*corpora, more], shards={"pairs": 1000})
    data = tmp_path / "data"
    prepare_small(raw, data)
    spell = Speller(Dictionary.load(str(data / "dict.et.txt")), "sentencepiece")
    found = load_references(str(data), "test", "en-et", spell, "text")
    assert found.lines[-5:] == first
    assert found.more == ([""] * (len(found.lines) - 5) + [*second, ""],)


def test_an_empty_corpus_for_evaluation_is_as_none(raw, tmp_path):
    """Its split is drawn from training text, and the report says so; the reader would refuse data without a pair."""
    corpora = corpora_of(raw)
    corpora = [corpus for corpus in corpora if corpus["name"] != "test-de"]
    for role in ("valid", "test"):
        files = write_corpus(raw, f"{role}-de", [], [])
        corpora.append({"name": f"{role}-de", "pair": "en-de", "role": role, "files": files})
    change(raw / "recipe.yaml", corpora=corpora)
    report = prepare_small(raw, tmp_path / "data")
    assert {split: report["pairs"]["en-de"][split] for split in ("valid", "test")} == {"valid": 10, "test": 10}
    said = (tmp_path / "data" / "report.md").read_text(encoding="utf-8")
    for role in ("valid", "test"):
        assert f"{role}-de (en-de) has no sentence pair that can be read" in said
        text = tmp_path / "data" / "shard0" / "raw" / f"{role}.en-de.de"
        assert len(text.read_text(encoding="utf-8").splitlines()) == 10


@pytest.fixture
def folder(made, tmp_path, monkeypatch):
    """A copy of all of it, to prepare again after a change."""
    monkeypatch.setattr(reading, "BLOCK", 20)
    for name in ("raw", "data", ".data.work"):
        shutil.copytree(made[0] / name, tmp_path / name)
    return tmp_path


def corpora_of(raw):
    return yaml.safe_load((raw / "recipe.yaml").read_text(encoding="utf-8"))["corpora"]


def again(folder):
    """The jobs that are done when it is prepared again; that makes the same bytes as anew."""
    workers = Counting()
    prepare_small(folder / "raw", folder / "data", workers, overwrite=True)
    prepare_small(folder / "raw", folder / "anew")
    assert digests(folder / "data") == digests(folder / "anew")
    return {name: count for name, count in workers.done.items() if name != "write_side"}


def test_a_test_set_that_no_training_text_is_in_redoes_itself_alone(folder):
    path = folder / "raw" / "test-de.de"
    lines = path.read_text(encoding="utf-8").splitlines()
    path.write_text("".join(f"{line}\n" for line in [*lines[:-1], "de mumumu."]), encoding="utf-8")
    workers = Counting()
    prepare_small(folder / "raw", folder / "data", workers, overwrite=True)
    del workers.done["write_side"]
    assert workers.done == {"clean_part": 1, "_filter": 3, "encode_block": 1}  # `_filter` reads keys


def test_a_test_set_that_takes_training_text_reads_no_raw_training_text_again(folder):
    path = folder / "raw" / "test-de.de"
    lines = path.read_text(encoding="utf-8").splitlines()
    taken = sentences(("et", 0), 50, "et")[9]
    path.write_text("".join(f"{line}\n" for line in [*lines[:-1], taken]), encoding="utf-8")
    done = again(folder)
    assert done["clean_part"] == 1 and done["_compare"] == 1  # of the pair that lost a sentence
    assert done["encode_block"] == 3  # the test set, the block with that sentence, and what is drawn of its pair
    kept, needed = (len(list(folder.glob(f".{name}.work/ids-*/*"))) for name in ("data", "anew"))
    assert kept == needed  # what that block was before is gone


@pytest.mark.parametrize(("filters", "cleaned"), [({"near_duplicates": "keep"}, 0), ({"max_characters": 999}, 1)])
def test_a_filter_redoes_what_asks_it(filters, cleaned, folder):
    change(folder / "raw" / "recipe.yaml", filters=filters)
    done = again(folder)
    assert (done.get("clean_part", 0) > 0) == cleaned and (cleaned or done["_compare"] == 2)


@pytest.mark.parametrize(("settings", "encoded"), [({"language_tokens": "mbart"}, False), ({"temperature": 1.0}, True)])
def test_a_vocabulary_is_trained_again_for_what_decides_about_it(settings, encoded, folder):
    vocabulary = {"size": 60, "character_coverage": 1.0, "temperature": 5.0}
    workers = Counting()
    for made in (vocabulary, {**vocabulary, **settings}):
        change(folder / "raw" / "recipe.yaml", vocabulary=made)
        workers.done.clear()
        prepare_small(folder / "raw", folder / "data", workers, overwrite=True)
    assert set(workers.done) == ({"gather_block", "encode_block", "write_side"} if encoded else {"write_side"})


def test_both_orders_of_a_pair_are_one_pair(folder):
    before, corpora = digests(folder / "data"), corpora_of(folder / "raw")
    corpus = next(corpus for corpus in corpora if corpus["name"] == "train-de-1")
    corpus["pair"], corpus["files"] = "de-en", corpus["files"][::-1]
    change(folder / "raw" / "recipe.yaml", corpora=corpora, directions=["en-xx"])
    report = prepare_small(folder / "raw", folder / "turned")
    after = digests(folder / "turned")
    same = [name for name in before if name.endswith((".bin", ".idx", "sizes.json", "lang_pairs.txt"))]
    assert {name: after[name] for name in same} == {name: before[name] for name in same}
    assert set(before) == set(after)
    corpus = report["corpora"]["train-de-1"]
    assert corpus["pair"] == "en-de" and corpus["dropped"]["duplicate"] == 2  # one of the first corpus, too
    with refused("data"):
        prepare_small(folder / "raw", folder / "data")


def test_a_pair_of_which_nothing_is_left_ends_the_run_at_once(folder):
    texts = sentences("same", 45)
    files = write_corpus(folder / "raw", "copies", texts, [*texts[:40], *["Это предложение"] * 5], "en-fi")
    copies = {"name": "copies", "pair": "en-fi", "role": "train", "files": files}
    change(folder / "raw" / "recipe.yaml", corpora=[copies, *corpora_of(folder / "raw")])
    workers = Counting()
    for _ in range(2):  # the second time nothing is read, now that it is known
        with pytest.raises(UserError, match=r"`en-fi` must have .* none of copies \(40 by copy, 5 by wrong_script\)"):
            prepare_small(folder / "raw", folder / "empty", workers)
        assert workers.done["clean_part"] == 2 + 3  # test sets, and `copies`
    assert not (folder / "empty").exists()


def test_another_version_keeps_the_data_and_makes_blocks_anew(folder, monkeypatch):
    before, workers = digests(folder / "data"), Counting()
    monkeypatch.setattr(store, "FORMAT", store.FORMAT + 1)
    assert prepare_small(folder / "raw", folder / "data", workers) is None and not workers.done
    shutil.rmtree(folder / "data")
    prepare_small(folder / "raw", folder / "data", workers)
    assert workers.done["clean_part"] and digests(folder / "data") == before
