"""Folders of Hugging Face's and our encoder files: what they hold comes back, and nothing else is taken."""

import dataclasses
import json
import os
import pickle

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fairseq_mtmoe.backbones.bert import pretrained as files
from fairseq_mtmoe.backbones.bert.config import BERT, ROBERTA, read_config
from fairseq_mtmoe.backbones.bert.key_map import hugging_face_key, our_key
from fairseq_mtmoe.backbones.hugging_face import read_weights
from fairseq_mtmoe.checkpoints import file_io
from fairseq_mtmoe.errors import UserError
from tests.helpers.bert import TINY, TINY_ROBERTA, TOKENIZER, ours_of, pretrained
from tests.helpers.damage import damaged, value_or_sentence
from tests.helpers.refused import refused

kinds = pytest.mark.parametrize("config", [TINY, TINY_ROBERTA], ids=[BERT, ROBERTA])


def write(folder, tensors=None, sizes=None, tokenizer=TOKENIZER):
    """A folder with the weights as a file of torch."""
    folder.mkdir(exist_ok=True)
    torch.save(theirs() if tensors is None else tensors, folder / "pytorch_model.bin")
    (folder / "config.json").write_text(json.dumps(TINY.for_hugging_face() if sizes is None else sizes))
    for name, text in tokenizer.items():
        (folder / name).write_bytes(text.encode())
    return folder


def theirs(rename=str):
    return {rename(hugging_face_key(name)): value for name, value in pretrained().state.items()}


def assert_same(found, wanted, **changes):
    assert found.config == dataclasses.replace(wanted.config, **changes)
    assert found.tokenizer == wanted.tokenizer and found.state.keys() == wanted.state.keys()
    assert all(torch.equal(found.state[name], value) for name, value in wanted.state.items())
    assert all(value.dtype == torch.float32 for value in found.state.values())


@kinds
def test_an_encoder_file_holds_all_of_it(config, tmp_path):
    pretrained(config).save(tmp_path / "encoder.pt")
    assert_same(files.load(tmp_path / "encoder.pt"), pretrained(config))
    assert [file.name for file in tmp_path.iterdir()] == ["encoder.pt"]


def old_name(name):
    name = f"bert.{name}"
    return name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")


def test_old_names_and_heads(tmp_path):
    heads = {"cls.predictions.bias": torch.zeros(40), "bert.embeddings.position_ids": torch.arange(24)}
    found = files.read_folder(write(tmp_path / "folder", {**heads, **theirs(rename=old_name)}))
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
    for bad in ({"a": "../folder/part-0.bin"}, {"a": 3}, {"a": ".."}, {"a": "\0"}, {}, []):
        index.write_text(json.dumps({"weight_map": bad}))
        with refused():
            files.read_folder(folder)


@kinds
def test_a_written_folder_is_read_again_by_us_and_by_transformers(config, tmp_path):
    transformers = pytest.importorskip("transformers")
    encoder = pretrained(config)
    files.write_folder(encoder, tmp_path / "folder")
    assert_same(files.read_folder(tmp_path / "folder").model, encoder)
    again = ours_of(transformers.AutoModel.from_pretrained(tmp_path / "folder"))
    assert again.config == config
    torch.testing.assert_close(dict(again.state_dict()), dict(encoder.state), rtol=0, atol=0)
    before = sorted(tmp_path.rglob("*"))
    with refused("the output folder"):
        files.write_folder(encoder, tmp_path / "folder")
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("bert.embeddings.LayerNorm.gamma", "layernorm_embedding.weight"),
        ("bert.encoder.layer.10.attention.output.LayerNorm.beta", "layers.10.self_attn_layer_norm.bias"),
        ("roberta.encoder.layer.3.attention.self.query.bias", "layers.3.self_attn.q_proj.bias"),
        *((name, None) for name in ("cls.predictions.transform.LayerNorm.gamma", "lm_head.decoder.weight")),
        *((name, None) for name in ("classifier.dense.weight", "bert.embeddings.position_ids")),
    ],
)
def test_names_of_all_ages(theirs, ours):
    assert our_key(theirs) == ours


BAD_SIZES = [
    dict(model_type="distilbert"), dict(model_type=None), dict(hidden_act="gelu_new"), dict(is_decoder=True),
    dict(position_embedding_type="relative_key"), dict(hidden_size=15), dict(hidden_size=2.5),
    dict(num_hidden_layers=10**9), dict(num_hidden_layers=5000), dict(hidden_dropout_prob=1.0),
    dict(layer_norm_eps=-1), dict(pad_token_id=40), dict(max_position_embeddings=1, model_type="roberta"),
]  # fmt: skip


@pytest.mark.parametrize("changes", BAD_SIZES, ids=str)
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


FIRST, POOLER, MORE = "embeddings.word_embeddings.weight", "pooler.dense.bias", "encoder.layer.2.output.dense.bias"


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        (FIRST, {FIRST: None}),
        (FIRST, {FIRST: torch.zeros(40, 15)}),
        (FIRST, {FIRST: torch.zeros(40, 16, dtype=torch.long)}),
        (f"bert.{FIRST}", {f"bert.{FIRST}": torch.zeros(40, 16)}),
        ("transformer.wte.weight", {"transformer.wte.weight": torch.zeros(1)}),
        (POOLER, {POOLER: "left out"}),
        ("layers.2.fc2.bias", {MORE: torch.zeros(16)}),
    ],
)
def test_tensors_that_do_not_fit_are_refused(name, changes, tmp_path):
    tensors = {name: value for name, value in {**theirs(), **changes}.items() if value != "left out"}
    with refused(name, first=False):
        files.read_folder(write(tmp_path / "folder", tensors))


def test_what_is_missing_is_named(tmp_path):
    with refused("config.json"):
        files.read_folder(tmp_path / "nowhere")
    folder = write(tmp_path / "folder", tokenizer={})
    with pytest.raises(UserError, match="json or vocab"):
        files.read_folder(folder)
    os.remove(folder / "pytorch_model.bin")
    with pytest.raises(UserError, match="safetensors or pytorch_model"):
        files.read_folder(folder)


class Attack:
    def __reduce__(self):
        return os.mkdir, ("attacked",)


def test_nothing_is_executed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = write(tmp_path / "folder", {**theirs(), "cls.bias": Attack()})
    for read in (files.read_folder, lambda folder: files.load(folder / "pytorch_model.bin")):
        with refused():
            read(folder)
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps({"cls.bias": Attack()}))
    with refused():
        files.read_folder(folder)
    assert not (tmp_path / "attacked").exists()


def test_a_truncated_file_is_to_be_written_or_fetched_anew(tmp_path):
    """And no checkpoint that lies beside it takes its place."""
    path, folder = tmp_path / "encoder.pt", write(tmp_path / "folder", theirs())
    for name in ("encoder.pt", "checkpoint_last.pt"):
        pretrained().save(tmp_path / name)
    for file in (path, folder / "pytorch_model.bin"):
        os.truncate(file, file.stat().st_size // 2)
    with pytest.raises(UserError, match="damaged; write it again with `mtmoe import-hf`"):
        files.load(path)
    with pytest.raises(UserError, match="damaged; download it again"):
        files.read_folder(folder)


@pytest.mark.parametrize(
    ("part", "changes", "name"),
    [
        ("encoder", None, "encoder.pt"),
        ("model", None, "encoder.pt"),
        ("encoder", {"vocab_size": 30}, "embed_tokens.weight"),
        ("encoder", {"size": 3}, "encoder.pt"),
        ("encoder", {"hidden_size": "16"}, "hidden_size"),
        ("encoder", {"has_pooler": 1}, "has_pooler"),
        ("tokenizer", {"../vocab.txt": ""}, "encoder.pt"),
        ("tokenizer", {"vocab.txt": 3}, "encoder.pt"),
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
    folder = tmp_path_factory.getbasetemp() / "damaged"
    wanted = write(folder)
    name = data.draw(st.sampled_from(["config.json", "pytorch_model.bin"]))
    (folder / name).write_bytes(data.draw(damaged((wanted / name).read_bytes())))
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
