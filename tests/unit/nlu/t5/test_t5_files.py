"""Folders of Hugging Face's and our files of T5s: what they hold comes back, and nothing else is taken."""

import dataclasses
import json
import shutil
from pathlib import Path

import pytest
import torch

from fairseq_mtmoe.checkpoints import file_io
from fairseq_mtmoe.core.files import read_json
from fairseq_mtmoe.nlu.data.text_split import Pieces
from fairseq_mtmoe.nlu.t5 import pretrained as files
from fairseq_mtmoe.nlu.t5.config import T5Config, read_config
from fairseq_mtmoe.nlu.t5.model import T5Model, whole_state
from tests.helpers.piece_models import trained_pieces
from tests.helpers.refused import refused
from tests.helpers.t5 import (
    ALL_CONFIGS,
    PIECES,
    SPECIAL_PIECES,
    TINY,
    TINY_1_1,
    dictionary,
    hugging_face_model,
    pretrained,
    texts,
)

OF_VERSION_4 = Path(__file__).parents[3] / "golden" / "t5_1_1_transformers_4"


def assert_same(found, wanted):
    assert found.config == wanted.config and found.sentencepiece == wanted.sentencepiece
    assert found.state.keys() == wanted.state.keys()
    assert all(torch.equal(found.state[name], value) for name, value in wanted.state.items())


def logits_of(model, inputs):
    """Those of our model with these weights."""
    ours = T5Model(model.config, dictionary(model.config)).eval()
    ours.load_state_dict(whole_state(model.state, model.config))
    with torch.no_grad():
        return ours(inputs["input_ids"], None, inputs["decoder_input_ids"])[0]


@pytest.mark.parametrize("config", ALL_CONFIGS.values(), ids=ALL_CONFIGS)
def test_a_folder_that_transformers_wrote_and_reads(config, tmp_path):
    """None of the two switches is lost: whether the output is tied, and whether states are scaled."""
    pytest.importorskip("safetensors")
    theirs = hugging_face_model(config)
    theirs.save_pretrained(tmp_path / "theirs")
    (tmp_path / "theirs" / "spiece.model").write_bytes(PIECES)
    imported = files.read_folder(tmp_path / "theirs").model
    assert imported.config == config
    inputs = {"input_ids": texts((6, 6, 6)), "decoder_input_ids": texts((3, 3, 3))}
    wanted = theirs(**inputs).logits.detach()
    torch.testing.assert_close(logits_of(imported, inputs), wanted, rtol=1e-5, atol=1e-5)
    imported.save(tmp_path / "t5.pt")
    files.write_folder(files.load(tmp_path / "t5.pt"), tmp_path / "ours")
    again = type(theirs).from_pretrained(tmp_path / "ours").eval()
    torch.testing.assert_close(again(**inputs).logits, wanted, rtol=1e-5, atol=1e-5)
    assert_same(files.read_folder(tmp_path / "ours").model, imported)


def test_a_folder_of_transformers_4(tmp_path):
    pytest.importorskip("safetensors")
    shutil.copytree(OF_VERSION_4, tmp_path / "theirs")
    (tmp_path / "theirs" / "spiece.model").write_bytes(PIECES)
    imported = files.read_folder(tmp_path / "theirs").model
    assert (imported.config.tie_word_embeddings, imported.config.scale_decoder_outputs) == (False, False)
    kept = {name: torch.tensor(value) for name, value in read_json(OF_VERSION_4 / "logits.json").items()}
    torch.testing.assert_close(logits_of(imported, kept), kept["logits"], rtol=1e-5, atol=1e-5)
    files.write_folder(imported, tmp_path / "ours")  # in the form that version 4 understands
    assert read_json(tmp_path / "ours" / "config.json")["tie_word_embeddings"] is False
    assert_same(files.read_folder(tmp_path / "ours").model, imported)


def test_pieces_of_a_folder_of_transformers_5(tmp_path):
    """It has a `tokenizer.json` in the place of `spiece.model`, and both give a text the same ids."""
    transformers = pytest.importorskip("transformers")
    lines = Path(__file__).read_text(encoding="utf-8").split("\n")
    model = trained_pieces(lines, "unigram", 200, **SPECIAL_PIECES)
    (tmp_path / "spiece.model").write_bytes(model)
    (tmp_path / "config.json").write_text('{"model_type": "t5"}')
    tokenizer = transformers.T5Tokenizer.from_pretrained(tmp_path)
    files.write_folder(pretrained(), tmp_path / "folder")
    (tmp_path / "folder" / "spiece.model").unlink()
    with refused("spiece.model"):
        files.read_folder(tmp_path / "folder")
    tokenizer.save_pretrained(tmp_path / "folder")
    pieces = Pieces(files.read_folder(tmp_path / "folder").model.sentencepiece)
    lines += ["Ｗｉｄｅ ½ ﬁne  e\u0301", " two \u3000 spaces\t", "漢 rte", ""]
    assert [pieces.token_ids(line) for line in lines] == [tokenizer(line).input_ids[:-1] for line in lines]
    assert list(pieces) == list(Pieces(model))
    path = tmp_path / "folder" / "tokenizer.json"
    whole = read_json(path)
    for changes in ({"model": {"type": "BPE"}}, {"normalizer": {"type": "NFC"}}, {"pre_tokenizer": None}):
        path.write_text(json.dumps({**whole, **changes}))
        with refused("tokenizer.json", "spiece.model"):
            files.read_folder(tmp_path / "folder")


def test_a_config_may_leave_sizes_out_but_not_have_impossible_ones():
    given = {"model_type": "t5", "vocab_size": 9, "d_model": 8, "d_kv": 4, "d_ff": 4, "num_layers": 3, "num_heads": 2}
    assert read_config(given) == T5Config(9, 8, 4, 4, 3, 3, 2)
    for name, value in (
        ("num_layers", 0), ("feed_forward_proj", "gated-silu"), ("pad_token_id", 40),
        ("tie_word_embeddings", 1), ("relative_attention_num_buckets", 6), ("relative_attention_num_buckets", 256),
    ):  # fmt: skip
        with refused(name):
            read_config({**TINY.for_hugging_face(), name: value})
    with refused("config.json", "d_model"):
        read_config({**TINY.for_hugging_face(), "d_model": None})


def test_other_files_are_refused(tmp_path):
    path, wanted = tmp_path / "t5.pt", pretrained()
    for changes, name in (
        ({"state": {}}, "encoder.embed_tokens.weight"),
        ({"config": TINY_1_1}, "encoder.layers.0.fc1_gate.weight"),
        ({"sentencepiece": b""}, "t5.pt"),
    ):
        dataclasses.replace(wanted, **changes).save(path)
        with refused(name, first=False):
            files.load(path)
    for content, name in ({"encoder": {}}, "mtmoe import-hf"), ({"cfg": {}, "model": {}}, "--finetune-from-model"):
        file_io.save(content, str(path))
        with refused("t5.pt", name):
            files.load(path)
