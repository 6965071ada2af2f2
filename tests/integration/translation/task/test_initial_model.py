"""`--init-model`: a run of the real command line begins with a translator's file."""

import shutil
from argparse import Namespace

import pytest
import torch

from fairseq_mtmoe.checkpoints import file_io
from fairseq_mtmoe.report.run_log import read
from tests.helpers.invoked import mtmoe
from tests.helpers.pretrained_translators import LANGS, save_translator, sentences, write_lines
from tests.helpers.refused import refused
from tests.helpers.training import train_here

PAIRS = "eng_Latn-swh_Latn,eng_Latn-luo_Latn"
SETTLED = ("--task", "translation_heated", "--label-smoothing", 0, "--lang-pairs", PAIRS, "--max-tokens", 400,
           "--warmup-updates", 0)  # fmt: skip
STILL = ("--lr", 0.0, "--max-update", 1)  # validated as it began
ARCHITECTURES = {
    "dense": ("--arch", "base_dense"),
    "sparse": ("--arch", "base_moe", "--num-experts", 3, "--expert-gates", "task"),
    "conditional": ("--arch", "base_dense", "--conditional", "norm"),
    "borrowing": ("--arch", "pemt_translation", "--lang-pairs", "eng_Latn-swh_Latn", "--description", "Say it."),
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """`model.pt`, `luo.pt`, which has a language more, and `data` with the vocabulary of the latter."""
    folder = tmp_path_factory.mktemp("initial")
    (folder / "raw").mkdir()
    for seed, (split, size) in enumerate({"train": 60, "valid": 12, "test": 4}.items()):
        for lang in ("sw", "luo"):
            for side in ("en", lang):
                write_lines(folder / "raw" / f"{split}.en-{lang}.{side}", sentences(side, size, seed))
    form = {"output_bias": True, "sinusoids": "marian", "decoder_begins_with_pad": True, "activation_fn": "swish"}
    save_translator(folder / "model.pt", **form)
    state = file_io.load(str(folder / "model.pt"))
    state["task_state"]["generation"] = {"num_beams": 4}
    file_io.save(state, str(folder / "model.pt"))
    text = folder / "raw" / "train.en-luo.luo"
    mtmoe("extend", folder / "model.pt", folder / "luo.pt", "--language", "luo_Latn", "--text", text)
    options = ("--recipe", "folder", "--workers", 1)
    mtmoe("prepare", "corpora", folder / "raw", folder / "data", *options, "--vocabulary-of", folder / "luo.pt")
    return folder


def begun(folder, save_dir, *options):
    return train_here(folder / "data", save_dir, *SETTLED, "--init-model", folder / "luo.pt", *options)


def test_it_begins_as_the_model_with_its_sizes_languages_and_forms(folder, tmp_path):
    losses = {}
    typed = ("--encoder-embed-dim", 16, "--max-source-positions", 100)  # what is right, and for data
    for kind, options in ARCHITECTURES.items():
        begun(folder, tmp_path / kind, *options, *STILL, *typed)
        (valid,) = [event for event in read(tmp_path / kind) if event["event"] == "valid"]
        losses[kind] = valid["pairs"]["eng_Latn-swh_Latn"]["loss"]
    assert losses == pytest.approx(dict.fromkeys(ARCHITECTURES, losses["dense"]), abs=1e-4)
    found, given = (file_io.load(str(path)) for path in (tmp_path / "dense/checkpoint_best.pt", folder / "luo.pt"))
    assert all(torch.equal(found["model"][name], value) for name, value in given["model"].items())
    kept = found["task_state"]
    assert (kept["langs"], kept["langtoks"]) == ([*LANGS, "luo_Latn"], {"main": ("src", "tgt")})
    assert kept["generation"] == {"num_beams": 4}
    options = found["cfg"]["model"]
    assert (options["encoder_embed_dim"], options["sinusoids"], options["output_bias"]) == (16, "marian", True)


@pytest.mark.parametrize("has_args", [False, True], ids=["cfg", "args"])
def test_a_checkpoint_of_stock_fairseq_says_its_forms_too(folder, tmp_path, has_args):
    task = {
        "langs": ["swh_Latn", "eng_Latn", "luo_Latn"], "langtoks": {"main": ("tgt", None)}, "langtoks_specs": ["main"],
        "lang_tok_style": "multilingual", "encoder_langtok": "tgt", "decoder_langtok": False,
    }  # fmt: skip
    state = torch.load(folder / "luo.pt")
    del state["task_state"]
    options = state["cfg"]["model"]
    cfg = None if has_args else {"model": Namespace(**options), "task": Namespace(**task)}
    torch.save({**state, "cfg": cfg, "args": Namespace(**options, **task) if has_args else None}, tmp_path / "stock.pt")
    begun(folder, tmp_path, *ARCHITECTURES["dense"], *STILL, "--init-model", tmp_path / "stock.pt")
    found = file_io.load(str(tmp_path / "checkpoint_best.pt"))
    assert all(found["task_state"][name] == task[name] for name in ("langs", "langtoks", "lang_tok_style"))
    assert found["cfg"]["model"]["sinusoids"] == "marian"


@pytest.mark.parametrize("kind", ["dense", "borrowing"])
def test_new_embeddings_alone_leave_all_else_bit_for_bit(kind, folder, tmp_path):
    """With weight decay and moments; a model that borrows also trains its adapters and norms."""
    options = ("--lang-pairs", "eng_Latn-luo_Latn", "--lr", 0.05, "--weight-decay", 0.1, "--max-update", 6)
    run = begun(folder, tmp_path, *ARCHITECTURES[kind], *options, "--train-only", "new-embeddings")
    old, new = file_io.load(str(folder / "luo.pt")), file_io.load(str(tmp_path / "checkpoint_best.pt"))
    count = old["task_state"]["new_symbols"][0]
    assert new["task_state"]["new_symbols"] == [count, count] and run["losses"][-1] < run["losses"][0]
    changed = {name for name, value in old["model"].items() if not torch.equal(new["model"][name], value)}
    tables = {name for name in changed if "embed_tokens" in name or "output_projection" in name}
    assert len(tables) == 4 and all(kind == "borrowing" and "layer_norm" in name for name in changed - tables)
    for name in tables:
        before, after = old["model"][name], new["model"][name]
        assert torch.equal(after[:-count], before[:-count]) and (after[-count:] != before[-count:]).any()
    assert any(value.any() for name, value in new["model"].items() if ".mixture." in name) == (kind == "borrowing")


@pytest.mark.parametrize(("options", "wrong"), [
    (("--lang-pairs", "eng_Latn-swa_Latn"), "--lang-pairs"),
    (("--init-model", "missing.pt"), "missing.pt"),
    (("--init-model", "sparse.pt"), "--init-model"),
    (("--init-model", "model.pt", "--lang-pairs", "eng_Latn-swh_Latn"), "data"),
    (("--init-model", "encoder.pt"), "--init-model"),
    (("--train-only", "new-embeddings", "--init-model", "plain.pt"), "--train-only"),
    (("--encoder-embed-dim", 99), "--encoder-embed-dim"),
    (("--max-source-positions", 5000), "--max-source-positions"),
])  # fmt: skip
def test_what_cannot_begin_is_one_sentence(folder, tmp_path, options, wrong):
    state = torch.load(folder / "luo.pt")
    experts = {"encoder.layers.1.moe.gate.weight": torch.ones(1)}
    torch.save({**state, "model": {**state["model"], **experts}}, tmp_path / "sparse.pt")
    torch.save({**state, "model": {"encoder.embed_tokens.weight": torch.ones(1)}}, tmp_path / "encoder.pt")
    del state["task_state"]["new_symbols"]
    torch.save(state, tmp_path / "plain.pt")
    shutil.copy(folder / "model.pt", tmp_path / "model.pt")
    options = [tmp_path / option if str(option).endswith(".pt") else option for option in options]
    with refused(wrong):
        begun(folder, tmp_path / "run", "--arch", "base_dense", *STILL, *options)
    assert not list((tmp_path / "run").glob("*.pt"))
