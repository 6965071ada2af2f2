import json
import os

import pytest

from fairseq_mtmoe.data.corpora.clean import Changes
from fairseq_mtmoe.data.corpora.text import find_text_files, read_bitexts, read_ranked_tiers
from fairseq_mtmoe.errors import UserError


def test_reads_every_pair_of_a_folder(text_folder):
    (text_folder / "README.md").write_text("not a corpus")
    (text_folder / "train.en-de.origin").write_text("not a language of the pair")
    bitexts, dropped, _ = read_bitexts(text_folder)
    assert [(b.name, *(len(b.splits[s]) for s in ("train", "valid", "test"))) for b in bitexts] == [
        ("en-de", 122, 11, 11),
        ("en-fr", 41, 11, 11),
    ]
    assert bitexts[0].splits["valid"][0] == ("Open the file", "nepod ehtd elifd")
    assert bitexts[0].lines("test", "en")[0] == "Open the folder"
    assert dropped == {"en-de": {"empty": 0}, "en-fr": {"empty": 0}}


def test_normalises_and_drops_empty_training_pairs_only(text_folder):
    (text_folder / "train.en-de.en").write_text("one\u00a0two\n\nthree\r\n")
    (text_folder / "train.en-de.de").write_text("eins zwei \nleer\n \n")
    (text_folder / "valid.en-de.de").write_text("\n" * 11)
    bitexts, dropped, _ = read_bitexts(text_folder)
    assert bitexts[0].splits["train"] == [("one two", "eins zwei")]
    assert len(bitexts[0].splits["valid"]) == 11
    assert dropped["en-de"] == {"empty": 2}


def test_only_line_feeds_end_a_line(text_folder):
    (text_folder / "train.en-de.en").write_bytes("one\u2028two\x0bthree\u0085four\rfive\r\nsix".encode())
    (text_folder / "train.en-de.de").write_bytes(b"eins\r\nzwei\rdrei")
    bitext = read_bitexts(text_folder).bitexts[0]
    assert bitext.splits["train"] == [("one two three four five", "eins"), ("six", "zwei drei")]


def test_a_carriage_return_inside_a_line_misaligns_nothing(text_folder):
    """As many lone carriage returns on both sides, in other lines: every pair after the first would be another's."""
    sources, targets = ([f"{word}{i}" for i in range(42)] for word in ("source", "target"))
    pairs = list(zip(sources, targets, strict=True))
    for lang, lines, number in (("en", sources, 3), ("de", targets, 19)):
        lines = [*lines[:number], f"{lines[number]}\r(again)", *lines[number + 1 :]]
        (text_folder / f"train.en-de.{lang}").write_bytes("".join(f"{line}\n" for line in lines).encode())
    pairs[3], pairs[19] = ("source3 (again)", "target3"), ("source19", "target19 (again)")
    corpus = read_bitexts(text_folder)
    assert corpus.bitexts[0].splits["train"] == pairs
    assert corpus.changes["train.en-de.en"].breaks == corpus.changes["train.en-de.de"].breaks == 1


def test_what_is_changed_is_counted_by_file(text_folder):
    text = "\ufeffone\x00 \x07\ntwo\x85lines\x0c of e\u0301\n three  \u00a0words \r\n"
    (text_folder / "test.en-de.en").write_text(text + "x\n" * 8)
    changes = read_bitexts(text_folder).changes
    assert changes.pop("test.en-de.en") == Changes(removed=3, breaks=2, respelled=1)
    assert len(changes) == 11 and set(changes.values()) == {Changes()}
    assert changes["train.en-fr.fr"] == Changes()


def test_language_codes_of_mbart(text_folder):
    for path in text_folder.glob("*.en-de.*"):
        path.rename(text_folder / path.name.replace("en-de", "en_XX-de_DE").replace(".en", ".en_XX", 2).replace(
            ".en_XX_XX", ".en_XX").replace(".de", ".de_DE"))  # fmt: skip
    assert list(find_text_files(text_folder)) == ["en-fr", "en_XX-de_DE"]


def test_bad_folders(tmp_path, text_folder):
    with pytest.raises(UserError, match="must be a folder of text files"):
        read_bitexts(tmp_path / "nowhere")
    (tmp_path / "bare").mkdir()
    with pytest.raises(UserError, match="must hold text files"):
        read_bitexts(tmp_path / "bare")
    (text_folder / "valid.en-fr.fr").unlink()
    with pytest.raises(UserError, match=r"valid\.en-fr\.fr` is missing: en-fr needs both sides"):
        read_bitexts(text_folder)


def test_files_that_do_not_fit_together(text_folder):
    path = text_folder / "test.en-fr.fr"
    path.write_text("un\n")
    with pytest.raises(
        UserError, match=r"test\.en-fr\.fr` must have as many lines as `test\.en-fr\.en` \(11\), but has 1\."
    ):
        read_bitexts(text_folder)
    path.write_bytes(b"un\n\xff\n")
    with pytest.raises(UserError, match="must be UTF-8 text, but is not at byte 3"):
        read_bitexts(text_folder)


def test_what_is_no_file_is_one_sentence(text_folder):
    path = text_folder / "valid.en-fr.fr"
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(UserError, match=r"valid\.en-fr\.fr` must be a text file, but is a pipe instead"):
        find_text_files(text_folder)


def test_nothing_to_train_on(text_folder):
    (text_folder / "train.en-fr.fr").write_text("\n" * 41)
    with pytest.raises(UserError, match="must have a sentence, but have none"):
        read_bitexts(text_folder)


def test_tiers_with_and_without_ranks(tmp_path):
    (tmp_path / "tiers.json").write_text(json.dumps({"T1-high": ["de"], "low": ["et"], "T4-tiny": ["xh"]}))
    assert read_ranked_tiers(tmp_path / "tiers.json") == {"high": ["de"], "low": ["et", "xh"]}


@pytest.mark.parametrize(
    "content, sentence",
    [
        ("{", "must be a JSON file"),
        ("[]", "must map high, mid and low to lists"),
        ('{"high": "de"}', "must map high, mid and low to lists"),
        ('{"gigantic": ["de"]}', r"one of high, mid, low, but is 'gigantic' instead"),
    ],
)
def test_bad_tiers(tmp_path, content, sentence):
    (tmp_path / "tiers.json").write_text(content)
    with pytest.raises(UserError, match=sentence):
        read_ranked_tiers(tmp_path / "tiers.json")
    with pytest.raises(UserError, match="must be a file of tiers, but there is none"):
        read_ranked_tiers(tmp_path / "none.json")
