"""What a run does again after a change: only what depends on it, and which blocks' text is read for that."""

import shutil
from collections import Counter

import pytest
import yaml

from fairseq_mtmoe.data.corpora.engine import reading, store
from fairseq_mtmoe.data.corpora.engine.store import Saved
from fairseq_mtmoe.errors import UserError
from tests.helpers.raw_corpora import Counting, change, digests, prepare_small, sentences, write_corpus, write_raw


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Raw corpora, and the data directory that is made of them, with its work folder."""
    folder = tmp_path_factory.mktemp("corpora")
    write_raw(folder / "raw")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "BLOCK", 20)
        prepare_small(folder / "raw", folder / "data")
    return folder


@pytest.fixture
def folder(made, tmp_path, monkeypatch):
    """A copy of it."""
    monkeypatch.setattr(reading, "BLOCK", 20)
    for name in ("raw", "data", ".data.work"):
        shutil.copytree(made / name, tmp_path / name)
    return tmp_path


@pytest.fixture
def texts_read(monkeypatch):
    """How often all text of a side of each cleaned block is read."""
    found = Counter()
    lines = Saved.lines

    def counted(saved, name):
        if saved._path.parent.name.startswith("clean-"):
            found[saved._path, name] += 1
        return lines(saved, name)

    monkeypatch.setattr(Saved, "lines", counted)
    return found


def corpora_of(raw):
    return yaml.safe_load((raw / "recipe.yaml").read_text(encoding="utf-8"))["corpora"]


def again(folder):
    """The jobs that are done when it is prepared again; that makes the same bytes as anew."""
    workers = Counting()
    prepare_small(folder / "raw", folder / "data", workers, overwrite=True)
    prepare_small(folder / "raw", folder / "anew")
    assert digests(folder / "data") == digests(folder / "anew")
    return {name: count for name, count in workers.done.items() if name != "write_side"}


def test_a_pair_without_evaluation_data_is_read_once(folder, texts_read):
    workers = Counting()
    prepare_small(folder / "raw", folder / "once", workers)
    assert workers.done["_draw"] == 2  # both pairs lack validation data
    both_sides_of = Counter({1: workers.done["clean_part"] - 2, 2: 2})  # of the two test sets the text is written, too
    assert Counter(texts_read.values()) == Counter({times: 2 * blocks for times, blocks in both_sides_of.items()})


def test_a_test_set_that_no_training_text_is_in_redoes_itself_alone(folder, texts_read):
    path = folder / "raw" / "test-de.de"
    lines = path.read_text(encoding="utf-8").splitlines()
    path.write_text("".join(f"{line}\n" for line in [*lines[:-1], "de mumumu."]), encoding="utf-8")
    workers = Counting()
    prepare_small(folder / "raw", folder / "data", workers, overwrite=True)
    assert sorted(texts_read.values()) == [1, 1, 2, 2]  # both test sets are written, one is encoded
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


@pytest.mark.parametrize(
    ("filters", "cleaned"), [({"near_duplicates": "keep"}, False), ({"max_characters": 999}, True)]
)
def test_a_filter_redoes_what_asks_it(filters, cleaned, folder):
    change(folder / "raw" / "recipe.yaml", filters=filters)
    done = again(folder)
    assert (done.get("clean_part", 0) > 0) == cleaned
    assert cleaned or done["_compare"] == 2


@pytest.mark.parametrize(
    ("settings", "encoded"),
    [({"language_tokens": "mbart"}, False), ({"temperature": 1.0}, True)],
)
def test_a_vocabulary_is_trained_again_for_what_decides_about_it(settings, encoded, folder):
    vocabulary = {"size": 60, "character_coverage": 1.0, "temperature": 5.0}
    change(folder / "raw" / "recipe.yaml", vocabulary=vocabulary)
    prepare_small(folder / "raw", folder / "data", overwrite=True)
    models = list((folder / ".data.work").glob("vocabulary-*/spm.model"))
    change(folder / "raw" / "recipe.yaml", vocabulary={**vocabulary, **settings})
    workers = Counting()
    prepare_small(folder / "raw", folder / "data", workers, overwrite=True)
    assert set(workers.done) == ({"gather_block", "encode_block", "write_side"} if encoded else {"write_side"})
    assert (list((folder / ".data.work").glob("vocabulary-*/spm.model")) != models) == encoded


def test_another_version_keeps_the_data_and_makes_blocks_anew(folder, monkeypatch):
    before, old = digests(folder / "data"), Counting()
    prepare_small(folder / "raw", folder / "old", old)
    monkeypatch.setattr(store, "FORMAT", store.FORMAT + 1)
    workers = Counting()
    assert prepare_small(folder / "raw", folder / "data", workers) is None and not workers.done
    shutil.rmtree(folder / "data")
    prepare_small(folder / "raw", folder / "data", workers)
    assert workers.done == old.done and digests(folder / "data") == before


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
    with pytest.raises(UserError, match=r"corpus train-de-1"):
        prepare_small(folder / "raw", folder / "data")


def test_a_pair_of_which_nothing_is_left_ends_the_run_at_once(folder):
    texts = sentences("same", 45)
    files = write_corpus(folder / "raw", "copies", texts, [*texts[:40], *["Это предложение"] * 5], "en-fi")
    copies = {"name": "copies", "pair": "en-fi", "role": "train", "files": files}
    change(folder / "raw" / "recipe.yaml", corpora=[copies, *corpora_of(folder / "raw")])
    workers = Counting()
    sentence = r"`en-fi` must have a pair .* leaves none of copies \(40 by copy, 5 by wrong_script\)"
    with pytest.raises(UserError, match=sentence):
        prepare_small(folder / "raw", folder / "empty", workers)
    assert workers.done["clean_part"] == 2 + 3  # test sets, and `copies`
    assert not (folder / "empty").exists()
    with pytest.raises(UserError, match=sentence):  # nor is anything read, now that it is known
        prepare_small(folder / "raw", folder / "empty", workers)
