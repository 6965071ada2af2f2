"""Lines of text become those that `mtmoe evaluate` finds, without a data directory, one line for each."""

import re
from dataclasses import replace

import pytest
import torch

from fairseq_mtmoe.core.errors import UserError
from fairseq_mtmoe.translation.decode.decode import Decoding
from fairseq_mtmoe.translation.decode.lines import Lines
from fairseq_mtmoe.translation.decode.text_batches import Translated, bits, joined
from fairseq_mtmoe.translation.decode.text_translator import TextTranslator
from fairseq_mtmoe.translation.decode.translator import Translator
from tests.helpers import untrained
from tests.helpers.refused import refused
from tests.helpers.translated_text import LIMIT, PEMT, SPARSE, make_text_data, sources

SHORT = Decoding(beam=3, max_len_b=15, lenpen=0.7)
PAIRS = list(untrained.PAIRS)
CODE = re.compile(r"__(en|aa|bb|cc)__|\[(en|aa|bb|cc)\]")


@pytest.fixture
def model(text_data):
    """A sparse model; only the file is asked."""
    return text_data / "sparse.pt"


@pytest.fixture(scope="module")
def translator(text_data):
    return TextTranslator([str(text_data / "sparse.pt")], SHORT)


def evaluated(data, path, pair, decoding=SHORT):
    return next(Translator(str(data), str(path).split(":"), decoding).translations([pair], "test")).hypotheses


@pytest.mark.parametrize("options", [
    [*SPARSE, "--task-ids", "pair"], [*SPARSE, "--enable-lang-ids", "--lang-tok-style", "mbart"],
    [*SPARSE, "--lang-tok-replacing-bos-eos"], [*SPARSE, "--encoder-langtok-last", "--encoder-langtok", "src"],
    [*SPARSE, "--output-bias", "--sinusoids", "marian", "--decoder-begins-with-pad"], PEMT,
], ids=["pairs", "ids", "ends", "last", "marian", "pemt"])  # fmt: skip
def test_text_is_translated_as_the_test_set_is_whatever_languages_share_a_batch(text_data, tmp_path, options):
    path = tmp_path / "model.pt"
    untrained.save_model(text_data, path, *options, seed=11)
    pairs = PAIRS if options is not PEMT else ["en-aa"]
    found = {pair: evaluated(text_data, path, pair) for pair in pairs}
    wanted = {pair: [CODE.sub("", line).strip() for line in lines] for pair, lines in found.items()}
    assert found != wanted or options is PEMT  # models that babble write languages' codes, too, which are no text
    state = torch.load(path)
    state["cfg"]["task"] |= {"data": str(tmp_path / "gone"), "seed": None, "save_dir": None}  # as imported files are
    torch.save(state, path)
    translator = TextTranslator([str(path)], SHORT)
    for pair in pairs:
        assert translator.translate(sources(text_data, pair), source="en", target=pair.split("-")[1]) == wanted[pair]
    targets = [pair.split("-")[1] for pair in pairs]
    lines, sizes = Lines(sources(text_data, "en-aa")), []
    together = translator.translated(lines, "en", targets, translator.decoder(SHORT), advance=sizes.append)
    assert len(sizes) == (len(pairs) if "--lang-tok-replacing-bos-eos" in options else 1)
    for target in targets:
        apart = translator.translate(lines.lines, source="en", target=target)
        assert [best.text for best, *_ in together[target]] == apart
    assert len({str(best) for lines_of_target in together.values() for best in lines_of_target}) > 10


def test_text_is_normalised_as_prepare_normalises_training_text(text_data, translator):
    lines = sources(text_data, "en-aa")[:8]
    odd = [f"\ufeff{line.replace(' ', chr(0xA0), 1)}\t" for line in lines]
    assert odd != lines and translator.translate(odd, source="en", target="aa") == translator.translate(
        lines, source="en", target="aa"
    )


@pytest.mark.parametrize(
    ("langtoks", "named"), [({}, "damaged.pt"), ({"main": ("mined", None)}, "--langtoks-specs of the checkpoint")]
)
def test_a_damaged_state_is_told_by_one_sentence(model, tmp_path, langtoks, named):
    state = torch.load(model)
    state["task_state"]["langtoks"] = langtoks
    torch.save(state, tmp_path / "damaged.pt")
    with refused(named):
        TextTranslator([str(tmp_path / "damaged.pt")], SHORT)


def test_an_ensemble_and_a_checkpoint_without_a_vocabulary(text_data, model, tmp_path):
    stock, other = tmp_path / "stock.pt", tmp_path / "other.pt"
    untrained.save_model(text_data, stock, *untrained.STOCK)
    untrained.save_model(text_data, other, *SPARSE, seed=2)
    few = sources(text_data, "en-bb")[:5]
    both = TextTranslator([str(model), str(other)], SHORT).translate(few, source="en", target="bb")
    assert both == evaluated(text_data, f"{model}:{other}", "en-bb")[:5] != evaluated(text_data, model, "en-bb")[:5]
    with refused("stock.pt"):
        TextTranslator([str(stock)], SHORT)


def test_scores_and_several_hypotheses_are_those_of_fairseq(text_data, model, translator):
    wide = replace(SHORT, beam=4)
    old = Translator(str(text_data), [str(model)], wide)
    test_set = old.pair_data("en-cc", "test")
    generator = test_set.task.build_generator(old.models, wide.generation)
    sample = test_set.dataset.collater([test_set.dataset[number] for number in test_set.fitting])
    outputs = test_set.task.inference_step(generator, old.models, sample)
    wanted = dict(zip(sample["id"].tolist(), outputs, strict=True))
    lines = Lines(sources(text_data, "en-cc"))
    for n_best in (3, 1):
        found = translator.translated(lines, "en", ["cc"], translator.decoder(wide, n_best))["cc"]
        for line, several in enumerate(found):
            hypotheses = wanted[line][:n_best]
            assert [one.text for one in several] == [test_set.text(one["tokens"].tolist()) for one in hypotheses]
            assert [one.score for one in several] == pytest.approx([bits(float(one["score"])) for one in hypotheses])
        assert any(len({one.text for one in several}) > 1 for several in found) == (n_best > 1)


def test_samples_are_drawn_by_seed_and_batch(translator):
    given = {"source": "en", "target": "aa", "sampling": True}
    lines = ["bo da ki", "nama bo", "fu gega di", "ba"]
    first = translator.translate(lines, **given)
    torch.manual_seed(9)
    assert translator.translate(lines, **given) == first != translator.translate(lines, **given, seed=2)
    greedy = translator.translate(lines, source="en", target="aa", beam=1)
    assert translator.translate(lines, **given, sampling_topk=1) == greedy != first
    drawn = translator.decoder(replace(SHORT, sampling=True, beam=3), 3)
    for several in translator.translated(Lines(lines), "en", ["aa"], drawn)["aa"]:
        assert [one.score for one in several] == sorted((one.score for one in several), reverse=True)
    with refused("--sampling-topk"):
        translator.translate(lines, source="en", target="aa", sampling_topk=2)


def test_each_line_has_one_whatever_is_in_it(translator):
    lines = ["", "bo da", " \t ", "bo\u2028da\x85\x0b\x0c\rki", "bo da", "☃ \u0000", "\u200b"]
    found = translator.translate(lines, source="en", target="aa")
    assert len(found) == len(lines) and [bool(line) for line in found] == [False, True, False, True, True, True, False]
    assert found[1] == found[4] and not any(set(line) & {"\n", "\r", "\u2028", "\t"} for line in found)
    assert translator.translate([], source="en", target="aa") == []


def test_a_line_that_is_too_long_is_split_at_the_ends_of_sentences_or_refused(translator):
    sentences = 2 * ["bo da ki bo da?", "nama nama!”", "bo fu 3.5 bo։", "gega bo。", "di di di\u0964"]
    text = " ".join(sentences).replace("。 ", "。")
    assert translator.codec.longest == LIMIT
    apart = translator.translate(sentences, source="en", target="bb")
    assert translator.translate([text, sentences[0]], source="en", target="bb") == [" ".join(apart), apart[0]]
    long = "ba " * (2 * LIMIT)
    for lines, number in (([text, "", long], 3), ([f"Bo. {long}"], 1)):
        with pytest.raises(UserError, match=f"^Line {number} of the text must have sentences of at most {LIMIT - 2} "):
            translator.translate(lines, source="en", target="bb")
    with refused("--max-tokens"):
        translator.translate(sentences, source="en", target="bb", max_tokens=5)


def test_what_was_split_has_the_score_of_one_hypothesis():
    parts = [Translated("bo da", -2.0, 4), Translated("ki", -1.0, 2)]
    assert joined(parts, lenpen=1.0) == Translated("bo da ki", (-8 - 2) / 6, 6)
    assert joined(parts, lenpen=0.0) == Translated("bo da ki", -3.0, 6)
    assert joined([Translated("大", -1, 1), Translated("狗。", -1, 1), Translated("x", -1, 1)], 1.0).text == "大狗。x"


def test_bytes_of_characters_are_put_together(tmp_path):
    data = make_text_data(tmp_path / "data", byte_fallback=True, size=350)
    untrained.save_model(data, tmp_path / "model.pt", *SPARSE)
    codec = TextTranslator([str(tmp_path / "model.pt")], SHORT).codec
    target = codec.target("aa")
    pieces = target.encode(["bo 雪 bo"])[0]
    assert target.speller([2])(torch.tensor([*pieces, 2])) == "bo 雪 bo"
    newline = [codec.task.target_dictionary.index(piece) for piece in ("▁bo", "<0x0A>", "▁bo")]
    assert target.speller([2])(torch.tensor([*newline, 2])) == "bo  bo"


def test_a_direction_that_a_model_of_an_ensemble_was_not_trained_on_is_a_warning_once(model, tmp_path, caplog):
    state = torch.load(model)
    state["task_state"]["lang_pairs"] = PAIRS[1:]
    torch.save(state, tmp_path / "fewer.pt")
    translator = TextTranslator([str(model), str(tmp_path / "fewer.pt")], SHORT)
    for pair in (PAIRS[0], PAIRS[0], PAIRS[1]):
        translator.translate(["a b"], source="en", target=pair.split("-")[1])
    (said,) = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert said.startswith(f"{tmp_path / 'fewer.pt'} was last trained on {', '.join(PAIRS[1:])}, not on {PAIRS[0]}:")


def test_models_of_another_vocabulary_of_the_same_size_are_refused(text_data, model, tmp_path):
    state, other = torch.load(model), tmp_path / "other.pt"
    for side in state["task_state"]["vocabulary"]:
        side["symbols"] = side["symbols"][::-1]
    torch.save(state, other)
    with refused("other.pt"):
        TextTranslator([str(model), str(other)], SHORT)
    for paths in (str(other), f"{model}:{other}"):
        with refused("other.pt"):
            evaluated(text_data, paths, "en-aa")
