"""`mtmoe import-hf` and `mtmoe export-hf`: a folder becomes a file, and a folder again."""

import json

import pytest
import torch

from fairseq_mtmoe.backbones.bert import pretrained as encoder_file
from fairseq_mtmoe.backbones.bert.key_map import hugging_face_key
from fairseq_mtmoe.backbones.t5 import pretrained as t5_files
from tests.helpers import t5
from tests.helpers.bert import TINY, TOKENIZER, pretrained
from tests.helpers.invoked import mtmoe
from tests.helpers.refused import refused


@pytest.fixture
def folder(tmp_path):
    """A folder as `transformers` of some years ago wrote it."""
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(TINY.for_hugging_face()))
    for name, text in TOKENIZER.items():
        (folder / name).write_bytes(text.encode())
    tensors = {f"bert.{hugging_face_key(name)}": value for name, value in pretrained().state.items()}
    torch.save({**tensors, "cls.seq_relationship.bias": torch.zeros(2)}, folder / "pytorch_model.bin")
    return folder


def test_a_folder_becomes_a_file_and_a_folder_again(folder, tmp_path):
    encoder, again = tmp_path / "encoder.pt", tmp_path / "again"
    said = mtmoe("import-hf", folder, encoder)
    sizes = "bert, 2 blocks of 16, 0.0 million parameters, with a pooler"
    assert said == f"{encoder}: {sizes}; 1 other tensor left out\n"
    assert encoder_file.load(encoder).tokenizer == TOKENIZER
    pytest.importorskip("safetensors")
    assert mtmoe("export-hf", encoder, again) == f"{again}: bert for transformers, 39 tensors\n"
    assert {file.name for file in again.iterdir()} == {"config.json", "model.safetensors", *TOKENIZER}
    for name, text in TOKENIZER.items():
        assert (again / name).read_bytes() == text.encode()
    mtmoe("import-hf", again, encoder, "--overwrite")
    found, wanted = encoder_file.load(encoder), pretrained()
    assert found.config == wanted.config
    assert all(torch.equal(found.state[name], value) for name, value in wanted.state.items())


def test_a_t5_becomes_a_file_and_a_folder_again(tmp_path):
    pytest.importorskip("safetensors")
    wanted, folder, file = t5.pretrained(), tmp_path / "folder", tmp_path / "t5.pt"
    t5_files.write_folder(wanted, folder)
    said = mtmoe("import-hf", folder, file)
    assert said == f"{file}: t5, 2 and 3 blocks of 16, 0.0 million parameters; 0 other tensors left out\n"
    again = tmp_path / "again"
    assert mtmoe("export-hf", file, again) == f"{again}: t5 for transformers, {len(wanted.state)} tensors\n"
    for name in ("config.json", "model.safetensors", "spiece.model"):
        assert (again / name).read_bytes() == (folder / name).read_bytes()


def test_what_is_there_stays(folder, tmp_path):
    (tmp_path / "encoder.pt").write_text("mine")
    with refused("OUT", "--overwrite"):
        mtmoe("import-hf", folder, tmp_path / "encoder.pt")
    (folder / "config.json").write_text("{}")
    with refused("model_type"):
        mtmoe("import-hf", folder, tmp_path / "encoder.pt", "--overwrite")
    assert (tmp_path / "encoder.pt").read_text() == "mine"
    with refused("encoder.pt"):
        mtmoe("export-hf", tmp_path / "encoder.pt", tmp_path / "again")
    assert not (tmp_path / "again").exists()
