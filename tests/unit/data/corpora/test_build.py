import json

import pytest
import sentencepiece
from fairseq.data import Dictionary, data_utils

from fairseq_mtmoe.data.corpora.bitext import Bitext
from fairseq_mtmoe.data.corpora.build import BuildOptions, build, complete_tiers
from fairseq_mtmoe.data.corpora.text import read_bitexts
from fairseq_mtmoe.errors import UserError

OPTIONS = BuildOptions(vocab_size=60, character_coverage=1.0)
TIERS = {"high": ["en-de"], "low": ["en-fr"]}


@pytest.fixture
def bitexts(text_folder):
    return read_bitexts(text_folder).bitexts


def decoded(folder, name):
    """The text of a binarized file, read as fairseq reads it."""
    dictionary = Dictionary.load(str(folder / f"dict.{name.split('.')[-1]}.txt"))
    model = sentencepiece.SentencePieceProcessor(model_file=str(folder / "spm.model"))
    dataset = data_utils.load_indexed_dataset(str(folder / name), dictionary)
    assert all(sentence[-1] == dictionary.eos() for sentence in dataset)
    return [model.decode(dictionary.string(sentence).split()) for sentence in dataset]


def test_fairseq_reads_back_every_sentence(tmp_path, bitexts):
    counts = build(tmp_path, bitexts, TIERS, OPTIONS)
    for bitext in bitexts:
        for split in ("train", "valid", "test"):
            for lang in ("en", bitext.target_lang):
                name = f"{split}.{bitext.name}.{lang}"
                assert decoded(tmp_path, name) == bitext.lines(split, lang)
                if split != "train":
                    assert (tmp_path / "raw" / name).read_text().splitlines() == bitext.lines(split, lang)
    assert counts["en-fr"]["test"]["fr"].unknown == 0
    assert json.loads((tmp_path / "tiers.json").read_text()) == TIERS


def test_one_dictionary_with_the_models_ids(tmp_path, bitexts):
    build(tmp_path, bitexts, TIERS, OPTIONS)
    texts = {(tmp_path / f"dict.{lang}.txt").read_text() for lang in ("en", "de", "fr")}
    assert len(texts) == 1
    dictionary = Dictionary.load(str(tmp_path / "dict.de.txt"))
    model = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "spm.model"))
    assert dictionary.symbols == [model.id_to_piece(i) for i in range(model.get_piece_size())]


def test_ids_are_those_of_fairseqs_own_encoding(tmp_path, bitexts):
    build(tmp_path, bitexts, TIERS, OPTIONS)
    dictionary = Dictionary.load(str(tmp_path / "dict.de.txt"))
    model = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "spm.model"))
    dataset = data_utils.load_indexed_dataset(str(tmp_path / "test.en-de.de"), dictionary)
    line = bitexts[0].lines("test", "de")[3]
    pieces = " ".join(model.encode(line, out_type=str))
    assert dataset[3].tolist() == dictionary.encode_line(pieces, add_if_not_exist=False).tolist()


def test_characters_outside_the_vocabulary_are_counted(tmp_path, bitexts):
    rare = Bitext("en", "de", {**bitexts[0].splits, "test": [("Open ☃", "☃ ☃")]})
    counts = build(tmp_path, [rare, bitexts[1]], TIERS, OPTIONS)
    assert (counts["en-de"]["test"]["en"].unknown, counts["en-de"]["test"]["de"].unknown) == (1, 2)


def test_shards_share_out_the_training_data(tmp_path, bitexts):
    out = tmp_path / "out"
    out.mkdir()
    build(out, bitexts, TIERS, BuildOptions(vocab_size=60, character_coverage=1.0, shards=3))
    shards = [out / f"shard{index}" for index in range(3)]
    assert sorted(path.name for path in out.iterdir()) == ["shard0", "shard1", "shard2"]
    for lang in ("en", "de"):
        parts = [decoded(shard, f"train.en-de.{lang}") for shard in shards]
        assert [len(part) for part in parts] == [41, 41, 40]
        dealt = [part[index] for index in range(41) for part in parts if index < len(part)]
        assert dealt == bitexts[0].lines("train", lang)
    assert [len(list(shard.glob("valid.*"))) for shard in shards] == [8, 0, 0]
    assert (shards[2] / "langs.txt").read_text() == "de\nen\nfr\n"
    assert (shards[2] / "lang_pairs.txt").read_text() == "en-de,en-fr\n"
    for name in ("spm.model", "dict.en.txt", "dict.fr.txt", "tiers.json"):
        assert len({(shard / name).read_bytes() for shard in shards}) == 1


def test_too_little_text(tmp_path, bitexts):
    with pytest.raises(UserError, match="en-fr must have at least 42 train pairs, but has 41"):
        build(tmp_path, bitexts, TIERS, BuildOptions(shards=42))
    empty = Bitext("en", "fr", {**bitexts[1].splits, "test": []})
    with pytest.raises(UserError, match="en-fr must have at least 1 test pairs, but has 0"):
        build(tmp_path, [empty], TIERS, OPTIONS)
    assert not list(tmp_path.glob("*.bin"))


def test_tiers_are_named_or_by_size():
    sizes = {"aa": 800, "bb": 400, "cc": 100, "dd": 99, "ee": 5}
    bitexts = [Bitext("en", lang, {"train": [("x", "y")] * size}) for lang, size in sizes.items()]
    named = {"high": ["en-ee"], "low": ["bb", "zz"]}
    assert complete_tiers(bitexts, {}) == {"high": ["en-aa", "en-bb"], "mid": ["en-cc"], "low": ["en-dd", "en-ee"]}
    assert complete_tiers(bitexts, named) == {"high": ["en-aa", "en-ee"], "mid": ["en-cc"], "low": ["en-bb", "en-dd"]}


@pytest.mark.parametrize(
    "field, value", [("vocab_size", 7), ("temperature", 0.0), ("character_coverage", 1.1), ("shards", 0)]
)
def test_bad_options(field, value):
    with pytest.raises(UserError, match=f"`--{field.replace('_', '-')}` must be .*, but is {value} instead"):
        BuildOptions(**{field: value})
