"""`mtmoe import-hf` and `export-hf`: a folder becomes a file and a folder again; what was trained computes the same."""

import dataclasses
import json
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.implementations import BertWordPieceTokenizer

from fairseq_mtmoe.checkpoints import file_io
from fairseq_mtmoe.nlu.bert import pretrained as encoder_file
from fairseq_mtmoe.nlu.bert.heads import HeadSize
from fairseq_mtmoe.nlu.bert.key_map import KEYS
from fairseq_mtmoe.nlu.bert.model import note_sizes
from fairseq_mtmoe.nlu.bert.pretrained import PretrainedEncoder
from fairseq_mtmoe.nlu.t5 import pretrained as t5_files
from tests.helpers import t5
from tests.helpers.bert import CONFIGS, TINY, TOKENIZER, batch, perturb, pretrained, tiny_encoder
from tests.helpers.encoders import HEADS, CAMTLConfig, CAMTLModel, MTDenseConfig, MTDenseModel, MTTaGConfig, MTTaGModel
from tests.helpers.invoked import mtmoe
from tests.helpers.refused import refused
from tests.helpers.t5 import ALL_CONFIGS, texts, tiny_t5

from fairseq_mtmoe.nlu.t5_fine_tuned.model import FineTunedT5Config  # isort: skip

export = partial(mtmoe, "export-hf")


@pytest.fixture
def folder(tmp_path):
    """A folder as `transformers` of some years ago wrote it."""
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(TINY.for_hugging_face()))
    for name, text in TOKENIZER.items():
        (folder / name).write_bytes(text.encode())
    tensors = {f"bert.{KEYS.hugging_face_key(name)}": value for name, value in pretrained().state.items()}
    torch.save({**tensors, "cls.seq_relationship.bias": torch.zeros(2)}, folder / "pytorch_model.bin")
    return folder


def test_a_folder_becomes_a_file_and_a_folder_again(folder, tmp_path):
    encoder, again = tmp_path / "encoder.pt", tmp_path / "again"
    said = mtmoe("import-hf", folder, encoder)
    assert said == f"{encoder}: bert, 0.0 million parameters; 1 other tensor left out\n"
    assert encoder_file.load(encoder).tokenizer == TOKENIZER
    pytest.importorskip("safetensors")
    assert mtmoe("export-hf", encoder, again) == f"{again}: bert for transformers\n"
    assert {file.name for file in again.iterdir()} == {"config.json", "model.safetensors", *TOKENIZER}
    mtmoe("import-hf", again, encoder, "--overwrite")
    found, wanted = encoder_file.load(encoder), pretrained()
    assert found.config == wanted.config
    assert all(torch.equal(found.state[name], value) for name, value in wanted.state.items())


def test_a_t5_becomes_a_file_and_a_folder_again(tmp_path):
    pytest.importorskip("safetensors")
    wanted, folder, file = t5.pretrained(), tmp_path / "folder", tmp_path / "t5.pt"
    t5_files.write_folder(wanted, folder)
    mtmoe("import-hf", folder, file)
    again = tmp_path / "again"
    assert mtmoe("export-hf", file, again) == f"{again}: t5 for transformers\n"
    for name in ("config.json", "model.safetensors", "spiece.model"):
        assert (again / name).read_bytes() == (folder / name).read_bytes()


def test_what_is_there_stays(folder, tmp_path):
    encoder = tmp_path / "encoder.pt"
    encoder.write_text("mine")
    with refused("OUT", "--overwrite"):
        mtmoe("import-hf", folder, encoder)
    (folder / "config.json").write_text("{}")
    with refused("model_type"):
        mtmoe("import-hf", folder, encoder, "--overwrite")
    assert encoder.read_text() == "mine"


# ---- what was trained ----


def write(path, model, cfg, name, task=None, **task_state):
    state = {
        "cfg": {"model": {**dataclasses.asdict(cfg), "_name": name}, "task": task or {"_name": "glue"}},
        "model": model.state_dict(), "optimizer_history": [{}], "task_state": task_state,
    }  # fmt: skip
    file_io.save(state, str(path))


def serialized_tokenizer():
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "A", "##b", "c"]
    return BertWordPieceTokenizer({piece: n for n, piece in enumerate(pieces)}, lowercase=False)._tokenizer.to_str()


def trained(path, heads, config=TINY, kind=MTDenseModel, options=MTDenseConfig, name="mt_dense", **more):
    """An encoder with these heads, whose checkpoint is written."""
    cfg = options(dropout=0.0, attention_dropout=0.0, **more)
    note_sizes(cfg, config, heads)
    begun = PretrainedEncoder(config, {}, tiny_encoder(config).state_dict())
    model = kind.build_model(cfg, SimpleNamespace(pretrained=begun, begins_with_checkpoint=False)).eval()
    perturb(model)
    write(path, model, cfg, name, tokenizer=serialized_tokenizer())
    return model


@torch.no_grad()
def theirs(loaded, inputs):
    mask = inputs["tokens"].ne(loaded.config.pad_token_id).long()
    return loaded.eval()(inputs["tokens"], attention_mask=mask, token_type_ids=inputs["token_type_ids"])


@pytest.mark.parametrize(
    ("kind", "task", "labels"),
    [("bert", "mnli", ("0", "1", "2")), ("bert", "stsb", ("value",)), ("roberta", "rte", ("yes", "no"))],
)
def test_an_encoder_of_one_task_classifies_with_the_labels_of_its_training(kind, task, labels, tmp_path):
    inputs, transformers = batch(CONFIGS[kind]), pytest.importorskip("transformers")
    named = '{"rte": ["yes", "no"]}'
    model = trained(tmp_path / "checkpoint.pt", {task: HeadSize(len(labels))}, CONFIGS[kind], head_labels=named)
    assert f", with the head of {task}\n" in export(tmp_path / "checkpoint.pt", tmp_path / "folder")
    loaded, info = transformers.AutoModelForSequenceClassification.from_pretrained(
        tmp_path / "folder", output_loading_info=True
    )
    assert not info["missing_keys"] and not info["unexpected_keys"]
    rows = torch.arange(len(inputs["tokens"])).unsqueeze(1)
    spans = torch.empty(len(rows), 0, 2, dtype=torch.long)
    wanted = model(inputs["tokens"], inputs["token_type_ids"], {task: rows}, {task: spans})[task]
    torch.testing.assert_close(theirs(loaded, inputs).logits, wanted.detach(), rtol=1e-5, atol=1e-5)
    assert tuple(loaded.config.id2label.values()) == labels
    assert loaded.config.problem_type == ("regression" if task == "stsb" else "single_label_classification")


def test_an_encoder_of_several_tasks_leaves_its_heads_and_takes_its_tokenizer_along(tmp_path):
    """AutoTokenizer reads text as the run did, and not as BERT's class would: in its own case."""
    inputs, transformers = batch(), pytest.importorskip("transformers")
    model = trained(tmp_path / "checkpoint.pt", HEADS)
    said = export(tmp_path / "checkpoint.pt", tmp_path / "folder")
    assert "left out: the heads of three, value, choice, words" in said
    found = theirs(transformers.AutoModel.from_pretrained(tmp_path / "folder"), inputs).last_hidden_state
    real, wanted = inputs["tokens"].ne(TINY.pad_token_id), model.encoder(**inputs).hidden.detach()
    torch.testing.assert_close(found[real], wanted[real], rtol=1e-5, atol=1e-5)
    read = transformers.AutoTokenizer.from_pretrained(tmp_path / "folder")
    wanted = Tokenizer.from_str(serialized_tokenizer()).encode("Ab a", "c")
    found = read("Ab a", "c")
    assert (found["input_ids"], found["token_type_ids"]) == (wanted.ids, wanted.type_ids)
    assert read(["a", "a b"], padding=True)["input_ids"][0][-1] == read.pad_token_id


@pytest.mark.parametrize("config", ALL_CONFIGS.values(), ids=ALL_CONFIGS)
def test_a_trained_t5(config, tmp_path):
    transformers = pytest.importorskip("transformers")
    cfg = FineTunedT5Config(t5=json.dumps(dataclasses.asdict(config)), dropout=0.0)
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


def test_what_has_no_class_a_damaged_checkpoint_and_a_folder_in_the_way_are_said(tmp_path):
    path, heads = tmp_path / "checkpoint.pt", {"rte": HeadSize(2)}
    for kind, options, name in ((MTTaGModel, MTTaGConfig, "mt_tag"), (CAMTLModel, CAMTLConfig, "ca_mtl")):
        trained(path, heads, kind=kind, options=options, name=name, task_names="rte")
        with refused(path.name, "--arch mt_dense"):
            export(path, tmp_path / "folder")
    trained(path, heads)
    with refused("EXPORTED"):
        export(path, tmp_path)
    state = file_io.load(str(path))
    rows = {"model": {**state["model"], "heads.rte.weight": torch.zeros(1)}}
    infinite = {"model": {**state["model"], "heads.rte.weight": torch.full((2, 8), torch.inf)}}
    for changes in (rows, infinite, {"task_state": {}}, {"cfg": {"model": {"_name": "base_sparse"}}}):
        file_io.save({**state, **changes}, str(path))
        with refused(path.name):
            export(path, tmp_path / "folder")
    path.write_bytes(path.read_bytes()[:-100])
    with refused(path.name) as caught:
        export(path, tmp_path / "folder")
    assert "copy it again" in str(caught.value) and "import-hf" not in str(caught.value)
    assert not (tmp_path / "folder").exists()
