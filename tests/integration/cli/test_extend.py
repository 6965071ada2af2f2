"""`mtmoe extend` gives a translator a language and leaves its others as they are, or says why not in one sentence."""

import unicodedata
from operator import ne

import pytest
import torch

from fairseq_mtmoe.checkpoints import file_io
from fairseq_mtmoe.translation.data.vocabulary import Vocabulary
from tests.helpers.invoked import mtmoe
from tests.helpers.pretrained_translators import save_translator, sentences, write_lines
from tests.helpers.refused import refused
from tests.helpers.training import train_here
from tests.helpers.translators import CASES, write_folder

EMBEDDINGS = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "decoder.output_projection.weight")

SIZES = {"layers": 2, "embed-dim": 16, "ffn-embed-dim": 24, "attention-heads": 2}
SHAPE = [word for side in ("encoder", "decoder") for name, size in SIZES.items() for word in (f"--{side}-{name}", size)]


def extend(model, out, *options, lang="luo_Latn", text="luo"):
    path = write_lines(out.with_suffix(".txt"), sentences(text, 200))
    return mtmoe("extend", model, out, "--language", lang, "--text", path, *options)


def loaded(path):
    state = file_io.load(str(path))
    return state, Vocabulary.of_state(state["task_state"])


@pytest.mark.parametrize("style", ["multilingual", "mbart"])
def test_a_language_gets_symbols_at_the_end_whose_rows_are_means(tmp_path, style):
    before = save_translator(tmp_path / "model.pt", style=style, output_bias=True).source
    said = extend(tmp_path / "model.pt", tmp_path / "out.pt", "--like", "swh_Latn,fra_Latn")
    (old, _), (new, vocabulary) = loaded(tmp_path / "model.pt"), loaded(tmp_path / "out.pt")
    symbols, code = vocabulary.source.symbols, {"multilingual": "__{}__", "mbart": "[{}]"}[style].format
    assert vocabulary.source == vocabulary.target and symbols[: len(before.symbols)] == before.symbols
    assert "ŋ" in symbols and symbols[-1] == code("luo_Latn") and new["task_state"]["langs"][-1] == "luo_Latn"
    count = len(symbols) - len(before.symbols)
    assert new["task_state"]["new_symbols"] == [count, count] and f"{count - 2} new symbols" in said
    dictionary, processor = vocabulary.source.dictionary(), before.processor
    for name in (*EMBEDDINGS, "decoder.output_projection.bias"):
        rows, known = new["model"][name], old["model"][name]
        assert torch.equal(rows[: len(known)], known) and len(rows) == len(dictionary)

        def mean(*pieces, rows=rows):
            return rows[[dictionary.index(piece) for piece in pieces]].mean(0)

        assert torch.allclose(rows[-1], mean(code("swh_Latn"), code("fra_Latn")))
        word = next(one for one in symbols[len(before.symbols) :] if one[0] == "▁" and "ŋ" not in one)
        assert torch.allclose(rows[dictionary.index(word)], mean(*processor.encode(word[1:], out_type=str)))
        everything = [processor.id_to_piece(number) for number in range(3, processor.get_piece_size())]
        assert torch.allclose(rows[dictionary.index("ŋ")], mean(*everything), atol=1e-6)
    shared = {new["model"][name].untyped_storage().data_ptr() for name in EMBEDDINGS}
    assert len(shared) == 1
    rest = new["model"].keys() - {*EMBEDDINGS, "decoder.output_projection.bias"}
    assert all(torch.equal(new["model"][name], old["model"][name]) for name in rest)


@pytest.mark.parametrize(("updates", "earlier"), [(0, 3), (7, 0)])
def test_a_second_language_follows_and_untrained_symbols_are_counted_together(tmp_path, updates, earlier):
    """A model that was trained has learned the symbols that it had got before."""
    save_translator(tmp_path / "model.pt")
    state = torch.load(tmp_path / "model.pt")
    extra = {"train_iterator": {"epoch": 9, "iterations_in_epoch": 3}, "previous_training_time": 99.0, "gate_rate": {}}
    moments = {"state": {}, "param_groups": []}
    history = [{"num_updates": updates}]
    state |= {"optimizer_history": history, "extra_state": extra, "last_optimizer_state": moments}
    state["model"] = {name: value.half() for name, value in state["model"].items()}
    state["task_state"]["new_symbols"] = [3, 3]
    torch.save(state, tmp_path / "model.pt")
    extend(tmp_path / "model.pt", tmp_path / "luo.pt")
    extend(tmp_path / "luo.pt", tmp_path / "both.pt", lang="xho_Latn", text="fr")
    (_, first), (grown, second) = loaded(tmp_path / "luo.pt"), loaded(tmp_path / "both.pt")
    assert second.source.symbols[: len(first.source.symbols)] == first.source.symbols
    assert second.source.symbols[-1] == "__xho_Latn__" and grown["task_state"]["langs"][-2:] == ["luo_Latn", "xho_Latn"]
    added = len(grown["model"][EMBEDDINGS[0]]) - len(state["model"][EMBEDDINGS[0]])
    assert grown["task_state"]["new_symbols"] == [added + earlier, added + earlier]
    # A run with the file begins.
    assert grown["extra_state"] == {"train_iterator": {"epoch": 1, "iterations_in_epoch": 0}, "gate_rate": {}}
    assert "last_optimizer_state" not in grown and {value.dtype for value in grown["model"].values()} == {torch.half}


def test_what_it_reports_is_what_text_is_cut_into(tmp_path):
    before = save_translator(tmp_path / "model.pt").source
    held = write_lines(tmp_path / "held.en", sentences("en", 100))
    said = extend(tmp_path / "model.pt", tmp_path / "out.pt", "--held-text", held)
    sides, lines = (before, loaded(tmp_path / "out.pt")[1].source), sentences("luo", 200)
    words = sum(len(line.split()) for line in lines)
    long, short = (sum(map(len, side.processor.encode(lines))) / words for side in sides)
    assert f"{long:.2f} pieces a word before, {short:.2f} now" in said
    old, new = (side.processor.encode(sentences("en", 100)) for side in sides)
    assert f"held.en: {sum(map(ne, old, new))} of 100 lines" in said


def test_new_pieces_are_those_of_text_that_prepare_would_write(tmp_path):
    """Decomposed letters, no-break spaces and soft hyphens are in no training text, so no piece has them."""
    save_translator(tmp_path / "model.pt")
    lines = [line.replace("ny", "ñy").replace("dho", "dh\u00ado") for line in sentences("luo", 200)]
    odd = [unicodedata.normalize("NFD", line).replace(" ", "\u00a0") for line in lines]
    text = write_lines(tmp_path / "odd.txt", odd)
    mtmoe("extend", tmp_path / "model.pt", tmp_path / "out.pt", "--language", "luo_Latn", "--text", text)
    added = set(loaded(tmp_path / "out.pt")[1].source.symbols) - set(loaded(tmp_path / "model.pt")[1].source.symbols)
    assert "ñ" in added and not {"\u0303", "\u00a0", "\u00ad"} & set("".join(added))


def test_what_cannot_get_a_language_is_one_sentence_and_no_file(tmp_path):
    """All codes of the model have a script."""
    save_translator(tmp_path / "model.pt")
    for options, wrong in (
        (["--language", "swh_Latn"], "--language"), (["--language", "{lang}"], "--language"),
        (["--language", "luo\x01"], "--language"), (["--language", "luo"], "--language"),
        (["--like", "swa_Latn"], "--like"),
    ):  # fmt: skip
        with refused(wrong):
            extend(tmp_path / "model.pt", tmp_path / "out.pt", *options)
    empty = write_lines(tmp_path / "empty.txt", ["", " "])
    with refused("--text", "empty.txt"):
        mtmoe("extend", tmp_path / "model.pt", tmp_path / "out.pt", "--language", "luo_Latn", "--text", empty)
    save_translator(tmp_path / "model.pt", langtoks=(None, None))
    with refused("MODEL"):
        extend(tmp_path / "model.pt", tmp_path / "out.pt")
    assert not (tmp_path / "out.pt").exists()


def test_a_code_that_nothing_taught_is_like_no_other(tmp_path):
    """Marian's only source has no token: its row is zeros, and its bias lets nobody write it."""
    write_folder(tmp_path / "theirs", CASES["marian_multilingual"])
    mtmoe("import-hf", tmp_path / "theirs", tmp_path / "model.pt")
    with refused("--like"):
        extend(tmp_path / "model.pt", tmp_path / "out.pt", "--like", "eng", lang="luo")
    extend(tmp_path / "model.pt", tmp_path / "out.pt", lang="luo")
    extend(tmp_path / "model.pt", tmp_path / "same.pt", "--like", "deu,fra", lang="luo")
    found, wanted = (loaded(tmp_path / name)[0]["model"] for name in ("out.pt", "same.pt"))
    assert all(torch.equal(value, wanted[name]) for name, value in found.items())


def test_odd_text_gives_a_file_that_can_be_read(tmp_path):
    save_translator(tmp_path / "model.pt")
    text = write_lines(tmp_path / "odd.txt", ["a\0b \0\0 \x07"] * 30)
    options = ("--language", "luo_Latn@formal", "--text", text, "--new-pieces", 10**9)
    mtmoe("extend", tmp_path / "model.pt", tmp_path / "out.pt", *options)
    _, vocabulary = loaded(tmp_path / "out.pt")
    assert vocabulary.source.processor.get_piece_size() and "\0" not in vocabulary.source.symbols


@pytest.mark.parametrize("gates", ["task", "base"])
def test_a_sparse_model_that_tells_languages_apart_gets_a_gate_for_it(tmp_path, gates):
    save_translator(tmp_path / "model.pt")
    mtmoe("upcycle", tmp_path / "model.pt", tmp_path / "sparse.pt", "--num-experts", 3, "--expert-gates", gates)
    said = extend(tmp_path / "sparse.pt", tmp_path / "out.pt", "--like", "swh_Latn")
    assert "luo_Latn" in said
    (old, _), (new, vocabulary) = loaded(tmp_path / "sparse.pt"), loaded(tmp_path / "out.pt")
    assert new["cfg"]["model"]["task_names"].split(",") == new["task_state"]["langs"]
    gate = "encoder.layers.1.moe.gate.weight"
    grown = new["model"][gate][len(old["model"][gate]) :]
    assert torch.equal(grown, old["model"][gate][1:2]) if gates == "task" else not len(grown)
    assert len(new["model"][EMBEDDINGS[0]]) == vocabulary.source.size


def fixed(path, num_experts):
    """A model with an expert for each language; returns the name of one layer's experts, which differ."""
    dense, expert = path.with_suffix(".dense.pt"), "decoder.layers.1.moe.experts.fc1_weight"
    save_translator(dense)
    mtmoe("upcycle", dense, path, "--num-experts", num_experts, "--expert-gates", "fixed")
    state = torch.load(path)
    state["model"][expert] += torch.arange(num_experts).reshape(-1, 1, 1)
    state["optimizer_history"][0]["criterion_name"] = ""
    torch.save(state, path)
    return expert


@pytest.mark.parametrize("num_experts", [3, 5])
def test_a_language_gets_a_copy_of_an_expert(tmp_path, num_experts):
    """There may be experts of no language."""
    expert = fixed(tmp_path / "sparse.pt", num_experts)
    said = extend(tmp_path / "sparse.pt", tmp_path / "first.pt")
    old, new = (torch.load(tmp_path / name)["model"][expert] for name in ("sparse.pt", "first.pt"))
    assert torch.equal(new, torch.cat([old[:3], old[:1], old[4:]])) and "copy of the one for eng_Latn" in said
    said = extend(tmp_path / "sparse.pt", tmp_path / "out.pt", "--like", "swh_Latn,fra_Latn")
    old, new = (torch.load(tmp_path / name)["model"][expert] for name in ("sparse.pt", "out.pt"))
    assert torch.equal(new, torch.cat([old[:3], old[1:2], old[4:]]))
    assert f"--num-experts {len(new)}" in said


def test_a_model_with_an_expert_for_each_language_learns_another(tmp_path):
    expert, model, data = fixed(tmp_path / "sparse.pt", 3), tmp_path / "out.pt", tmp_path / "data"
    extend(tmp_path / "sparse.pt", model, "--like", "swh_Latn")
    (tmp_path / "raw").mkdir()
    for split, size in {"train": 40, "valid": 5, "test": 6}.items():
        for side in ("en", "luo"):
            write_lines(tmp_path / "raw" / f"{split}.en-luo.{side}", sentences(side, size))
    options = ("--recipe", "folder", "--workers", 1, "--vocabulary-of", model)
    said = mtmoe("prepare", "corpora", tmp_path / "raw", data, *options)
    assert "--init-model" not in said and f"--num-experts 4 --finetune-from-model {model}" in said
    train_here(
        data, tmp_path / "run", "--task", "translation_heated", "--arch", "base_moe", "--expert-gates", "fixed",
        "--num-experts", 4, "--finetune-from-model", model, "--lang-dict", data / "langs.txt", "--lang-pairs",
        data / "lang_pairs.txt", "--encoder-langtok", "src", "--decoder-langtok", "--share-all-embeddings", *SHAPE,
        "--max-tokens", 400, "--max-update", 3,
    )  # fmt: skip
    before, after = (torch.load(path)["model"][expert] for path in (model, tmp_path / "run" / "checkpoint_last.pt"))
    assert torch.equal(after[:3], before[:3]) and not torch.equal(after[3], before[3])
    text = write_lines(tmp_path / "in.txt", sentences("en", 3))
    translated = mtmoe("translate", tmp_path / "run" / "checkpoint_last.pt", "--from", "eng_Latn", "--to", "luo_Latn",
                       "--input", text, "--cpu")  # fmt: skip
    assert len(translated.splitlines()) >= 3
