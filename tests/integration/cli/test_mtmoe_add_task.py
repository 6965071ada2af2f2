"""`mtmoe add-task` writes a checkpoint with one more task, or one sentence and nothing."""

import json
from functools import partial

import pytest
import torch

from fairseq_mtmoe import register
from fairseq_mtmoe.checkpoints import file_io
from tests.helpers.benchmark import TASKS, make_benchmark, make_encoder, make_related_task, save_untrained
from tests.helpers.invoked import mtmoe
from tests.helpers.refused import refused
from tests.helpers.untrained import SPARSE, make_data, save_model

add_task, reshard = partial(mtmoe, "add-task"), partial(mtmoe, "reshard")
GATES = {f"{side}.layers.1.moe.gate.weight" for side in ("encoder", "decoder")}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Checkpoints of task-gated models, of languages with conditional norms; and a table with a task `mine`."""
    register()
    folder = tmp_path_factory.mktemp("checkpoints")
    make_benchmark(folder, {"train": 2, "dev": 2})
    make_encoder(folder / "encoder.pt")
    make_related_task(folder, 2, 2)
    save_untrained(folder, folder / "tasks.pt")
    data = make_data(folder / "data")
    save_model(data, folder / "languages.pt", *SPARSE, "--conditional", "norm")
    save_model(data, folder / "pairs.pt", *SPARSE, "--task-ids", "pair")
    save_model(data, folder / "fixed.pt", *SPARSE, "--expert-gates", "fixed", "--num-experts", "3")
    save_model(data, folder / "spare.pt", *SPARSE, "--expert-gates", "fixed", "--task-ids", "pair")
    save_model(data, folder / "groups.pt", *SPARSE, "--task-ids", "aa+bb")
    save_model(data, folder / "mixed.pt", *SPARSE, "--expert-gates", "fixed,base", "--num-experts", "3")
    state = torch.load(folder / "pairs.pt", weights_only=False)
    state["cfg"]["model"]["_name"] = "wav2vec2"
    torch.save(state, folder / "evil.pt")
    return folder


def grown_in(old, new):
    return {key for key, value in new["model"].items() if value.shape != old["model"][key].shape}


def test_a_task_of_a_benchmark_gets_a_gate_and_the_head_of_its_table(folder, tmp_path):
    out = tmp_path / "out.pt"
    more = ("--embedding-from", "wic", "--task-table", folder / "table.yaml")
    said = add_task(folder / "tasks.pt", out, "--task", "mine", *more)
    assert said == f"{out}: tasks cola, stsb, copa, wic and mine, without the optimizer state\n"
    old, new = (file_io.load(str(path)) for path in (folder / "tasks.pt", out))
    options = new["cfg"]["model"]
    assert options["task_names"] == ",".join(json.loads(options["heads"])) == f"{TASKS},mine"
    labels = json.loads(options["head_labels"])
    assert (labels["mine"], labels["wic"]) == (["second", "first"], ["false", "true"])
    added = {key: tuple(value.shape) for key, value in new["model"].items() if key not in old["model"]}
    assert added == {"heads.mine.weight": (2, 16), "heads.mine.bias": (2,)}
    assert list(new["model"])[: len(old["model"])] == list(old["model"])
    for key, value in old["model"].items():
        assert torch.equal(new["model"][key][: len(value)] if value.dim() else new["model"][key], value)
    gate = new["model"]["encoder.layers.1.moe.gate.weight"]
    assert torch.equal(gate[4], gate[3]) and new["task_state"] == old["task_state"]
    with refused("OUT"):
        add_task(folder / "tasks.pt", out, "--task", "mine", *more)


def test_a_language_gets_its_token_behind_the_others_and_a_pair_of_known_languages_a_gate(folder, tmp_path):
    said = add_task(folder / "languages.pt", tmp_path / "out.pt", "--task", "dd", "--embedding-from", "bb")
    assert "Its languages are in the order --langs aa,bb,cc,en,dd." in said
    old, new = (file_io.load(str(path)) for path in (folder / "languages.pt", tmp_path / "out.pt"))
    assert new["task_state"]["langs"] == ["aa", "bb", "cc", "en", "dd"]
    words = {"encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "decoder.output_projection.weight"}
    assert grown_in(old, new) == words | GATES | {"encoder.task_embeddings.weight"}
    for key in grown_in(old, new):
        source = -3 if key in words else 1  # `bb` is the second of three tasks and four languages
        assert torch.equal(new["model"][key][-1], old["model"][key][source])
    add_task(folder / "pairs.pt", tmp_path / "pair.pt", "--task", "bb-en", "--embedding-from", "random")
    old, new = (file_io.load(str(path)) for path in (folder / "pairs.pt", tmp_path / "pair.pt"))
    assert new["task_state"]["lang_pairs"] == ["en-aa", "en-bb", "en-cc", "bb-en"]
    assert grown_in(old, new) == GATES


def test_a_source_becomes_a_target_without_another_token(folder, tmp_path):
    add_task(folder / "languages.pt", tmp_path / "out.pt", "--task", "en", "--embedding-from", "bb")
    old, new = (file_io.load(str(path)) for path in (folder / "languages.pt", tmp_path / "out.pt"))
    assert new["task_state"]["langs"] == old["task_state"]["langs"]
    assert new["cfg"]["model"]["task_names"] == "aa,bb,cc,en"
    assert grown_in(old, new) == GATES | {"encoder.task_embeddings.weight"}


@pytest.mark.parametrize(("checkpoint", "task", "source"), [("fixed.pt", "dd", "bb"), ("spare.pt", "bb-en", "en-bb")])
def test_with_fixed_gates_it_gets_a_copy_of_an_expert(folder, tmp_path, checkpoint, task, source):
    """The fourth expert, which is new or had no task."""
    said = add_task(folder / checkpoint, tmp_path / "out.pt", "--task", task, "--embedding-from", source)
    assert ("--num-experts 4" in said) == (checkpoint == "fixed.pt")
    old, new = (file_io.load(str(path)) for path in (folder / checkpoint, tmp_path / "out.pt"))
    assert new["cfg"]["model"]["num_experts"] == 4
    names = [name for name in new["model"] if ".experts." in name]
    assert len(names) == 8
    for name in names:
        value, before = new["model"][name], old["model"][name]
        assert torch.equal(value, torch.stack([*before[:3], before[1]]))
        assert not torch.equal(value[3], value[0]) or name.endswith("bias")
    said = add_task(folder / checkpoint, tmp_path / "first.pt", "--task", task)
    first = file_io.load(str(tmp_path / "first.pt"))
    assert all(torch.equal(first["model"][name][3], old["model"][name][0]) for name in names)
    assert f"for {task} is a copy of the one for {source.replace('bb', 'aa')}." in said


def test_with_fixed_gates_it_begins_as_one_task(folder, tmp_path):
    with refused("--embedding-from"):
        add_task(folder / "fixed.pt", tmp_path / "out.pt", "--task", "dd", "--embedding-from", "aa,bb")
    reshard(folder / "fixed.pt", tmp_path / "parts.pt", "--experts-per-file", 1)
    with refused("mtmoe reshard --single-file"):
        add_task(tmp_path / "parts.pt", tmp_path / "out.pt", "--task", "dd", "--embedding-from", "aa")
    assert not (tmp_path / "out.pt").exists()


def test_what_cannot_be_added_is_one_sentence_and_no_file(folder, tmp_path):
    for checkpoint, name, wrong in (
        ("tasks.pt", "wic", "--task"), ("tasks.pt", "unknown", "--task"), ("languages.pt", "en-dd", "--task"),
        ("pairs.pt", "en-dd", "--task"), ("mixed.pt", "dd", "--num-experts"), ("encoder.pt", "rte", "encoder.pt"),
        ("evil.pt", "bb-en", "evil.pt"),
        ("languages.pt", "dd+ee", "--task"), ("groups.pt", "dd", "CHECKPOINT"),
    ):  # fmt: skip
        with refused(wrong):
            add_task(folder / checkpoint, tmp_path / "out.pt", "--task", name)
    assert not list(tmp_path.iterdir())
