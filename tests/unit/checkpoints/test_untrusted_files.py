"""What loading refuses: files that execute, grow or hold wrong values, and options that choose what could harm."""

import importlib
import inspect
import os
import re
import time
from argparse import Namespace
from collections import OrderedDict
from functools import partial
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from fairseq import checkpoint_utils, tasks
from fairseq.models import register_model, register_model_architecture, transformer
from fairseq.models.transformer import TransformerModel

from fairseq_mtmoe import register
from fairseq_mtmoe.checkpoints import assemble, file_io, loading, rebuild, validation
from fairseq_mtmoe.checkpoints.file_io import peek
from fairseq_mtmoe.checkpoints.rebuild import TRUST
from fairseq_mtmoe.checkpoints.rewriting import copy_with_experts, remove_orphans
from fairseq_mtmoe.cli.upcycle import command as upcycle
from fairseq_mtmoe.core.errors import UserError
from fairseq_mtmoe.translation.decode.decode import Decoding
from fairseq_mtmoe.translation.decode.translator import Translator
from tests.helpers import untrained
from tests.helpers.refused import refused

register()

LOADERS = (
    *(file_io.load, partial(file_io.load, mapped=True), loading.load_ema),
    *(checkpoint_utils.load_checkpoint_to_cpu, partial(assemble.load_shared_part, mapped=True)),
)


def refuses(path, *names, load=file_io.load) -> None:
    with refused(str(path), *names) as caught:
        load(str(path))
    assert "\n" not in str(caught.value)


def checkpoint(**parts):
    return {
        "args": None, "cfg": {"model": {"_name": "transformer"}, "task": {"_name": "translation"}},
        "model": {"w": torch.zeros(3)}, "optimizer_history": [{"num_updates": 2, "optimizer_name": "FairseqAdam",
        "lr_scheduler_state": {"best": None}}], "extra_state": {"train_iterator": {"epoch": 1}},
    } | parts  # fmt: skip


def moments(entry, **options):
    group = {"lr": 0.1, "betas": (0.9, 0.98), "eps": 1e-8, "params": [0]}
    return {"state": {0: entry}, "param_groups": [group | options]}


def with_optimizer(state):
    return checkpoint(last_optimizer_state=state)


@pytest.mark.parametrize(("state", "names"), [
    ([], []),
    (checkpoint(model=[]), ["model"]),
    (checkpoint(extra_state={"train_iterator": {"epoch": 10**12}}), ["extra_state.train_iterator.epoch"]),
    (with_optimizer(moments({"step": "7"})), ["last_optimizer_state.state.0.step"]),
    (with_optimizer(moments({}, betas=(0.9, 1))), ["last_optimizer_state.param_groups.0.betas.1"]),
    (with_optimizer({"a": {"state": {}, "param_groups": 3}}), ["last_optimizer_state.a.param_groups"]),
    (checkpoint(extra_state={"GlueTask": {"training_seconds": 1.0, "gates": {"since": None}}}), []),
    (checkpoint(task_state={"lang_pairs": ["en-de", ()]}), ["task_state.lang_pairs.1"]),
    (checkpoint(extra_state={"metrics": {"train": [(1, "loss", "exit", {})]}}), []),
    (checkpoint(optimizer_history=[]), ["optimizer_history"]),
], ids=range(10))  # fmt: skip
def test_what_a_state_may_not_be(tmp_path, state, names):
    torch.save(state, tmp_path / "a.pt")
    refuses(tmp_path / "a.pt", *names)


@pytest.mark.parametrize("old", [False, True])
def test_every_way_in_refuses_what_executes_whatever_the_environment_says(tmp_path, monkeypatch, old):
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    touch = type("Touch", (), {"__reduce__": lambda self: (os.mkdir, (str(tmp_path / "executed"),))})()
    torch.save(checkpoint(model={"w": touch}), tmp_path / "a.pt", _use_new_zipfile_serialization=not old)
    for load in LOADERS:
        refuses(tmp_path / "a.pt", "argparse.Namespace", load=load)
    assert not (tmp_path / "executed").exists()


def test_what_checkpoints_hold_is_loaded(tmp_path):
    weights = OrderedDict(w=torch.arange(6.0).view(2, 3).t(), h=torch.ones(2, dtype=torch.bfloat16))
    weights["tied"] = weights["w"]
    weights._metadata = OrderedDict({"": {"version": 1}})
    state = checkpoint(
        args=Namespace(arch="transformer", betas=(0.9, 0.98), pairs=["a-b"], languages={"a", "b"}),
        model=weights, criterion=OrderedDict(),
        extra_state={"metrics": {"train": [(10, "loss", "AverageMeter", {"val": None, "sum": 0, "count": 0})]}},
        last_optimizer_state=moments({"step": 3, "exp_avg": torch.nn.Parameter(torch.zeros(3))}),
        dtype=torch.float16, size=torch.Size([2]),
    )  # fmt: skip
    for old in (False, True):
        torch.save(state, tmp_path / "a.pt", _use_new_zipfile_serialization=not old)
        loaded = file_io.load(str(tmp_path / "a.pt"))
        assert list(loaded) == list(state) and loaded["args"] == state["args"]
        assert all(torch.equal(loaded["model"][key], value) for key, value in weights.items())
        assert loaded["model"]._metadata == weights._metadata
    nested = ["a value"]
    for _ in range(60):
        nested = [nested, nested]  # a small file, in which 2^60 names lead to the value
    optimizer = {"first": moments({}), "loss_scale": 128.0}
    torch.save(checkpoint(criterion={"nested": nested}, last_optimizer_state=optimizer), tmp_path / "a.pt")
    loaded = file_io.load(str(tmp_path / "a.pt"))
    assert list(loaded["last_optimizer_state"]) == ["first", "loss_scale"] and loaded["criterion"]


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, lambda path: path.symlink_to("nowhere")], ids=range(3))
def test_what_is_no_file_is_refused_and_passed_over(tmp_path, make):
    odd, good, damaged = (tmp_path / f"checkpoint{name}.pt" for name in ("_best", "1", "_last"))
    make(odd)
    for load in (*LOADERS, lambda path: copy_with_experts(path, f"{path}.copy")):
        refuses(odd, load=load)
    assert peek(odd) is None
    remove_orphans(tmp_path)
    file_io.save(checkpoint(), str(good))
    damaged.write_bytes(good.read_bytes()[:-100])
    refuses(damaged, str(good))


@pytest.fixture(scope="module")
def stock(tmp_path_factory):
    """`.data`, and `.state` of an untrained stock transformer, which `.write` saves with changes."""
    folder = tmp_path_factory.mktemp("stock")
    data, path = untrained.make_data(folder / "data"), folder / "checkpoint_last.pt"
    untrained.save_model(data, path, *untrained.ONE_PAIR)
    state = torch.load(path)
    state["cfg"]["task"]["data"] = str(data)

    def write(change):
        options = change(state["cfg"])
        named = {"args": options, "cfg": None} if isinstance(options, Namespace) else {"cfg": options}
        torch.save(state | named, path)
        return str(path)

    return Namespace(data=data, state=state, write=write, folder=folder)


def load(path, task=None):
    return checkpoint_utils.load_model_ensemble_and_task([path], task=task)


def not_built(path, words, task=None):
    start = time.process_time()
    with pytest.raises(UserError) as caught:
        load(path, task)
    sentence = str(caught.value)
    assert path in sentence and words in sentence and "\n" not in sentence, sentence
    assert time.process_time() - start < 10


def in_model(**values):
    return lambda cfg: cfg | {"model": Namespace(**{**vars(cfg["model"]), **values})}


def in_task(**values):
    return lambda cfg: cfg | {"task": {**cfg["task"], **values}}


def instead(section, value):
    return lambda cfg: cfg | {section: value}


def as_namespace(**values):
    """As fairseq saved options before it had configurations."""
    return lambda cfg: Namespace(**{**vars(cfg["model"]), **cfg["task"], "task": "translation", **values})


FCONV = "__import__('os').mkdir('executed') or [(8, 3)] * 2"
WAV2VEC = {"_name": "wav2vec2", "conv_feature_layers": FCONV}


@pytest.mark.parametrize(("change", "words"), [
    (instead("model", WAV2VEC), "has 'wav2vec2'"),
    (instead("model", {"wav2vec2": WAV2VEC}), "names no model"),
    (instead("model", Namespace(_name="transformer", arch="fconv")), "has 'fconv'"),
    (as_namespace(arch=["transformer"]), "has ['transformer']"),
    (as_namespace(task="audio_pretraining"), "must have a task that is known"),
    (instead("criterion", {"_name": "ctc", "wer_args": FCONV}), "must have a criterion that is known"),
    (instead("tokenizer", "unheard"), "must have a tokenizer that is known"),
    (in_model(decoder={"xformers_att_config": FCONV}), "`xformers_att_config`"),
    (in_model(adaptive_softmax_cutoff="(" * 10_000), "`adaptive_softmax_cutoff`"),
    (as_namespace(scoring="../../evil"), "`scoring`"),
    (as_namespace(left_pad_source=FCONV), "`left_pad_source`"),
    (in_task(source_lang="${oc.env:HOME}"), "`source_lang`"),
    (instead("${oc.env:HOME}", 1), "must be a plain value"),
    (in_task(lang_pairs=["${model.encoder_embed_dim}", "${task}${task}"]), "`lang_pairs`"),
    (in_model(encoder={"layers": 10**7}), "`layers` is 10000000"),
    (in_model(encoder_ffn_embed_dim=10**5), "`encoder_ffn_embed_dim` is 100000"),
    (in_model(encoder='{"hidden_size": 64, "vocab_size": 100000}'), "`vocab_size` is 100000"),
    (in_model(max_source_positions=2**40), "`max_source_positions` is 1099511627776"),
    (in_model(encoder_attention_heads=0), "`encoder_attention_heads` is 0"),
])  # fmt: skip
def test_what_a_file_may_not_choose(stock, monkeypatch, change, words):
    monkeypatch.chdir(stock.folder)
    not_built(stock.write(change), words)
    assert not (stock.folder / "executed").exists()


def test_a_command_with_a_task_of_its_own_builds_the_model_alone_from_the_file(stock):
    task = tasks.setup_task(Namespace(**stock.state["cfg"]["task"], task="translation"))
    assert load(stock.write(instead("criterion", {"_name": "somebodys"})), task=task)[0]
    not_built(stock.write(instead("model", WAV2VEC)), "has 'wav2vec2'", task=task)
    sizes = [("encoder_embed_dim", 512), ("max_source_positions", 300_000)]  # sinusoids lie in no file
    rebuild.check_sizes("model.pt", sizes, {"weight": torch.ones(512, 512)})


def test_mtmoe_evaluate_and_upcycle_refuse_the_same(stock):
    path = stock.write(in_model(encoder_layers=10**7))
    with pytest.raises(UserError, match="`encoder_layers`"):
        next(Translator(str(stock.data), [path], Decoding()).translations(["en-bb"], "test"))
    result = CliRunner().invoke(upcycle, [path, str(stock.folder / "sparse.pt"), "--num-experts", "2"])
    assert isinstance(result.exception, UserError) and "`encoder_layers`" in str(result.exception)
    assert not (stock.folder / "sparse.pt").exists()


def test_a_users_own_model_needs_to_be_trusted_and_an_architecture_does_not(stock, monkeypatch):
    mine = register_model("mine")(type("Mine", (TransformerModel,), {}))
    register_model_architecture("mine", "mine_small")(transformer.transformer_legacy.tiny_architecture)
    register_model_architecture("transformer", "transformer_own")(transformer.transformer_legacy.tiny_architecture)
    path = stock.write(in_model(_name="mine_small", arch="mine_small"))
    not_built(path, f"set the environment variable `{TRUST}=mine_small`")
    monkeypatch.setenv(TRUST, "wav2vec2, mine_small")
    assert type(load(path)[0][0]) is mine
    monkeypatch.delenv(TRUST)
    assert load(stock.write(in_model(_name="transformer_own", arch="transformer_own")))[0]


EMBEDDED = in_model(encoder_embed_path="/dev/zero", decoder_embed_path="nowhere")  # neither is opened


@pytest.mark.parametrize("change", [dict, as_namespace(left_pad_source="True"), EMBEDDED], ids=range(3))
def test_a_stock_checkpoint_is_built_as_ever(stock, change):
    (model,), cfg, task = load(stock.write(change))
    key = "encoder.layers.0.fc1.weight"
    assert torch.equal(model.state_dict()[key], stock.state["model"][key])
    assert cfg.task.source_lang == task.cfg.source_lang == "en"


def test_known_models_and_tasks_evaluate_no_other_options():
    """A version of fairseq that evaluates more must not be trusted with it."""
    names = """
    models.transformer.transformer_base models.transformer.transformer_decoder models.transformer.transformer_encoder
    models.transformer.transformer_legacy models.transformer_align modules.multihead_attention modules.transformer_layer
    criterions.adaptive_loss criterions.cross_entropy criterions.label_smoothed_cross_entropy tasks.translation
    tasks.translation_multi_simple_epoch data.multilingual.multilingual_data_manager data.encoders.sentencepiece_bpe
    data.encoders.moses_tokenizer data.encoders.fastbpe
    """
    options = {"uf"}  # in lambdas of parsers of the command line
    for name in names.split():
        source = inspect.getsource(importlib.import_module(f"fairseq.{name}"))
        options.update(re.findall(r"\b(?:eval_str_list|eval_str_dict|eval_bool)\(\s*(?:\w+\.)*(\w+)", source))
        options.update(re.findall(r"(?<![\w.])(?:eval|exec)\(", source))
    assert options == {"uf", *validation._EVALUATED}
