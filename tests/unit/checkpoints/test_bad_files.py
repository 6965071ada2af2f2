"""Truncated and bit-flipped checkpoints: none is accepted silently, none is executed, none ends without a sentence."""

import encodings.cp437
import encodings.raw_unicode_escape  # noqa: F401 (which damaged files may ask for, and which are no attack)
import random
import sys
import threading
import zipfile

import pytest
import torch
from fairseq import checkpoint_utils

from fairseq_mtmoe.checkpoints import file_io
from fairseq_mtmoe.errors import UserError
from tests.helpers.checkpoint_files import change, verify
from tests.helpers.states import assert_same

COMMENT = 77
FLIPS = 60
EXECUTING = {"exec", "pickle.find_class", "os.system", "os.exec", "os.posix_spawn", "os.fork", "subprocess.Popen"}
WAYS_IN = file_io.load, checkpoint_utils.load_checkpoint_to_cpu, lambda path: file_io.copy(path, f"{path}.copy")
EXECUTED = []  # by Python in `outcome`: an audit hook cannot be taken away
WATCHED = threading.Event()
sys.addaudithook(lambda event, _: EXECUTED.append(event) if WATCHED.is_set() and event in EXECUTING else None)


@pytest.fixture
def state(checkpoint):
    return {**checkpoint[0], "extra_state": {"train_iterator": {"epoch": 1}, "val_loss": 2.5}}


def draws(path, seed):
    """Damaged twins of a file: a bit flipped anywhere, or in the archive's directory and what follows it; truncated."""
    data, draw = path.read_bytes(), random.Random(seed)
    with zipfile.ZipFile(path) as archive:
        starts = [0] * FLIPS + [archive.start_dir] * FLIPS
    damaged = []
    for start in starts:
        flipped = bytearray(data)
        flipped[draw.randrange(start, len(data))] ^= 1 << draw.randrange(8)
        damaged.append(bytes(flipped))
    lengths = [*range(5), *(len(data) - size for size in (1, 2, 22, 64, COMMENT, COMMENT + 2, COMMENT + 22))]
    return damaged + [data[:length] for length in (*lengths, *(draw.randrange(len(data)) for _ in range(20)))]


def outcome(way_in, path):
    WATCHED.set()
    try:
        return way_in(str(path))
    except UserError as error:
        return str(error)
    finally:
        WATCHED.clear()


def is_one_sentence(sentence, path):
    return isinstance(sentence, str) and sentence.startswith(f"`{path}` must ") and "\n" not in sentence


def write_and_load(state, path, save):
    save(state, str(path))
    for way_in in WAYS_IN:  # once, so that what loading imports is there
        way_in(str(path))
    assert_same(file_io.load(str(path)), state)
    assert verify(f"{path}.copy") == verify(path)


def test_no_damage_to_a_file_with_checksum_is_accepted(state, tmp_path):
    path, older = tmp_path / "checkpoint_last.pt", tmp_path / "checkpoint1.pt"
    write_and_load(state, path, file_io.save_anywhere)
    file_io.save({"n": 1}, str(older))
    for number, data in enumerate(draws(path, seed=1)):
        path.write_bytes(data)
        sentence = outcome(WAYS_IN[number % len(WAYS_IN)], path)
        assert is_one_sentence(sentence, path), sentence
        assert sentence.endswith(f"use an older one: the newest good one beside it is `{older}`.")
    assert not EXECUTED and set(tmp_path.iterdir()) == {path, older, tmp_path / f"{path.name}.copy"}
    assert_same(file_io.load(f"{path}.copy"), state)  # no damaged copy was made


def test_damage_to_a_file_without_checksum_is_refused_or_without_effect(state, tmp_path):
    path = tmp_path / "checkpoint_last.pt"
    write_and_load(state, path, torch.save)
    harmless = 0
    for data in draws(path, seed=2):
        path.write_bytes(data)
        loaded = outcome(file_io.load, path)
        if isinstance(loaded, str):
            assert is_one_sentence(loaded, path)
        else:
            assert_same(loaded, state)  # a header's or padding's bit
            harmless += 1
    assert 0 < harmless < FLIPS and not EXECUTED


def test_damage_from_before_archives_is_one_sentence_where_it_is_seen(state, tmp_path):
    path, draw = tmp_path / "checkpoint_last.pt", random.Random(4)
    torch.save(state, path, _use_new_zipfile_serialization=False)
    data = path.read_bytes()
    pickled = data.index(b"optimizer_history")  # what follows the pickled part is weights, which nothing can check
    loaded = []
    for _ in range(40):
        path.write_bytes(data)
        change(path, draw.randrange(pickled), 1 << draw.randrange(8))
        loaded.append(outcome(file_io.load, path))
        assert isinstance(loaded[-1], dict) or is_one_sentence(loaded[-1], path)
    assert sum(isinstance(one, str) for one in loaded) > 8 and not EXECUTED
