"""Duplicates by their keys on disk, compared with a set in memory."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_mtmoe.data.corpora.cleaning import keys as duplicates
from fairseq_mtmoe.data.corpora.cleaning.keys import first_occurrences

MEMORY = duplicates.BYTES_PER_KEY << 16
KEYS = st.lists(st.sampled_from([0, 1, 2, 2**40, 2**63, 2**63 + 1, 2**64 - 1]) | st.integers(0, 2**64 - 1), max_size=30)


def reference(files: list[list[int]]) -> list[list[bool]]:
    seen: set[int] = set()
    return [[not (key in seen or seen.add(key)) for key in keys] for keys in files]


def written(folder, files: list[list[int]]):
    paths = [folder / f"{number}.npy" for number in range(len(files))]
    for path, keys in zip(paths, files, strict=True):
        np.save(path, np.array(keys, np.uint64))
    return paths


@settings(max_examples=12, deadline=None)
@given(st.lists(KEYS, max_size=6), st.sampled_from([64, 500, 10**6]))
def test_the_first_of_every_key_stays_in_any_memory(tmp_path_factory, files, memory):
    folder = tmp_path_factory.mktemp("keys")
    found = [mask.tolist() for mask in first_occurrences(written(folder, files), folder / "work", memory)]
    assert found == reference(files) and not (folder / "work").exists()


def test_many_keys_in_little_memory_and_what_a_killed_run_left(tmp_path, monkeypatch):
    draws = np.random.default_rng(1).integers(0, 2**64, 200_000, np.uint64)
    keys = np.concatenate([draws, draws[:40_000], np.full(150_000, 7, np.uint64)])  # more often than memory has room
    work = tmp_path / "work"
    work.mkdir()
    (work / "part0001").write_bytes(b"of another run")
    sizes, read = [], duplicates._first_of_each
    monkeypatch.setattr(duplicates, "_first_of_each", lambda some: sizes.append(len(some)) or read(some))
    masks = np.concatenate(list(first_occurrences(written(tmp_path, np.array_split(keys, 7)), work, MEMORY)))
    assert np.array_equal(np.flatnonzero(masks), np.sort(np.unique(keys, return_index=True)[1]))
    assert max(sizes) <= MEMORY // duplicates.BYTES_PER_KEY
