"""The translator gives what fairseq-generate gives, pair after pair, with one load of the model."""

import re
import shutil
from argparse import Namespace
from collections import Counter
from dataclasses import replace

import pytest
import torch
from fairseq import options
from fairseq.data import Dictionary
from fairseq_cli import generate

from fairseq_mtmoe import register
from fairseq_mtmoe.analysis.scores import score_pair
from fairseq_mtmoe.checkpoints import loading
from fairseq_mtmoe.evaluation.translator import Decoding, Translator, joining_of, subword_marks
from tests.helpers import untrained
from tests.helpers.refused import refused

SHORT = Decoding(beam=3, max_len_b=20, lenpen=0.7)


def fairseq_generate(model, target, folder, *options_, task="translation_multi_simple_epoch"):
    """Hypotheses and references by sentence, and the line with BLEU, of fairseq-generate."""
    arguments = [
        str(model.data), "--task", task, "--lang-pairs", ",".join(untrained.PAIRS),
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


def translate(model, pair="en-aa", decoding=SHORT, data=None, **settings):
    return Translator(str(data or model.data), [str(model.checkpoint)], decoding, **settings).translate(pair, "test")


def test_texts_and_bleu_are_those_of_fairseq_generate_where_asked(stock, tmp_path):
    hypotheses, references, line = fairseq_generate(stock, "aa", tmp_path)
    text = translate(stock, references="fairseq")
    assert len(hypotheses) == 13
    assert text.hypotheses == list(hypotheses.values())
    assert text.references == list(references.values())
    assert (text.reference_file, text.altered, text.untranslated) == ("test.en-aa.aa.bin", 2, 1)
    assert "<<unk>>" in references[3]
    score = score_pair("en-aa", text.hypotheses, text.references)
    assert 5 < score.bleu < 95
    assert line.startswith(f"BLEU = {score.bleu:.2f} ")


def test_limits_are_those_of_fairseq_generate(stock, tmp_path):
    """`--max-len-a` counts the longest source of a batch, so the batches must be the same; and none is dropped."""
    limits = ("--max-len-a", "1", "--max-len-b", "0")
    hypotheses, _, _ = fairseq_generate(stock, "aa", tmp_path / "8", *limits, "--required-batch-size-multiple", "8")
    other_batches, _, _ = fairseq_generate(stock, "aa", tmp_path / "1", *limits)
    found = translate(stock, decoding=Decoding(beam=3, max_len_a=1, max_len_b=0, lenpen=0.7)).hypotheses
    assert len(hypotheses) == 8 and len(found) == 14
    assert {number: found[number] for number in hypotheses} == hypotheses
    assert all(found[number] for number in range(13))
    assert {number: other_batches[number] for number in hypotheses} != hypotheses  # all in one batch have one limit


def test_a_test_set_that_is_too_long_altogether_is_all_empty(stock, tmp_path):
    data = shutil.copytree(stock.data, tmp_path / "data")
    untrained.write_split(data, "test", "en-bb", ["▁ba " * 20] * 2, ["▁ba", "▁bo"])
    text = translate(stock, "en-bb", data=data)
    assert (text.hypotheses, text.references, text.untranslated) == (["", ""], ["ba", "bo"], 2)
    text = translate(stock, "en-bb", data=data, references="fairseq")
    assert (text.hypotheses, text.references, text.untranslated) == ([], [], 2)


def test_an_unknown_word_of_a_hypothesis_earns_nothing(stock, tmp_path):
    plain = translate(stock, references="fairseq").hypotheses
    [(word, _)] = Counter(re.findall("[bdfgklmn][aeiou]", " ".join(plain))).most_common(1)
    marks = Counter(piece for line in translate(stock, post_process="none").hypotheses for piece in line.split())
    piece = max((f"▁{word}", word), key=lambda piece: marks[piece])
    unknowns = Namespace(data=stock.data, checkpoint=tmp_path / "unknowns.pt")
    untrained.babble_unknowns(stock.checkpoint, piece, unknowns.checkpoint)
    ours, theirs = translate(unknowns), translate(unknowns, references="fairseq")
    assert "<unk>" in theirs.hypotheses[3] and "<<unk>>" in theirs.references[3]
    assert ours.hypotheses[:13] == [line.replace("<unk>", "⁇") for line in theirs.hypotheses]
    score, *others = (
        score_pair("en-aa", [line.replace("<unk>", mark) for line in theirs.hypotheses], ours.references[:13])
        for mark in ("⁇", "☃", "♫")
    )
    assert {(other.bleu, other.chrf) for other in others} == {(score.bleu, score.chrf)}
    earned, not_earned = (score_pair("en-aa", [f"bo {unknown}"], ["bo <<unk>>"]).chrf for unknown in ("<unk>", "⁇"))
    assert earned > 2 * not_earned


def test_a_sparse_model_with_task_gates_is_evaluated_as_fairseq_generate_does(sparse, tmp_path):
    translator = Translator(str(sparse.data), [str(sparse.checkpoint)], SHORT, references="fairseq")
    for target, count in (("bb", 11), ("aa", 13)):  # the model is built for the first pair
        folder = tmp_path / target
        hypotheses, references, line = fairseq_generate(sparse, target, folder, task="translation_heated")
        text = translator.translate(f"en-{target}", "test")
        assert (text.hypotheses, text.references) == (list(hypotheses.values()), list(references.values()))
        score = score_pair(f"en-{target}", text.hypotheses, text.references)
        assert len(hypotheses) == count and len(set(hypotheses.values())) > 2
        assert line.startswith(f"BLEU = {score.bleu:.2f} ")
    assert score.chrf > 5


def test_pairs_do_not_disturb_each_other_and_the_model_is_read_once(stock, monkeypatch):
    read = []
    load = loading.load
    monkeypatch.setattr(loading, "load", lambda path, *more: read.append(path) or load(path, *more))
    translator = Translator(str(stock.data), [str(stock.checkpoint)], SHORT)
    assert translator.trained_pairs == list(untrained.PAIRS)
    first = [translator.translate(pair, "test") for pair in ("en-bb", "en-aa", "en-cc")]
    assert read == [str(stock.checkpoint)]
    assert [len(text.hypotheses) for text in first] == [11, 14, 12]
    alone = Translator(str(stock.data), [str(stock.checkpoint)], SHORT).translate("en-cc", "test")
    assert alone == first[2]


def test_a_model_of_the_task_translation_has_one_pair(tmp_path):
    register()
    data, checkpoint = untrained.make_data(tmp_path / "data"), tmp_path / "checkpoint.pt"
    untrained.save_model(data, checkpoint, *untrained.ONE_PAIR)
    translator = Translator(str(data), [str(checkpoint)], SHORT)
    assert translator.trained_pairs == ["en-bb"]
    assert len(translator.translate("en-bb", "test").hypotheses) == 11


def test_pairs_that_training_read_from_a_file_are_known_without_it(sparse, tmp_path):
    file = tmp_path / "pairs.txt"
    file.write_text("en-bb\n")
    untrained.save_model(sparse.data, tmp_path / "a.pt", *untrained.SPARSE, "--lang-pairs", str(file))
    file.unlink()
    assert Translator(str(sparse.data), [str(tmp_path / "a.pt")], SHORT).trained_pairs == ["en-bb"]


def test_there_is_one_type_of_half_precision():
    with refused("--bf16"):
        Decoding(fp16=True, bf16=True)


def test_fairseq_generate_translates_in_bfloat16_as_we_do(sparse, tmp_path):
    def generated(*options):
        hypotheses, _, _ = fairseq_generate(sparse, "aa", tmp_path, *options, task="translation_heated")
        return list(hypotheses.values()), re.findall(
            r"^H-\S+\t(\S+)", (tmp_path / "generate-test.txt").read_text(), re.M
        )

    (hypotheses, scores), (_, scores_in_float32) = generated("--bf16"), generated()
    assert hypotheses == translate(sparse, decoding=replace(SHORT, bf16=True), references="fairseq").hypotheses
    assert len(scores) == 13 and scores != scores_in_float32


def test_subwords_are_joined_as_asked_or_as_found_out(stock, tmp_path):
    def first(post_process=None):
        translator = Translator(str(stock.data), [str(stock.checkpoint)], SHORT, post_process=post_process)
        return translator.translate("en-bb", "test").hypotheses[0]

    pieces = first("none").split(" ")
    assert 0 < sum(piece.startswith("▁") for piece in pieces) < len(pieces)
    assert first() == first("sentencepiece") == "".join(pieces).replace("▁", " ").strip()
    assert first("subword_nmt") == " ".join(pieces)
    assert [subword_marks(of) for of in (["▁a", "b"], ["a@@", "b"], ["1"])] == ["sentencepiece", "subword_nmt", None]
    (tmp_path / "spm.model").touch()  # which decides
    assert joining_of(str(tmp_path), Dictionary()) == "sentencepiece"


def test_languages_can_be_given_where_the_checkpoints_list_is_gone(stock, tmp_path):
    state = torch.load(stock.checkpoint)
    state["cfg"]["task"].lang_dict = str(tmp_path / "moved.txt")
    state["cfg"]["task"].langs = None
    torch.save(state, tmp_path / "model.pt")
    data, paths = str(stock.data), [str(tmp_path / "model.pt")]
    with pytest.raises(FileNotFoundError):
        Translator(data, paths, SHORT).translate("en-aa", "test")
    text = Translator(data, paths, SHORT, langs=("aa", "bb", "cc", "en")).translate("en-aa", "test")
    assert text == Translator(data, [str(stock.checkpoint)], SHORT).translate("en-aa", "test")


def test_bad_checkpoints_are_said_in_one_sentence(stock, tmp_path):
    def translator(path):
        return Translator(str(stock.data), [str(path)], SHORT)

    (tmp_path / "cut.pt").write_bytes(stock.checkpoint.read_bytes()[:1000])
    state = torch.load(stock.checkpoint)
    torch.save({**state, "cfg": {"task": Namespace(task="language_modeling")}}, tmp_path / "lm.pt")
    for name in ("nothing.pt", "cut.pt", "lm.pt"):
        with refused(name):
            translator(tmp_path / name)


def test_data_for_another_dictionary_is_said_in_one_sentence(stock, tmp_path):
    data = shutil.copytree(stock.data, tmp_path / "data")
    path = data / "test.en-aa.en.bin"
    path.write_bytes(path.read_bytes()[:-4] + b"\xff\x7f" + path.read_bytes()[-2:])
    with refused("test.en-aa.en.bin"):
        translate(stock, data=data)
    for path in data.glob("dict.*"):
        path.write_text(path.read_text() + "more 1\n")
    with refused("checkpoint.pt", first=False):
        translate(stock, data=data)


def test_half_precision_translates_too(stock):
    translator = Translator(str(stock.data), [str(stock.checkpoint)], replace(SHORT, fp16=True))
    assert len(translator.translate("en-bb", "test").hypotheses) == 11
    assert {parameter.dtype for model in translator.models for parameter in model.parameters()} == {torch.float16}
