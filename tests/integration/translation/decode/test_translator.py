"""The translator gives what fairseq-generate gives, with one load of the model; so do mixed batches and our search."""

import math
import re
import shutil
from argparse import Namespace
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from fairseq import options
from fairseq.data import Dictionary
from fairseq_cli import generate

from fairseq_mtmoe import register
from fairseq_mtmoe.checkpoints import file_io
from fairseq_mtmoe.moe.gates import base_gates
from fairseq_mtmoe.report.scores import score_pair
from fairseq_mtmoe.translation.decode import beam_search, decode
from fairseq_mtmoe.translation.decode import translator as translator_module
from fairseq_mtmoe.translation.decode.beam_search import length_limits
from fairseq_mtmoe.translation.decode.decode import Decoding, RowDecoder
from fairseq_mtmoe.translation.decode.translator import Translator, joining_of
from tests.helpers import untrained
from tests.helpers.refused import refused
from tests.helpers.translated_text import by_fairseq

SHORT = Decoding(beam=3, max_len_b=20, lenpen=0.7)
WIDE = Decoding(beam=4, max_len_b=15, lenpen=0.6)
PAIRS = list(untrained.PAIRS)


@pytest.fixture(scope="module")
def dense(stock):
    """A stock transformer, which imitates the references of en-aa."""
    return Namespace(data=stock / "data", checkpoint=stock / "checkpoint.pt")


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """An ensemble of two models that have experts, and `first` of them."""
    register()
    folder = tmp_path_factory.mktemp("two")
    data, paths = untrained.make_data(folder / "data"), [folder / "1.pt", folder / "2.pt"]
    for seed, path in enumerate(paths):
        untrained.save_model(data, path, *untrained.SPARSE, seed=seed)
    first = Namespace(data=data, checkpoint=paths[0])
    return Namespace(data=data, checkpoint=":".join(map(str, paths)), first=first)


def fairseq_generate(model, target, folder, *options_, task="translation_multi_simple_epoch"):
    """Hypotheses and references by sentence, and the line with BLEU, of fairseq-generate."""
    arguments = [
        str(model.data), "--task", task, "--lang-pairs", ",".join(PAIRS),
        "-s", "en", "-t", target, "--path", str(model.checkpoint), "--encoder-langtok", "tgt", "--decoder-langtok",
        "--beam", "3", "--max-len-b", "20", "--lenpen", "0.7", "--post-process", "sentencepiece",
        "--max-source-positions", "12", "--skip-invalid-size-inputs-valid-test", "--required-batch-size-multiple", "1",
        "--scoring", "sacrebleu", "--results-path", str(folder), "--num-workers", "0", *options_,
    ]  # fmt: skip
    generate.main(options.parse_args_and_arch(options.get_generation_parser(), arguments))
    text = (folder / "generate-test.txt").read_text()
    found = {}
    for kind, column in (("D", 2), ("T", 1)):
        rows = [line.split("\t") for line in text.splitlines() if re.match(kind + r"-\d", line)]
        found[kind] = {int(row[0][2:]): row[column] for row in sorted(rows, key=lambda row: int(row[0][2:]))}
    return found["D"], found["T"], re.search(r"Generate test with beam=3: (.*)", text)[1]


def translator_of(model, decoding=SHORT, data=None, path=None, **settings):
    return Translator(str(data or model.data), str(path or model.checkpoint).split(":"), decoding, **settings)


def translate(model, pair="en-aa", *more, **settings):
    return next(translator_of(model, *more, **settings).translations([pair], "test"))


def test_texts_and_bleu_are_those_of_fairseq_generate_where_asked(dense, tmp_path):
    hypotheses, references, line = fairseq_generate(dense, "aa", tmp_path)
    text = translate(dense, references="fairseq")
    assert text.hypotheses == list(hypotheses.values()) and len(hypotheses) == 13
    assert text.references.lines == list(references.values())
    assert (text.references.file, text.references.altered, text.untranslated) == ("test.en-aa.aa.bin", 2, 1)
    assert "<<unk>>" in references[3]
    score = score_pair("en-aa", text.hypotheses, text.references.lines)
    assert 5 < score.bleu < 95
    assert line.startswith(f"BLEU = {score.bleu:.2f} ")


def test_shards_of_fairseq_generate_divide_the_sentences(dense, tmp_path):
    shards = [
        fairseq_generate(
            dense, "aa", tmp_path / str(number), "--batch-size", "3", "--num-shards", "3", "--shard-id", str(number)
        )[0]
        for number in range(3)
    ]
    together = [number for shard in shards for number in shard]
    assert all(shards) and sorted(together) == list(range(13))
    with refused("--shard-id", "--num-shards"):
        fairseq_generate(dense, "aa", tmp_path, "--num-shards", "3", "--shard-id", "3")


@pytest.mark.parametrize(("references", "lines"), [("text", (["", ""], ["ba", "bo"])), ("fairseq", ([], []))])
def test_a_test_set_that_is_too_long_altogether_is_all_empty(dense, tmp_path, references, lines):
    data = shutil.copytree(dense.data, tmp_path / "data")
    untrained.write_split(data, "test", "en-bb", ["▁ba " * 20] * 2, ["▁ba", "▁bo"])
    text = translate(dense, "en-bb", data=data, references=references)
    assert (text.hypotheses, text.references.lines, text.untranslated) == (*lines, 2)


def test_an_unknown_word_of_a_hypothesis_earns_nothing(dense, tmp_path):
    plain = translate(dense, references="fairseq").hypotheses
    [(word, _)] = Counter(re.findall("[bdfgklmn][aeiou]", " ".join(plain))).most_common(1)
    marks = Counter(piece for line in translate(dense, post_process="none").hypotheses for piece in line.split())
    piece = max((f"▁{word}", word), key=lambda piece: marks[piece])
    unknowns = Namespace(data=dense.data, checkpoint=tmp_path / "unknowns.pt")
    untrained.babble_unknowns(dense.checkpoint, piece, unknowns.checkpoint)
    ours, theirs = translate(unknowns), translate(unknowns, references="fairseq")
    assert "<unk>" in theirs.hypotheses[3] and "<<unk>>" in theirs.references.lines[3]
    assert ours.hypotheses[:13] == [line.replace("<unk>", "⁇") for line in theirs.hypotheses]
    earned, not_earned = (score_pair("en-aa", [f"bo {unknown}"], ["bo <<unk>>"]).chrf for unknown in ("<unk>", "⁇"))
    assert earned > 2 * not_earned


def test_pairs_of_a_model_of_one_and_of_one_that_read_them_from_a_file_that_is_gone(dense, two, tmp_path):
    file = tmp_path / "pairs.txt"
    file.write_text("en-bb\n")
    untrained.save_model(dense.data, tmp_path / "one.pt", *untrained.ONE_PAIR)
    untrained.save_model(two.data, tmp_path / "file.pt", *untrained.SPARSE, "--lang-pairs", str(file))
    file.unlink()
    one, other = translator_of(dense, path=tmp_path / "one.pt"), translator_of(two, path=tmp_path / "file.pt")
    assert one.trained_pairs == other.trained_pairs == ["en-bb"]
    assert len(next(one.translations(["en-bb"], "test")).hypotheses) == 11


def test_fairseq_generate_translates_in_bfloat16_as_we_do(two, tmp_path):
    """Tasks are pairs, whose order is the model's, not that of the task's options."""
    model = Namespace(data=two.data, checkpoint=tmp_path / "pairs.pt")
    untrained.save_model(model.data, model.checkpoint, *untrained.SPARSE, "--task-ids", "pair")
    state = torch.load(model.checkpoint)
    state["cfg"]["task"]["lang_pairs"] = ",".join(reversed(PAIRS))
    torch.save(state, model.checkpoint)

    def generated(*options):
        hypotheses, _, _ = fairseq_generate(model, "aa", tmp_path, *options, task="translation_heated")
        text = (tmp_path / "generate-test.txt").read_text()
        return list(hypotheses.values()), re.findall(r"^H-\S+\t(\S+)", text, re.M)

    (hypotheses, scores), (_, scores_in_float32) = generated("--bf16"), generated()
    ours = translate(model, decoding=replace(SHORT, bf16=True), references="fairseq").hypotheses
    equal = [one == other for one, other in zip(hypotheses, ours, strict=True)]
    assert len(scores) == 10 and scores != scores_in_float32 and sum(equal) >= 8  # sums are rounded in another order


def test_subwords_are_joined_as_asked_or_as_found_out(dense, tmp_path):
    def first(post_process=None):
        return translate(dense, "en-bb", post_process=post_process).hypotheses[0]

    pieces = first("none").split(" ")
    assert 0 < sum(piece.startswith("▁") for piece in pieces) < len(pieces)
    assert first() == first("sentencepiece") == "".join(pieces).replace("▁", " ").strip()
    assert first("subword_nmt") == " ".join(pieces)
    for piece, joining in ("▁a", "sentencepiece"), ("a@@", "subword_nmt"), ("1", None):
        dictionary = Dictionary()
        dictionary.add_symbol(piece)
        assert joining_of(str(tmp_path), dictionary) == joining
    (tmp_path / "spm.model").touch()  # which decides
    assert joining_of(str(tmp_path), dictionary) == "sentencepiece"


def test_bad_checkpoints_are_said_in_one_sentence(dense, tmp_path):
    (tmp_path / "cut.pt").write_bytes(dense.checkpoint.read_bytes()[:1000])
    state = torch.load(dense.checkpoint)
    torch.save({**state, "cfg": {"task": Namespace(task="language_modeling")}}, tmp_path / "lm.pt")
    for name in ("nothing.pt", "cut.pt", "lm.pt"):
        with refused(name):
            translator_of(dense, path=tmp_path / name)


def test_data_for_another_dictionary_is_said_in_one_sentence(dense, tmp_path):
    data = shutil.copytree(dense.data, tmp_path / "data")
    path = data / "test.en-aa.en.bin"
    path.write_bytes(path.read_bytes()[:-4] + b"\xff\x7f" + path.read_bytes()[-2:])
    with refused("test.en-aa.en.bin"):
        translate(dense, data=data)
    for path in data.glob("dict.*"):
        path.write_text(path.read_text() + "more 1\n")
    with refused("checkpoint.pt", first=False):
        translate(dense, data=data)


def test_half_precision_translates_too_and_is_of_one_type(dense):
    with refused("--bf16"):
        Decoding(fp16=True, bf16=True)
    for name, value in (("lenpen", math.nan), ("max_len_a", math.inf), ("max_len_b", -1), ("batch_size", 10**20)):
        with refused(f"--{name.replace('_', '-')}"):
            Decoding(**{name: value})
    translator = translator_of(dense, replace(SHORT, fp16=True))
    assert len(next(translator.translations(["en-bb"], "test")).hypotheses) == 11
    assert {parameter.dtype for model in translator.models for parameter in model.parameters()} == {torch.float16}


# ---- batches of several pairs, and the search for the best hypothesis alone ----


def mixed(model, decoding=SHORT, advance=lambda count: None):
    found = list(translator_of(model, decoding).translations(PAIRS, "test", advance))
    assert [text.pair for text in found] == PAIRS
    return {text.pair: text for text in found}


def alone(model, decoding=SHORT, size=100):
    translator = translator_of(model, decoding)
    return {pair: by_fairseq(translator, pair, size) for pair in PAIRS}


def test_three_hundred_hypotheses_are_those_of_fairseq_generate(tmp_path):
    register()
    data, checkpoint = untrained.make_data(tmp_path / "data"), tmp_path / "model.pt"
    for seed, pair in enumerate(PAIRS):
        sides = (untrained.sentences(100, 200 + 2 * seed + side) for side in (0, 1))
        untrained.write_split(data, "test", pair, *sides)
    untrained.save_model(data, checkpoint, *untrained.SPARSE, seed=42)
    model, wanted = Namespace(data=data, checkpoint=checkpoint), {}
    for pair in PAIRS:
        folder = tmp_path / pair
        wanted[pair], _, _ = fairseq_generate(model, pair[3:], folder, task="translation_heated")
    found = translator_of(model, references="fairseq").translations(PAIRS, "test")
    assert {text.pair: dict(enumerate(text.hypotheses)) for text in found} == wanted
    assert len({line for lines in wanted.values() for line in lines.values()}) > 200


def test_pairs_are_translated_together_up_to_a_number_of_sentences(dense, monkeypatch):
    monkeypatch.setattr(translator_module, "TOGETHER", 20)
    batches = []
    assert mixed(dense, advance=batches.append) == alone(dense)
    assert len(batches) == 2


@pytest.mark.parametrize(("options", "batches"), [
    (["--conditional", "attention,norm,alignment,bottleneck", "--task-ids", "pair"], 1),
    (["--task-ids", "aa+bb,cc"], 1), (["--lang-tok-replacing-bos-eos"], 3),
], ids=["conditional", "groups", "ends"])  # fmt: skip
def test_what_belongs_to_a_pair_goes_with_its_rows(two, tmp_path, options, batches):
    model = Namespace(data=two.data, checkpoint=tmp_path / "model.pt")
    untrained.save_model(model.data, model.checkpoint, *untrained.SPARSE, *options)
    sizes = []
    found = mixed(model, advance=sizes.append)
    assert found == alone(model) and len(sizes) == batches
    assert len({line for text in found.values() for line in text.hypotheses}) > 10


@pytest.mark.parametrize("settings", [{"max_tokens": 30}, {"batch_size": 3}, {}])
def test_batches_of_any_size_give_the_same(dense, settings, monkeypatch):
    monkeypatch.setattr(decode, "MOST_SENTENCES", 10)
    sizes = []
    found = mixed(dense, replace(SHORT, **settings), sizes.append)
    assert found == alone(dense) and len(sizes) > 5 - 2 * (not settings) and sum(sizes) == 36
    assert settings or sorted(sizes) == [6, 10, 10, 10]


def test_a_limit_by_the_source_is_of_each_sentence_and_not_of_its_batch(dense):
    limited, sizes = replace(SHORT, max_len_a=1, max_len_b=0), []
    found = mixed(dense, limited, sizes.append)
    assert found == alone(dense, limited, size=1) != alone(dense, limited) and sizes == [36]


def test_limits_beyond_all_positions_are_the_last_one():
    """Numbers that no whole number of 64 bits can hold."""
    generator = SimpleNamespace(max_len=1024, max_len_a=1e308, max_len_b=10**21)
    assert length_limits(generator, torch.tensor([1, 500])).tolist() == [1023, 1023]


@pytest.mark.parametrize(("beam", "sizes"), [
    (1, {}), (7, {}), (4, {"_MANY": 0, "_DEEP": 8, "_AT_ONCE": 300, "_ROWS": 7}),
], ids=["narrow", "wide", "best words by columns"])  # fmt: skip
def test_beams_of_any_width_and_columns(two, monkeypatch, beam, sizes):
    for name, size in sizes.items():
        monkeypatch.setattr(beam_search, name, size)
    decoding = replace(WIDE, beam=beam)
    assert mixed(two.first, decoding) == alone(two.first, decoding)


def test_an_ensemble_and_a_model_in_half_precision_are_asked_for_their_own_probabilities(two):
    assert mixed(two, WIDE) == alone(two, WIDE) != alone(two.first, WIDE)
    half = replace(WIDE, fp16=True)  # bfloat16 has so few digits that rounding decides near ties
    found, right = mixed(two.first, half), alone(two.first, half)
    both = [zip(found[pair].hypotheses, right[pair].hypotheses, strict=True) for pair in PAIRS]
    assert sum(one == other for lines in both for one, other in lines) >= 30  # of 33


def test_a_search_of_a_model_that_is_broken_ends(two):
    translator = translator_of(two.first, WIDE)
    data = translator.pair_data("en-aa", "test")
    with torch.no_grad():
        translator.models[0].decoder.output_projection.weight.fill_(torch.nan)
    (batch,) = RowDecoder(data.task, translator.models, WIDE).batches(data.rows()[:3])
    found = RowDecoder(data.task, translator.models, WIDE).decode(batch)
    assert [best.tokens for best, *_ in found] == [[2]] * 3


# ---- routing by prices ----


@pytest.fixture
def priced(two, tmp_path):
    """A model with prices at which every token goes elsewhere."""
    model = Namespace(data=two.data, checkpoint=tmp_path / "priced.pt", unpriced=tmp_path / "unpriced.pt")
    untrained.save_model(two.data, model.unpriced, *untrained.SPARSE, "--expert-gates", "base")
    state = file_io.load(str(model.unpriced))
    for key in [key for key in state["model"] if key.endswith("prices.total")]:
        state["model"][key] = torch.tensor([25.0, -25, 15, -15])
        state["model"][key.replace("total", "weight")] = torch.tensor(0.5)
    file_io.save(state, str(model.checkpoint))
    return model


def routed(model, way=None):
    return translate(model, decoding=replace(SHORT, base_evaluation=way)).hypotheses


def test_base_layers_route_as_the_checkpoint_says_or_as_asked(priced):
    greedy = routed(Namespace(data=priced.data, checkpoint=priced.unpriced))
    assert routed(priced) == routed(priced, "prices") != greedy
    assert routed(priced, "greedy") == greedy


def test_a_run_that_validates_in_balance_translates_by_prices(priced):
    state = file_io.load(str(priced.checkpoint))
    state["cfg"]["model"]["base_evaluation"] = "balanced"
    file_io.save(state, str(priced.checkpoint))
    translator = translator_of(priced)
    next(translator.translations(["en-aa"], "test"))
    assert {gate.evaluation for gate in base_gates(translator.models[0])} == {"prices"}
