"""`mtmoe export-hf` of trained models: Hugging Face's classes load them, and compute the same."""

import dataclasses
import json
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.implementations import BertWordPieceTokenizer

from fairseq_mtmoe.backbones.bert.heads import HeadSize
from fairseq_mtmoe.backbones.bert.model import note_sizes
from fairseq_mtmoe.backbones.bert.pretrained import PretrainedEncoder
from fairseq_mtmoe.checkpoints import file_io
from tests.helpers.bert import CONFIGS, TINY, batch, perturb, tiny_encoder
from tests.helpers.encoders import HEADS
from tests.helpers.invoked import mtmoe
from tests.helpers.refused import refused
from tests.helpers.t5 import ALL_CONFIGS, texts, tiny_t5

from fairseq_mtmoe.models.ca_mtl import CAMTLModel  # isort: skip
from fairseq_mtmoe.models.ca_mtl.model import CAMTLConfig  # isort: skip
from fairseq_mtmoe.models.mt_tag import MTDenseModel, MTTaGModel  # isort: skip
from fairseq_mtmoe.models.t5.model import FineTunedT5Config  # isort: skip
from fairseq_mtmoe.models.mt_tag.model import MTDenseConfig, MTTaGConfig  # isort: skip

export = partial(mtmoe, "export-hf")
TRAINED = {"dropout": 0.0, "attention_dropout": 0.0}


def write(path, model, cfg, name, task=None, **task_state):
    """A checkpoint as a run leaves it."""
    state = {
        "cfg": {"model": {**dataclasses.asdict(cfg), "_name": name}, "task": task or {"_name": "glue"}},
        "model": model.state_dict(), "optimizer_history": [{}], "task_state": task_state,
    }  # fmt: skip
    file_io.save(state, str(path))


def serialized_tokenizer():
    """One that keeps capitals."""
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "A", "##b", "c"]
    return BertWordPieceTokenizer({piece: n for n, piece in enumerate(pieces)}, lowercase=False)._tokenizer.to_str()


def trained(path, heads, config=TINY, kind=MTDenseModel, options=MTDenseConfig, name="mt_dense", **more):
    """An encoder with these heads, whose checkpoint is written."""
    cfg = options(**TRAINED, **more)
    note_sizes(cfg, config, heads)
    task = SimpleNamespace(
        pretrained=PretrainedEncoder(config, {}, tiny_encoder(config).state_dict()), begins_with_checkpoint=False
    )
    model = kind.build_model(cfg, task).eval()
    perturb(model)
    write(path, model, cfg, name, tokenizer=serialized_tokenizer())
    return model


def heads_of(model, inputs):
    """What the one head says of sentences."""
    (task,) = model.heads
    rows = torch.arange(len(inputs["tokens"])).unsqueeze(1)
    spans = torch.empty(len(rows), 0, 2, dtype=torch.long)
    return model(inputs["tokens"], inputs["token_type_ids"], {task: rows}, {task: spans})[task]


def theirs(loaded, inputs):
    mask = (~inputs["padding_mask"]).long()
    return loaded(inputs["tokens"], attention_mask=mask, token_type_ids=inputs["token_type_ids"])


@pytest.mark.parametrize(("kind", "task", "size"), [("bert", "mnli", 3), ("bert", "stsb", 1), ("roberta", "mine", 2)])
def test_an_encoder_of_one_task_classifies(kind, task, size, tmp_path):
    config = CONFIGS[kind]
    transformers = pytest.importorskip("transformers")
    model = trained(tmp_path / "checkpoint.pt", {task: HeadSize(size)}, config)
    assert f", with the head of {task}\n" in export(tmp_path / "checkpoint.pt", tmp_path / "folder")
    loaded, info = transformers.AutoModelForSequenceClassification.from_pretrained(
        tmp_path / "folder", output_loading_info=True
    )
    assert not info["missing_keys"] and not info["unexpected_keys"]
    inputs = batch(config)
    with torch.no_grad():
        wanted, found = heads_of(model, inputs), theirs(loaded.eval(), inputs).logits
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    labels = {"mnli": ["entailment", "neutral", "contradiction"], "stsb": ["value"], "mine": ["0", "1"]}[task]
    assert sorted(loaded.config.id2label.values()) == sorted(labels)
    assert loaded.config.problem_type == ("regression" if task == "stsb" else "single_label_classification")


def test_an_encoder_of_several_tasks_leaves_its_heads(tmp_path):
    transformers = pytest.importorskip("transformers")
    model = trained(tmp_path / "checkpoint.pt", HEADS)
    said = export(tmp_path / "checkpoint.pt", tmp_path / "folder")
    assert "left out: the heads of three, value, choice, words" in said
    inputs = batch()
    with torch.no_grad():
        found = theirs(transformers.AutoModel.from_pretrained(tmp_path / "folder").eval(), inputs).last_hidden_state
        wanted = model.encoder(**inputs).hidden
    real = ~inputs["padding_mask"]
    torch.testing.assert_close(found[real], wanted[real], rtol=1e-5, atol=1e-5)


def test_the_tokenizer_comes_along(tmp_path):
    """AutoTokenizer reads text as the run did, and not as BERT's class would: in its own case."""
    transformers = pytest.importorskip("transformers")
    trained(tmp_path / "checkpoint.pt", {"rte": HeadSize(2)})
    export(tmp_path / "checkpoint.pt", tmp_path / "folder")
    read = transformers.AutoTokenizer.from_pretrained(tmp_path / "folder")
    wanted = Tokenizer.from_str(serialized_tokenizer()).encode("Ab a", "c")
    found = read("Ab a", "c")
    assert (found["input_ids"], found["token_type_ids"]) == (wanted.ids, wanted.type_ids)
    assert read(["a", "a b"], padding=True)["input_ids"][0][-1] == read.pad_token_id


@pytest.mark.parametrize("config", ALL_CONFIGS.values(), ids=ALL_CONFIGS)
def test_a_trained_t5(config, tmp_path):
    transformers = pytest.importorskip("transformers")
    cfg = FineTunedT5Config(t5=json.dumps(config.sizes), dropout=0.0)
    model, pieces = tiny_t5(config), torch.tensor([1, 2, 3], dtype=torch.uint8)
    write(tmp_path / "checkpoint.pt", model.half(), cfg, "t5", {"_name": "text_to_text"}, sentencepiece=pieces)
    model.float()
    assert "t5 for transformers" in export(tmp_path / "checkpoint.pt", tmp_path / "folder")
    assert (tmp_path / "folder" / "spiece.model").read_bytes() == bytes([1, 2, 3])
    loaded = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "folder").eval()
    source, target = texts((6, 6, 6)), texts((3, 3, 3))
    with torch.no_grad():
        found = loaded(input_ids=source, decoder_input_ids=target).logits
        torch.testing.assert_close(found, model(source, None, target)[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("kind", "options", "name"), [(MTTaGModel, MTTaGConfig, "mt_tag"), (CAMTLModel, CAMTLConfig, "ca_mtl")]
)
def test_what_has_no_class_is_said(kind, options, name, tmp_path):
    path = tmp_path / "checkpoint.pt"
    trained(path, {"rte": HeadSize(2)}, kind=kind, options=options, name=name, task_names="rte")
    with refused(path.name, "--arch mt_dense"):
        export(path, tmp_path / "folder")
    assert not (tmp_path / "folder").exists()


def test_a_damaged_checkpoint_or_a_folder_in_the_way(tmp_path):
    path = tmp_path / "checkpoint.pt"
    trained(path, {"rte": HeadSize(2)})
    (tmp_path / "mine").mkdir()
    with refused("the output folder"):
        export(path, tmp_path / "mine")
    state = file_io.load(str(path))
    rows = {"model": {**state["model"], "heads.rte.weight": torch.zeros(1)}}
    for changes in (rows, {"task_state": {}}, {"cfg": {"model": {"_name": "base_sparse"}}}):
        file_io.save({**state, **changes}, str(path))
        with refused(path.name):
            export(path, tmp_path / "folder")
    assert not (tmp_path / "folder").exists()
