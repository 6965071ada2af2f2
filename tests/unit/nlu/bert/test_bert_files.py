"""Folders of Hugging Face's and our encoder files: what they hold comes back, and nothing else is taken."""

import dataclasses
import json
import os

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fairseq_mtmoe.checkpoints import file_io
from fairseq_mtmoe.checkpoints.hugging_face import read_weights
from fairseq_mtmoe.nlu.bert import pretrained as files
from fairseq_mtmoe.nlu.bert.config import BERT, ROBERTA, read_config
from fairseq_mtmoe.nlu.bert.key_map import KEYS
from tests.helpers.bert import TINY, TINY_ROBERTA, TOKENIZER, ours_of, pretrained
from tests.helpers.damage import damaged, value_or_sentence
from tests.helpers.refused import refused


def write(folder, tensors=None, sizes=None, tokenizer=TOKENIZER):
    """A folder with the weights as a file of torch."""
    folder.mkdir(exist_ok=True)
    torch.save(theirs() if tensors is None else tensors, folder / "pytorch_model.bin")
    (folder / "config.json").write_text(json.dumps(TINY.for_hugging_face() if sizes is None else sizes))
    for name, text in tokenizer.items():
        (folder / name).write_bytes(text.encode())
    return folder


def theirs():
    return {KEYS.hugging_face_key(name): value for name, value in pretrained().state.items()}


def assert_same(found, wanted, **changes):
    assert found.config == dataclasses.replace(wanted.config, **changes)
    assert found.tokenizer == wanted.tokenizer and found.state.keys() == wanted.state.keys()
    assert all(torch.equal(found.state[name], value) for name, value in wanted.state.items())
    assert all(value.dtype == torch.float32 for value in found.state.values())


@pytest.mark.parametrize("prefix", ["bert", "roberta"])
def test_old_names_and_heads(prefix, tmp_path):
    heads = {"lm_head.decoder.weight": torch.zeros(40), f"{prefix}.embeddings.position_ids": torch.arange(24)}
    old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    tensors = {}
    for name, value in theirs().items():
        stem = next((stem for stem in old if name.endswith(stem)), "")
        tensors[f"{prefix}.{name.removesuffix(stem)}{old.get(stem, '')}"] = value
    found = files.read_folder(write(tmp_path / "folder", {**heads, **tensors}))
    assert_same(found.model, pretrained())
    assert found.left_out == tuple(heads)


def test_a_folder_without_a_pooler_and_in_half_precision(tmp_path):
    tensors = {name: value.bfloat16() for name, value in theirs().items() if "pooler" not in name}
    found = files.read_folder(write(tmp_path / "folder", tensors)).model
    assert not found.config.has_pooler and found.state["embed_tokens.weight"].dtype == torch.float32
    assert torch.equal(found.state["layers.1.fc2.bias"], tensors["encoder.layer.1.output.dense.bias"].float())


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.safetensors"])
def test_weights_in_parts(name, tmp_path):
    save = pytest.importorskip("safetensors.torch").save_file if "safe" in name else torch.save
    folder, tensors = write(tmp_path / "folder"), theirs()
    os.remove(folder / "pytorch_model.bin")
    names = {tensor: f"part-{number % 2}.bin" for number, tensor in enumerate(tensors)}
    for part in set(names.values()):
        save({tensor: value for tensor, value in tensors.items() if names[tensor] == part}, folder / part)
    index = folder / f"{name}.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": names}))
    assert_same(files.read_folder(folder).model, pretrained())
    for bad in ({"a": "../folder/part-0.bin"}, {"a": 3}, {"a": "\0"}, []):
        index.write_text(json.dumps({"weight_map": bad}))
        with refused():
            files.read_folder(folder)


@pytest.mark.parametrize("config", [TINY, TINY_ROBERTA], ids=[BERT, ROBERTA])
def test_a_written_file_or_folder_is_read_again_by_us_and_by_transformers(config, tmp_path):
    transformers = pytest.importorskip("transformers")
    encoder = pretrained(config)
    encoder.save(tmp_path / "encoder.pt")
    assert_same(files.load(tmp_path / "encoder.pt"), encoder)
    files.write_folder(encoder, tmp_path / "folder")
    assert_same(files.read_folder(tmp_path / "folder").model, encoder)
    again = ours_of(transformers.AutoModel.from_pretrained(tmp_path / "folder"))
    assert again.config == config
    torch.testing.assert_close(dict(again.state_dict()), dict(encoder.state), rtol=0, atol=0)
    before = sorted(tmp_path.rglob("*"))
    with refused("folder"):
        files.write_folder(encoder, tmp_path / "folder")
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("changes", [
    dict(model_type="distilbert"), dict(hidden_act="gelu_new"), dict(is_decoder=True), dict(hidden_size=15),
    dict(hidden_size=2.5), dict(num_hidden_layers=5000), dict(hidden_dropout_prob=1.0), dict(layer_norm_eps=-1),
    dict(pad_token_id=40), dict(max_position_embeddings=1, model_type="roberta"),
], ids=str)  # fmt: skip
def test_what_is_no_bert_is_refused(changes, tmp_path):
    with refused(next(iter(changes))):
        files.read_folder(write(tmp_path / "folder", sizes={**TINY.for_hugging_face(), **changes}))


def test_sizes_that_may_be_left_out():
    sizes = TINY_ROBERTA.for_hugging_face()
    for name in ("hidden_act", "layer_norm_eps", "pad_token_id", "initializer_range", "architectures"):
        del sizes[name]
    assert read_config(sizes, has_pooler=True) == dataclasses.replace(TINY_ROBERTA, layer_norm_eps=1e-12)
    del sizes["hidden_size"]
    with refused("config.json", "hidden_size"):
        read_config(sizes, has_pooler=True)


FIRST = "embeddings.word_embeddings.weight"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (FIRST, None),
        (FIRST, torch.zeros(40, 15)),
        (FIRST, torch.zeros(40, 16, dtype=torch.long)),
        (f"bert.{FIRST}", torch.zeros(40, 16)),
        ("transformer.wte.weight", torch.zeros(1)),
        ("pooler.dense.bias", "missing"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(name, value, tmp_path):
    tensors = {**theirs(), name: value}
    if value == "missing":
        del tensors[name]
    with refused(name, first=False):
        files.read_folder(write(tmp_path / "folder", tensors))


def test_a_missing_file_is_named(tmp_path):
    folder = write(tmp_path / "bare", tokenizer={})
    for needed in ("pytorch_model.bin", "config.json"):
        with refused("bare"):
            files.read_folder(folder)
        (folder / needed).unlink()
    with refused("config.json"):
        files.read_folder(folder)


@pytest.mark.parametrize(
    ("part", "changes", "name"),
    [
        ("encoder", None, "encoder.pt"),
        ("encoder", {"vocab_size": 30}, "embed_tokens.weight"),
        ("encoder", {"size": 3}, "encoder.pt"),
        ("encoder", {"has_pooler": 1}, "has_pooler"),
        ("tokenizer", {"../vocab.txt": ""}, "encoder.pt"),
        ("model", {"pooler.bias": torch.zeros(16).half()}, "pooler.bias"),
        ("model", {"more": torch.zeros(1)}, "encoder.pt"),
    ],
)
def test_an_encoder_file_of_another_content_is_refused(part, changes, name, tmp_path):
    pretrained().save(tmp_path / "encoder.pt")
    content = file_io.load(str(tmp_path / "encoder.pt"))
    content[part] = None if changes is None else {**content[part], **changes}
    file_io.save(content, str(tmp_path / "encoder.pt"))
    with refused(name):
        files.load(tmp_path / "encoder.pt")


quick = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), database=None)


@quick
@given(st.data())
def test_damaged_files_are_read_or_refused_in_a_sentence(tmp_path_factory, data):
    """A checksum finds every flipped bit of torch's files; safetensors have none."""
    folder = write(tmp_path_factory.getbasetemp() / "damaged")
    path = folder / data.draw(st.sampled_from(["config.json", "pytorch_model.bin"]))
    path.write_bytes(data.draw(damaged(path.read_bytes())))
    found = value_or_sentence(lambda: files.read_folder(folder))
    if found is not None:
        assert_same(found.model, pretrained(), **vars(found.model.config))


@quick
@given(st.data())
def test_damaged_safetensors_are_read_or_refused_in_a_sentence(tmp_path_factory, data):
    safetensors = pytest.importorskip("safetensors.torch")
    path = tmp_path_factory.getbasetemp() / "safetensors" / "model.safetensors"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data.draw(damaged(safetensors.save({"a.b": torch.arange(6.0).view(2, 3), "c": torch.ones(1)}))))
    found = value_or_sentence(lambda: read_weights(path.parent))
    assert found is None or all(map(torch.is_tensor, found.values()))
