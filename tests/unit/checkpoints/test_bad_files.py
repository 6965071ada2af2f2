"""Truncated and bit-flipped checkpoints: none is accepted silently, none is executed, none ends without a sentence."""

import encodings.raw_unicode_escape  # noqa: F401 (which a damaged pickle may ask for, and which is no attack)
import os
import pickle
import random
import sys
import zipfile
from pathlib import Path

import pytest
import torch
from fairseq import checkpoint_utils

from fairseq_mtmoe.checkpoints import file_io
from fairseq_mtmoe.errors import UserError
from tests.helpers.states import assert_same, trained

COMMENT = 77
FLIPS_PER_REGION, TRUNCATIONS = 30, 40
EXECUTING = {"exec", "pickle.find_class", "os.system", "os.exec", "os.posix_spawn", "os.fork", "subprocess.Popen"}
WAYS_IN = (
    file_io.load,
    lambda path: checkpoint_utils.load_checkpoint_to_cpu(path),
    lambda path: file_io.copy(path, f"{path}.copy"),
)


class Watch:
    """Notes what Python executes while it is on: an audit hook cannot be taken away."""

    def __init__(self):
        self.on, self.seen = False, []
        sys.addaudithook(self.note)

    def note(self, event, arguments):
        if self.on and event in EXECUTING:
            self.seen.append((event, arguments))

    def __enter__(self):
        self.on = True
        return self

    def __exit__(self, *exception):
        self.on = False


WATCH = Watch()


@pytest.fixture(scope="module")
def state():
    """A sparse model's checkpoint in fairseq's form, with the optimizer's moments."""
    state, _ = trained()
    state["optimizer_history"][0] |= {"optimizer_name": "FairseqAdam", "lr_scheduler_state": {}}
    state["extra_state"] = {"train_iterator": {"epoch": 1}, "val_loss": 2.5}
    return state


def regions(path: Path) -> dict[str, list[range]]:
    """Where the parts of a checkpoint file lie: together all of it."""
    data = path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        directory = archive.start_dir
        records = sorted(archive.infolist(), key=lambda record: record.header_offset)
    content, headers, end = [], [], 0
    for record in records:
        name = record.filename.encode()
        start = record.header_offset + 30 + len(name)
        start += int.from_bytes(data[record.header_offset + 28 : record.header_offset + 30], "little")  # padding
        headers.append(range(end, start))  # with what follows the record before
        end = start + record.file_size
        content.append(range(start, end))
    headers.append(range(end, directory))
    last = len(data) - COMMENT if data[-COMMENT:].startswith(b"mtmoe") else len(data)
    tail = data.index(b"PK\x06\x06", directory)
    return {
        "content": content,
        "headers and padding": headers,
        "directory": [range(directory, tail)],
        "last records": [range(tail, last)],
        "checksum": [range(last, len(data))],
    }


def draws(path: Path, seed: int) -> list[tuple[str, bytes]]:
    """Damaged twins of a file, with the place of the damage."""
    data, draw = path.read_bytes(), random.Random(seed)
    damaged = []
    for region, parts in regions(path).items():
        places = [part for part in parts if part]
        for _ in range(FLIPS_PER_REGION if places else 0):
            offset = draw.choice(draw.choices(places, weights=map(len, places))[0])
            flipped = bytearray(data)
            flipped[offset] ^= 1 << draw.randrange(8)
            damaged.append((region, bytes(flipped)))
    lengths = [*range(5), *(len(data) - size for size in (1, 2, 22, 64, COMMENT, COMMENT + 2, COMMENT + 22))]
    lengths += [draw.randrange(len(data)) for _ in range(TRUNCATIONS - len(lengths))]
    return damaged + [("truncated", data[:length]) for length in lengths]


def outcome(way_in, path: Path) -> object:
    """What comes in, or the sentence that refuses it."""
    with WATCH:
        try:
            return way_in(str(path))
        except UserError as error:
            return str(error)


def is_one_sentence(sentence: object, path: Path) -> bool:
    return isinstance(sentence, str) and sentence.startswith(f"`{path}` must ") and "\n" not in sentence


def write_and_load(state, path: Path, save) -> None:
    save(state, str(path))
    for way_in in WAYS_IN:  # once, so that what loading imports is there
        way_in(str(path))
    assert_same(file_io.load(str(path)), state)


def test_no_damage_to_a_file_with_checksum_is_accepted(state, tmp_path):
    path, older = tmp_path / "checkpoint_last.pt", tmp_path / "checkpoint1.pt"
    write_and_load(state, path, file_io.save)
    places = sorted(place for parts in regions(path).values() for part in parts for place in part)
    assert places == list(range(path.stat().st_size))
    file_io.save({"n": 1}, str(older))
    refused = dict.fromkeys((*regions(path), "truncated"), 0)
    for number, (region, data) in enumerate(draws(path, seed=1)):
        path.write_bytes(data)
        sentence = outcome(WAYS_IN[number % len(WAYS_IN)], path)
        assert is_one_sentence(sentence, path), (region, sentence)
        assert sentence.endswith(
            f"is truncated or damaged; use an older one: the newest good one beside it is `{older}`."
        )
        refused[region] += 1
    assert len(refused) == 6 and sum(refused.values()) == 5 * FLIPS_PER_REGION + TRUNCATIONS and not WATCH.seen


def test_damage_to_a_file_without_checksum_is_refused_or_without_effect(state, tmp_path):
    path = tmp_path / "checkpoint_last.pt"
    write_and_load(state, path, torch.save)
    refused, harmless = dict.fromkeys((*regions(path), "truncated"), 0), dict.fromkeys(regions(path), 0)
    for region, data in draws(path, seed=2):
        path.write_bytes(data)
        loaded = outcome(file_io.load, path)
        if isinstance(loaded, str):
            assert is_one_sentence(loaded, path)
            refused[region] += 1
        else:
            assert_same(loaded, state)
            harmless[region] += 1
    assert refused["truncated"] == TRUNCATIONS and refused["content"] == FLIPS_PER_REGION
    assert sum(refused.values()) + sum(harmless.values()) == 4 * FLIPS_PER_REGION + TRUNCATIONS
    assert harmless["headers and padding"] > FLIPS_PER_REGION // 2 and not WATCH.seen


class MakeFolder:
    """Unpickling this makes a folder."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self):
        return (os.mkdir, (str(self.path),))


@pytest.mark.parametrize("kind", ["archive", "with checksum", "before archives", "pickle"])
def test_a_bomb_does_not_go_off_damaged_or_not(tmp_path, kind):
    path, proof, draw = tmp_path / "checkpoint_last.pt", tmp_path / "executed", random.Random(3)
    bomb = {"model": MakeFolder(proof), "w": torch.arange(20.0)}
    if kind == "with checksum":
        file_io.save(bomb, str(path))
    elif kind == "pickle":
        path.write_bytes(pickle.dumps(bomb))
    else:
        torch.save(bomb, path, _use_new_zipfile_serialization=kind == "archive")
    data = path.read_bytes()
    for number in range(30):
        flipped = bytearray(data)
        if number:
            flipped[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        path.write_bytes(flipped)
        for way_in in WAYS_IN[:2]:
            assert is_one_sentence(outcome(way_in, path), path)
    assert not proof.exists() and not WATCH.seen


def test_damage_from_before_archives_is_one_sentence_where_it_is_seen(state, tmp_path):
    path, draw = tmp_path / "checkpoint_last.pt", random.Random(4)
    torch.save(state, path, _use_new_zipfile_serialization=False)
    data = path.read_bytes()
    pickled = data.index(b"optimizer_history")  # what follows the pickled part is weights, which nothing can check
    loaded = []
    for _ in range(40):
        flipped = bytearray(data)
        flipped[draw.randrange(pickled)] ^= 1 << draw.randrange(8)
        path.write_bytes(flipped)
        loaded.append(outcome(file_io.load, path))
        assert isinstance(loaded[-1], dict) or is_one_sentence(loaded[-1], path)
    assert sum(isinstance(one, str) for one in loaded) > 8 and not WATCH.seen
