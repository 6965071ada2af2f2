from hypothesis import given
from hypothesis import strategies as st

from fairseq_mtmoe.data.corpora.bitext import SPLITS, Bitext
from fairseq_mtmoe.data.corpora.clean import message_key
from fairseq_mtmoe.data.corpora.groups import Groups
from fairseq_mtmoe.data.corpora.split import Overlap, sources_in_training, split_by_message


def corpus(*sizes):
    """Languages aa, bb, … with the first so many of the same messages each."""
    return {
        lang * 2: [(f"Message w{i}", f"{lang} {i}") for i in range(size)]
        for lang, size in zip("abcdef", sizes, strict=False)
    }


def sources(bitext, split):
    return {message_key(source) for source, _ in bitext.splits[split]}


def test_no_message_is_in_two_splits_of_any_language():
    bitexts, _ = split_by_message(corpus(100, 60, 25), Groups(), {"valid": 5, "test": 7}, seed=1)
    for one in bitexts:
        for other in bitexts:
            assert not sources(one, "test") & (sources(other, "train") | sources(other, "valid"))
            assert not sources(one, "valid") & sources(other, "train")
    assert sources_in_training(bitexts) == dict.fromkeys(("en-aa", "en-bb", "en-cc"), Overlap())


def test_sizes_and_shared_messages():
    bitexts, reserved = split_by_message(corpus(100, 60, 25), Groups(), {"valid": 5, "test": 7}, seed=1)
    assert [(bitext.name, {split: len(bitext.splits[split]) for split in SPLITS}) for bitext in bitexts] == [
        ("en-aa", {"train": 88, "valid": 5, "test": 7}),
        ("en-bb", {"train": 48, "valid": 5, "test": 7}),
        ("en-cc", {"train": 13, "valid": 5, "test": 7}),
    ]
    assert reserved == {"en-aa": 0, "en-bb": 0, "en-cc": 0}
    assert len({frozenset(sources(bitext, "test")) for bitext in bitexts}) == 1
    assert [source for source, _ in bitexts[0].splits["test"]] == [source for source, _ in bitexts[2].splits["test"]]


def test_the_order_is_the_same_in_every_language():
    pairs = corpus(40, 40)
    pairs["bb"].reverse()
    one, other = split_by_message(pairs, Groups(), {"valid": 5, "test": 7}, seed=1)[0]
    assert [source for source, _ in one.splits["test"]] == [source for source, _ in other.splits["test"]]


def test_spellings_and_plurals_stay_together():
    groups = Groups()
    groups.join("w0 item", "w0 items")
    pairs = {
        "aa": [("W0 item", "a"), ("w0 items", "b"), ("W1 thing", "c"), ("w2", "d")],
        "bb": [("w0 items…", "e"), ("W1 thing!", "f"), ("w1  THING", "g"), ("w3", "h"), ("w4", "i"), ("w5", "j")],
    }
    for seed in range(20):
        bitexts, reserved = split_by_message(pairs, groups, {"valid": 1, "test": 1}, seed)
        train, held_out = set(), set()
        for bitext in bitexts:
            train |= {groups.find(key) for key in sources(bitext, "train")}
            held_out |= {groups.find(key) for split in ("valid", "test") for key in sources(bitext, split)}
            total = sum(len(bitext.splits[split]) for split in SPLITS) + reserved[bitext.name]
            assert total == len(pairs[bitext.target_lang])
        assert not train & held_out


def test_the_wording_that_most_languages_have_is_tested():
    shared = [("w0", "x"), ("W1", "y"), ("w1", "z")]
    pairs = {"aa": shared, "bb": [("w0", "x"), ("w1", "z")], "cc": [("w0", "x"), ("w1", "z")]}
    tested = {
        source
        for seed in range(10)
        for bitext in split_by_message(pairs, Groups(), {"valid": 0, "test": 1}, seed)[0]
        for source, _ in bitext.splits["test"]
    }
    assert tested == {"w0", "w1"}


def test_the_seed_decides():
    sizes = {"valid": 5, "test": 7}
    first, again, other = (split_by_message(corpus(50, 30), Groups(), sizes, seed)[0] for seed in (1, 1, 2))
    assert first == again != other


@given(
    st.lists(st.sets(st.integers(0, 60), min_size=12, max_size=60), min_size=1, max_size=5),
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=4),
    st.integers(0, 3),
)
def test_never_leaks(languages, joined, seed):
    groups = Groups()
    for one, other in joined:
        groups.join(f"w{one}", f"w{other}")
    pairs = {f"l{lang}": [(f"w{i}", "x") for i in sorted(kept)] for lang, kept in enumerate(languages)}
    bitexts, _ = split_by_message(pairs, groups, {"valid": 2, "test": 3}, seed)
    train = {groups.find(key) for bitext in bitexts for key in sources(bitext, "train")}
    assert not any(
        groups.find(key) in train for bitext in bitexts for split in ("valid", "test") for key in sources(bitext, split)
    )
    assert all(len(bitext.splits["test"]) == 3 for bitext in bitexts)


def test_counts_sources_seen_in_training_of_any_pair():
    bitexts = [
        Bitext("en", "aa", {"train": [("One", "1")], "valid": [("two", "2")], "test": [("THREE!", "3"), ("x", "y")]}),
        Bitext("en", "bb", {"train": [("three", "3")], "valid": [("four", "4")], "test": [("one.", "1")]}),
        Bitext("de", "bb", {"train": [("four", "4")], "valid": [("one", "1")], "test": [("two", "2")]}),
        Bitext("en", "cc", {"train": [("ONE", "1")], "valid": [("One", "1")], "test": [("Three", "3")]}),
    ]
    assert sources_in_training(bitexts) == {
        "en-aa": Overlap(1, {"en-bb": 1}),
        "en-bb": Overlap(1, {"en-aa": 1, "en-cc": 1}),
        "de-bb": Overlap(),
        "en-cc": Overlap(2, {"en-aa": 1, "en-bb": 1, "en-cc": 1}),
    }


@given(st.lists(st.tuples(st.sampled_from("abcdefgh"), st.sampled_from("abcdefgh")), max_size=12))
def test_groups_are_connected_components(joins):
    groups = Groups()
    sets = {letter: {letter} for letter in "abcdefgh"}
    for one, other in joins:
        groups.join(one, other)
        union = sets[one] | sets[other]
        for letter in union:
            sets[letter] = union
    assert {letter: groups.find(letter) for letter in sets} == {letter: min(sets[letter]) for letter in sets}
