"""A translator that got languages translates into older ones bit for bit as before, whatever new rows learn."""

import shutil

import pytest
import torch

from fairseq_mtmoe.translation.data.vocabulary import Vocabulary
from fairseq_mtmoe.translation.decode.decode import Decoding
from fairseq_mtmoe.translation.decode.lines import Lines
from fairseq_mtmoe.translation.decode.text_translator import TextTranslator
from fairseq_mtmoe.translation.decode.translator import Translator
from tests.helpers.invoked import mtmoe
from tests.helpers.piece_models import trained_pieces
from tests.helpers.pretrained_translators import save_translator, sentences, write_lines
from tests.helpers.training import train_here
from tests.helpers.translated_text import by_fairseq

OLD = ("swh_Latn", "fra_Latn")
SEARCH = Decoding(beam=3, max_len_b=12, cpu=True)
TEXT = [*sentences("luo", 12), *sentences("en", 12)]  # the former have pieces that only the larger model has


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """`old.pt`, `luo.pt` of it with a language, `both.pt` with two, `data`, and a trained one that likes new words."""
    folder = tmp_path_factory.mktemp("extended")
    (folder / "raw").mkdir()
    for seed, (split, size) in enumerate({"train": 60, "valid": 4, "test": 6}.items()):
        for lang in ("sw", "luo"):
            for side in ("en", lang):
                write_lines(folder / "raw" / f"{split}.en-{lang}.{side}", sentences(side, size, seed))
    save_translator(folder / "old.pt", output_bias=True)
    extend(folder, "old.pt", "luo.pt", "luo_Latn", sentences("luo", 200))
    extend(folder, "luo.pt", "both.pt", "xho_Latn", [f"ʘ{line}" for line in sentences("sw", 200)])
    options = ("--recipe", "folder", "--workers", 1)
    mtmoe("prepare", "corpora", folder / "raw", folder / "data", *options, "--vocabulary-of", folder / "both.pt")
    train_here(
        folder / "data", folder / "run", "--task", "translation_heated", "--arch", "base_dense", "--max-tokens", 400,
        "--init-model", folder / "both.pt", "--train-only", "new-embeddings", "--lang-pairs", "eng_Latn-luo_Latn",
        "--lr", 0.5, "--warmup-updates", 0, "--max-update", 4,
    )  # fmt: skip
    shutil.copy(folder / "run" / "checkpoint_last.pt", folder / "trained.pt")
    liking_new_words(folder, "trained.pt", "old.pt")
    return folder


def extend(folder, model, out, lang, lines):
    text = write_lines(folder / f"{out}.txt", lines)
    mtmoe("extend", folder / model, folder / out, "--language", lang, "--text", text)


def liking_new_words(folder, name, before):
    """Words that another file has not get a bias that no word can beat; returns them."""
    rows = [Vocabulary.of_state(torch.load(folder / one)["task_state"]).target for one in (before, name)]
    state = torch.load(folder / name)
    state["model"]["decoder.output_projection.bias"][rows[0].size :] += 50
    torch.save(state, folder / name)
    return set(rows[1].symbols[len(rows[0].symbols) :])


def found(path, targets, source="eng_Latn"):
    """Each target's best three hypotheses of each line, with their scores."""
    translator = TextTranslator([str(path)], SEARCH)
    return translator.translated(Lines(TEXT), source, targets, translator.decoder(SEARCH, 3))


def test_old_directions_are_what_they_were_bit_for_bit(folder):
    before, after = (torch.load(folder / name)["task_state"] for name in ("old.pt", "trained.pt"))
    wanted, old = found(folder / "old.pt", OLD), Vocabulary.of_state(before).source.processor
    cuts = (side.encode(TEXT, out_type=str) for side in (old, Vocabulary.of_state(after).source.processor))
    assert sum(one != other for one, other in zip(*cuts, strict=True)) >= 12
    everything = found(folder / "trained.pt", [*OLD, "luo_Latn"])
    new = {one.text for hypotheses in everything.pop("luo_Latn") for one in hypotheses}
    assert everything == wanted and len({str(hypotheses) for lang in OLD for hypotheses in wanted[lang]}) > 20
    assert not new & {one.text for hypotheses in wanted["swh_Latn"] for one in hypotheses}


def test_only_a_direction_whose_weights_training_changed_is_a_warning(folder, caplog):
    codec = TextTranslator([str(folder / "trained.pt")], SEARCH).codec
    codec.check("eng_Latn", [*OLD, "luo_Latn"])
    assert not caplog.records
    codec.check("eng_Latn", ["xho_Latn"])
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_given_translations_into_old_languages_have_the_scores_that_they_had(folder):
    translators = [TextTranslator([str(folder / name)], SEARCH) for name in ("old.pt", "trained.pt")]
    for lang in OLD:
        before, after = (one.score(TEXT, TEXT[::-1], source="eng_Latn", target=lang) for one in translators)
        assert before == after


@pytest.mark.parametrize("joined", [True, False])
def test_a_second_language_leaves_the_first_what_it_was(tmp_path, joined):
    models = [trained_pieces(sentences("en", 200)), trained_pieces(sentences("sw", 200) + sentences("fr", 200))]
    save_translator(tmp_path / "old.pt", [] if joined else models, joined=joined, output_bias=True)
    extend(tmp_path, "old.pt", "luo.pt", "luo_Latn", sentences("luo", 200))
    extend(tmp_path, "luo.pt", "both.pt", "xho_Latn", [f"ʘ{line}" for line in sentences("sw", 200)])
    liking_new_words(tmp_path, "both.pt", "luo.pt")
    for name, targets in (("old.pt", OLD), ("luo.pt", ["luo_Latn"])):
        assert found(tmp_path / "both.pt", targets) == found(tmp_path / name, targets)
    luo = found(tmp_path / "luo.pt", ["swh_Latn"], "luo_Latn")
    assert found(tmp_path / "both.pt", ["swh_Latn"], "luo_Latn") == luo
    assert found(tmp_path / "both.pt", ["xho_Latn"]) != found(tmp_path / "both.pt", ["luo_Latn"])


def test_test_sets_of_old_and_new_languages_are_translated_as_text_is(folder):
    """All together, and each by fairseq's generator; sources are as both vocabularies cut them."""
    translator = Translator(str(folder / "data"), [str(folder / "trained.pt")], SEARCH)
    text, pairs = TextTranslator([str(folder / "trained.pt")], SEARCH), ["eng_Latn-swh_Latn", "eng_Latn-luo_Latn"]
    together = {text.pair: text.hypotheses for text in translator.translations(pairs, "test")}
    wanted = {pair: text.translate(sentences("en", 6, 2), source="eng_Latn", target=pair[9:]) for pair in pairs}
    assert together == wanted and wanted[pairs[0]] != wanted[pairs[1]]
    assert {pair: by_fairseq(translator, pair).hypotheses for pair in pairs} == wanted
