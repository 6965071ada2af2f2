"""fairseq's own files of a pretrained translator are the same model as in a file of `mtmoe import-hf`."""

import shutil
from argparse import Namespace

import pytest
import torch

from fairseq_mtmoe import register
from fairseq_mtmoe.checkpoints import file_io
from tests.helpers.invoked import mtmoe
from tests.helpers.refused import refused
from tests.helpers.translators import CASES, write_folder

pytest.importorskip("transformers")
register()  # torch.load of options
EMBEDDINGS = "encoder.embed_tokens.weight"
LANGUAGES = {"mbart50": (53, "mbart"), "m2m": (100, "multilingual")}  # number of codes, with the mask after them


@pytest.fixture(params=LANGUAGES)
def imported(request, tmp_path):
    """The content of a file of `mtmoe import-hf`, and a folder with the same model as fairseq saves it."""
    write_folder(tmp_path / "theirs", CASES[request.param])
    mtmoe("import-hf", tmp_path / "theirs", tmp_path / "wanted.pt")
    content = file_io.load(str(tmp_path / "wanted.pt"))
    folder = tmp_path / "fairseqs"
    folder.mkdir()
    settings, (count, style) = content["task_state"], LANGUAGES[request.param]
    (side,) = settings["vocabulary"]
    symbols = [name for name in side["symbols"] if not name.startswith("madeup")]
    rows = 4 + len(symbols)
    (folder / "dict.txt").write_text("".join(f"{name} 1\n" for name in symbols[:-count]), encoding="utf-8")
    (folder / "spm.model").write_bytes(side["model"].numpy().tobytes())
    tokens = {"mbart": {"encoder_langtok": "src", "decoder_langtok": True},  # or both at once, by the kind of data
              "multilingual": {"langtoks": {"main": ("src", "tgt")}, "encoder_langtok": None}}[style]  # fmt: skip
    names = {"arch": "mbart_large", "task": "translation_multi_simple_epoch"}
    args = Namespace(**content["cfg"]["model"], **names, **tokens, lang_tok_style=style, langs=settings["langs"])
    tables = [name for name in content["model"] if name.endswith(("embed_tokens.weight", "output_projection.weight"))]
    model = {**content["model"], **{name: content["model"][name][:rows].clone() for name in tables}}
    del model["decoder.output_projection.weight"]
    torch.save({"args": args, "model": model, "optimizer_history": [{"num_updates": 9}]}, folder / "model.pt")
    return content, folder, model


def test_it_is_the_same_model(imported, tmp_path):
    content, folder, model = imported
    mtmoe("import-hf", folder, tmp_path / "ours.pt")
    found = file_io.load(str(tmp_path / "ours.pt"))
    assert found["model"].keys() == content["model"].keys() and found["cfg"]["model"] == content["cfg"]["model"]
    assert all(torch.equal(value, found["model"][name]) for name, value in model.items())
    forms = ("langs", "langtoks", "lang_tok_style", "encoder_langtok_last")
    assert [found["task_state"][name] for name in forms] == [content["task_state"][name] for name in forms]


def test_what_is_wrong_or_missing_is_named(imported, tmp_path):
    _, folder, _ = imported
    state = torch.load(folder / "model.pt")
    for table, name in (torch.tensor(1.0), "model.pt"), (state["model"][EMBEDDINGS].double(), EMBEDDINGS):
        torch.save({**state, "model": {**state["model"], EMBEDDINGS: table}}, folder / "model.pt")
        with refused(name):
            mtmoe("import-hf", folder, tmp_path / "ours.pt")
    state["args"].langs = None
    torch.save(state, folder / "model.pt")
    with refused("langs.txt"):
        mtmoe("import-hf", folder, tmp_path / "ours.pt")
    (folder / "langs.txt").write_text("en\nde\n")
    with refused("model.pt", "dict.txt"):
        mtmoe("import-hf", folder, tmp_path / "ours.pt")
    shutil.copy(folder / "spm.model", folder / "other.model")
    with refused("fairseqs", "*.model"):
        mtmoe("import-hf", folder, tmp_path / "ours.pt")
    (folder / "dict.txt").unlink()
    with refused("dict.txt"):
        mtmoe("import-hf", folder, tmp_path / "ours.pt")
    with refused("OUT"):
        mtmoe("import-hf", folder, folder / "model.pt", "--overwrite")
    assert not (tmp_path / "ours.pt").exists()
