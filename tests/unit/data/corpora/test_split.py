import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairseq_mtmoe.data.corpora.catalogs import message_key
from fairseq_mtmoe.data.corpora.harvest import DedupGroups, select_languages, split_by_message
from fairseq_mtmoe.errors import UserError

SPLITS = ("train", "valid", "test")


def corpus(*sizes):
    """Languages aa, bb, … with the first so many of the same messages each."""
    return {lang * 2: [f"Message w{i}" for i in range(size)] for lang, size in zip("abcdef", sizes, strict=False)}


def split(corpora, sizes, seed, groups=None):
    """By language and split, the sources."""
    groups = groups or DedupGroups()
    pairs = {lang: [(source, str(place)) for place, source in enumerate(of)] for lang, of in corpora.items()}
    group_of = {source: groups.find(message_key(source)) for of in corpora.values() for source in of}
    found = split_by_message(pairs, group_of, sizes, seed)
    return {lang: {name: [source for source, _ in of] for name, of in splits.items()} for lang, splits in found.items()}


def keys(sources, groups=None):
    return {(groups or DedupGroups()).find(message_key(source)) for source in sources}


def test_sizes_and_shared_messages():
    found = split(corpus(100, 60, 25), {"valid": 5, "test": 7}, seed=1)
    assert [(lang, {name: len(splits[name]) for name in SPLITS}) for lang, splits in found.items()] == [
        ("aa", {"train": 88, "valid": 5, "test": 7}),
        ("bb", {"train": 48, "valid": 5, "test": 7}),
        ("cc", {"train": 13, "valid": 5, "test": 7}),
    ]
    assert found["aa"]["test"] == found["bb"]["test"] == found["cc"]["test"]


def test_the_order_is_the_same_in_every_language():
    corpora = corpus(40, 40)
    corpora["bb"].reverse()
    found = split(corpora, {"valid": 5, "test": 7}, seed=1)
    assert found["aa"]["test"] == found["bb"]["test"]
    assert found["bb"]["train"] == found["aa"]["train"][::-1]


def test_the_first_pair_with_the_wording_that_most_languages_have_is_tested():
    for seed in range(10):
        found = split({"aa": ["w0", "W1", "w1"], "bb": ["w0", "w1"], "cc": ["w0", "w1"]}, {"valid": 0, "test": 1}, seed)
        assert found["aa"]["test"] in (["w0"], ["w1"])
        pairs = {"aa": [("w0", "a"), ("W1", "b"), ("w1", "c"), ("w1", "d")], "bb": [("w1", "e"), ("w0", "f")]}
        group_of = {"w0": "w0", "W1": "w1", "w1": "w1"}
        [tested] = split_by_message(pairs, group_of, {"valid": 0, "test": 1}, seed)["aa"]["test"]
        assert tested in (("w0", "a"), ("w1", "c"))


def test_the_seed_decides():
    sizes = {"valid": 5, "test": 7}
    first, again, other = (split(corpus(50, 30), sizes, seed) for seed in (1, 1, 2))
    assert first == again != other


@given(
    st.lists(st.sets(st.integers(0, 60), min_size=12, max_size=60), min_size=1, max_size=5),
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=4),
    st.integers(0, 3),
)
def test_never_leaks(languages, joined, seed):
    groups = DedupGroups()
    for one, other in joined:
        groups.join(f"w{one}", f"w{other}")
    corpora = {f"l{lang}": [f"w{i}" for i in sorted(kept)] for lang, kept in enumerate(languages)}
    found = split(corpora, {"valid": 2, "test": 3}, seed, groups)
    train = set().union(*(keys(splits["train"], groups) for splits in found.values()))
    assert not any(train & keys(splits["valid"] + splits["test"], groups) for splits in found.values())
    assert all(len(keys(splits["test"], groups)) == len(splits["test"]) == 3 for splits in found.values())


@given(st.lists(st.tuples(st.sampled_from("abcdefgh"), st.sampled_from("abcdefgh")), max_size=12))
def test_groups_are_connected_components(joins):
    groups = DedupGroups()
    sets = {letter: {letter} for letter in "abcdefgh"}
    for one, other in joins:
        groups.join(one, other)
        union = sets[one] | sets[other]
        for letter in union:
            sets[letter] = union
    assert {letter: groups.find(letter) for letter in sets} == {letter: min(sets[letter]) for letter in sets}


SIZES = {"aa": 1000, "bb": 800, "cc": 400, "dd": 200, "ee": 100, "ff": 30}


def test_languages_are_those_that_keep_half_for_training_or_that_are_wanted():
    assert select_languages(SIZES, held_out=50) == ["aa", "bb", "cc", "dd", "ee"]
    assert select_languages(SIZES, held_out=20, langs=["ff", "bb"]) == ["bb", "ff"]
    assert select_languages(SIZES, held_out=10, max_langs=3) == ["aa", "cc", "ff"]
    assert select_languages(SIZES, held_out=10, max_langs=1) == ["aa"]
    assert select_languages(SIZES, held_out=10, max_langs=9) == list(SIZES)


def test_languages_that_are_too_small():
    with pytest.raises(UserError, match="must leave ff messages to train on, but it has 30 and they hold out 30"):
        select_languages(SIZES, held_out=30, langs=["aa", "ff"])
    with pytest.raises(UserError, match="the largest language has 1000 and they hold out 501"):
        select_languages(SIZES, held_out=501)
