"""Log-probabilities of given translations are those of fairseq's `--score-reference`, and of a search's own."""

import itertools
import subprocess
import sys

import pytest
from fairseq.dataclass.configs import GenerationConfig

from fairseq_mtmoe import load_translator
from fairseq_mtmoe.core.errors import UserError
from fairseq_mtmoe.translation.decode import text_scores
from fairseq_mtmoe.translation.decode.decode import Decoding
from fairseq_mtmoe.translation.decode.lines import Lines
from fairseq_mtmoe.translation.decode.text_scores import Given
from fairseq_mtmoe.translation.decode.text_translator import TextTranslator
from fairseq_mtmoe.translation.decode.translator import Translator
from tests.helpers import untrained
from tests.helpers.refused import refused
from tests.helpers.translated_text import LIMIT, PEMT, SPARSE, texts

SMALL = Decoding(batch_size=4, cpu=True)  # several batches, whose order is not that of the lines


@pytest.fixture(scope="module")
def translator(text_data):
    return load_translator(text_data / "sparse.pt", cpu=True)


def lines_of(data, pair):
    """The sources and the targets of a pair."""
    return [(data / "raw" / f"test.{pair}.{lang}").read_text().splitlines() for lang in pair.split("-")]


def by_fairseq(data, paths, pair):
    """What fairseq-generate's scorer gives for each token of the pair's targets."""
    old = Translator(str(data), [*map(str, paths)], SMALL)
    test_set = old.pair_data(pair, "test")
    scorer = test_set.task.build_generator(old.models, GenerationConfig(score_reference=True))
    sample = test_set.dataset.collater([test_set.dataset[number] for number in range(len(test_set.dataset))])
    found = test_set.task.inference_step(scorer, old.models, sample)
    scores = {number: one["positional_scores"] for number, (one,) in zip(sample["id"].tolist(), found, strict=True)}
    return [scores[number].tolist() for number in sorted(scores)]


@pytest.mark.parametrize("options", [
    [*SPARSE, "--task-ids", "pair"], [*SPARSE, "--enable-lang-ids", "--lang-tok-style", "mbart"],
    [*SPARSE, "--lang-tok-replacing-bos-eos"], [*SPARSE, "--output-bias", "--decoder-begins-with-pad"],
    PEMT,
], ids=["pairs", "ids", "ends", "marian", "pemt"])  # fmt: skip
def test_scores_are_those_of_fairseqs_score_reference(text_data, tmp_path, options, monkeypatch):
    monkeypatch.setattr(text_scores, "_LOGITS", 1000)  # some tokens at a time
    untrained.save_model(text_data, tmp_path / "model.pt", *options)
    translator = TextTranslator([str(tmp_path / "model.pt")], SMALL)
    for pair in ("en-aa",) if options is PEMT else untrained.PAIRS:
        source, target = pair.split("-")
        found = translator.score_tokens(*lines_of(text_data, pair), source=source, target=target)
        wanted = by_fairseq(text_data, [tmp_path / "model.pt"], pair)
        assert [len(tokens) for tokens in found] == [len(values) for values in wanted]
        assert [value for tokens in found for _, value in tokens] == pytest.approx(
            [*itertools.chain(*wanted)], abs=1e-4
        )
        assert {tokens[-1][0] for tokens in found} == {"</s>"} and len({len(tokens) for tokens in found}) > 3


def test_an_ensemble_has_the_mean_probability_as_in_fairseq(text_data, tmp_path):
    model = text_data / "sparse.pt"
    untrained.save_model(text_data, tmp_path / "other.pt", *SPARSE, seed=2)
    both = load_translator(str(model), tmp_path / "other.pt", cpu=True)
    found = both.score(*lines_of(text_data, "en-bb"), source="en", target="bb")
    wanted = [sum(values) for values in by_fairseq(text_data, [model, tmp_path / "other.pt"], "en-bb")]
    alone = [sum(values) for values in by_fairseq(text_data, [model], "en-bb")]
    assert found == pytest.approx(wanted, abs=1e-3) and found != pytest.approx(alone, abs=1)


@pytest.mark.parametrize("form", [(), ("--lang-tok-replacing-bos-eos",)], ids=["code", "ends"])
def test_the_search_gave_its_hypotheses_the_same_score(text_data, tmp_path, form):
    search = Decoding(beam=3, max_len_a=0.5, max_len_b=2, lenpen=0.7, cpu=True)
    untrained.save_model(text_data, tmp_path / "model.pt", *SPARSE, *form)
    translator = TextTranslator([str(tmp_path / "model.pt")], search)
    decoder = translator.decoder(search)
    (rows,) = decoder.batches(translator.codec.rows(Lines(texts(20, 5)), "en", ["cc"]))
    written = [best for best, *_ in decoder.decode(rows)]
    found = translator.score_batch([Given(row, best.tokens) for row, best in zip(rows, written, strict=True)])
    scores = [sum(values) / len(values) ** search.lenpen for values in found]
    assert scores == pytest.approx([best.score for best in written], abs=1e-4)
    assert len({len(values) for values in found}) > 1


def test_each_pair_of_lines_has_its_score_whatever_is_beside_it(translator):
    sources, targets = ["bo da", "", "", "ki", *texts(5, 3)], ["ki", "", "bo", "", *texts(5, 4)]
    together = translator.score(sources, targets, source="en", target="aa")
    apart = [
        translator.score([one], [two], source="en", target="aa")[0] for one, two in zip(sources, targets, strict=True)
    ]
    assert together == pytest.approx(apart, abs=1e-4)
    assert together[1] == 0.0 and max(together[:1] + together[2:]) < -1
    few = translator.score_tokens(["ki", "", ""], ["", "", "bo"], source="en", target="aa")
    assert [[token for token, _ in tokens] for tokens in few] == [
        ["__aa__", "</s>"], [], ["__aa__", "▁bo", "</s>"],
    ]  # fmt: skip
    assert translator.score([], [], source="en", target="aa") == []


def test_wrong_arguments_are_told_by_their_names(translator):
    langs = dict(source="en", target="aa")
    for name, call in (
        ("lines", lambda: translator.translate("bo da", **langs)),
        ("lines", lambda: translator.translate([b"bo"], **langs)),
        ("target", lambda: translator.translate(["bo"], source="en", target="xx")),
        ("source", lambda: translator.score(["bo"], ["bo"], source="xx", target="aa")),
        ("targets", lambda: translator.score(["bo"], ["bo", "da"], **langs)),
        ("--beam", lambda: translator.translate(["bo"], **langs, beam=0)),
        ("none.pt", lambda: load_translator("none.pt")),
    ):  # fmt: skip
        with refused(name):
            call()
    two = ["bo", "bo"]
    with pytest.raises(UserError, match=r"^Line 2 of the sources must have at most "):
        translator.score(["bo", "ba. " * LIMIT], two, **langs)
    with pytest.raises(UserError, match=r"^Line 1 of the targets must have at most "):
        translator.score(two, ["ba " * 1100, "bo"], **langs)


USE = """
import logging, sys
logging.basicConfig(level=logging.INFO)
from fairseq_mtmoe import load_translator
assert not {"torch", "fairseq", "click", "numpy"} & sys.modules.keys()
translator = load_translator(sys.argv[1], cpu=True)
found = translator.translate(["bo da", ""], source="en", target="aa", beam=2, max_len_b=5)
print(len(found), len(translator.score(["bo da", ""], found, source="en", target="aa")))
"""


def test_python_gets_a_translator_without_a_word_of_fairseqs(text_data):
    command = [sys.executable, "-c", USE, text_data / "sparse.pt"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("2 2\n", "")
