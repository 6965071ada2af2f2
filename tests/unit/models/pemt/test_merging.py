"""Gates folded into what they weigh: what the model says stays, and costs what a model without sources costs."""

from argparse import Namespace
from dataclasses import replace

import pytest
import torch
from click.testing import CliRunner

from fairseq_mtmoe.backbones.bert.heads import HeadSize
from fairseq_mtmoe.checkpoints import file_io
from fairseq_mtmoe.cli.main import commands
from fairseq_mtmoe.conditioning import PARTS
from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.models.pemt.sources import Metadata
from tests.helpers.benchmark import serialized_tokenizer
from tests.helpers.bert import TINY, TINY_ROBERTA, batch, perturb
from tests.helpers.pemt import BERT, RANK, T5, TRANSLATION, target_model
from tests.helpers.refused import refused
from tests.helpers.t5 import CONFIGS, texts

each_adapter = pytest.mark.parametrize("adapter", ["lora", "bottleneck"])
CASES = {
    "translation": (TRANSLATION, {}),
    "translation, pre-norm": (TRANSLATION, dict(encoder_normalize_before=True)),
    "translation, conditional": (TRANSLATION, dict(conditional=",".join(PARTS))),
    **{f"t5 {version}": (T5, dict(config=config)) for version, config in CONFIGS.items()},
    "bert": (BERT, {}),
}


def trained(backbone, **options):
    """A model of stage 2, and its options in a checkpoint."""
    model = perturb(target_model(make=backbone.make, **options))
    return model, {**backbone.kept_options(model, **options), "_name": f"pemt_{backbone.name}"}


def merge(folder, model, options, *arguments):
    """The merged checkpoint, and what the command says."""
    state = {
        "cfg": {"model": options, "task": None}, "model": model.state_dict(),
        "last_optimizer_state": {"state": {}, "param_groups": []},
        "extra_state": {"ema": model.state_dict(), "epoch": 3},
    }  # fmt: skip
    torch.save(state, folder / "checkpoint_best.pt")
    paths = (folder / "checkpoint_best.pt", folder / "merged.pt")
    result = CliRunner().invoke(commands, ["merge", *map(str, paths), *arguments])
    if isinstance(result.exception, UserError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return torch.load(paths[1]), result.output


@each_adapter
@pytest.mark.parametrize(("backbone", "options"), CASES.values(), ids=CASES)
def test_merged_it_says_what_it_said_and_has_no_gates(backbone, options, adapter, tmp_path):
    model, kept = trained(backbone, adapter=adapter, **options)
    wanted, _ = backbone.says(model)
    state, said = merge(tmp_path, model, kept)
    state["cfg"]["model"].pop("_name")
    merged = backbone.made_again(state["cfg"]["model"])
    merged.load_state_dict(state["model"])
    torch.testing.assert_close(backbone.says(merged)[0], wanted, rtol=1e-5, atol=1e-5)
    assert merged.source_names == [] and not any(".gate." in key for key in state["model"])
    ranks = {module.mixture.adapters and module.mixture.adapters.rank for module in merged.encoder.layers}
    assert ranks == {None if adapter == "lora" else RANK * len(model.source_names)}
    assert "last_optimizer_state" not in state and state["extra_state"]["epoch"] == 3
    assert all(torch.equal(state["extra_state"]["ema"][key], value) for key, value in state["model"].items())
    assert model.source_names[0] in said and "%" in said


def leave(folder, state, **task_state):
    """The folder of Hugging Face's that is made of a checkpoint, and what the command says."""
    file_io.save({**state, "task_state": task_state}, str(folder / "trained.pt"))
    arguments = ["export-hf", str(folder / "trained.pt"), str(folder / "folder")]
    return folder / "folder", CliRunner().invoke(commands, arguments, catch_exceptions=False).output


@each_adapter
@pytest.mark.parametrize("version", CONFIGS)
def test_a_merged_t5_leaves_for_transformers(version, adapter, tmp_path):
    transformers = pytest.importorskip("transformers")
    config = replace(CONFIGS[version], num_decoder_layers=2)  # theirs writes with as many in both stacks
    model, options = trained(T5, adapter=adapter, config=config)
    state, _ = merge(tmp_path, model, options)
    folder, said = leave(tmp_path, state, sentencepiece=torch.ones(3, dtype=torch.uint8))
    assert "need `trust_remote_code=True`" in said
    loaded, info = transformers.AutoModelForSeq2SeqLM.from_pretrained(
        folder, trust_remote_code=True, output_loading_info=True
    )
    assert not info["missing_keys"] and not info["unexpected_keys"]
    source, target = texts(), texts((5, 3, 6), seed=4)
    wanted = model(source, None, target)[0]
    inputs = {"input_ids": source, "attention_mask": source.ne(0).long()}
    found = loaded.eval()(**inputs, decoder_input_ids=target).logits
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    written = loaded.generate(**inputs, max_new_tokens=4, min_new_tokens=4, output_scores=True,
                              return_dict_in_generate=True, suppress_tokens=[0])  # fmt: skip
    at_once = model(source, None, written.sequences[:, :-1])[0]
    assert torch.equal(written.sequences[:, 1:], at_once[..., 2:].argmax(-1) + 2)  # neither padding nor an end
    assert loaded.generate(**inputs, max_new_tokens=2, num_beams=2).shape[0] == 3


@each_adapter
@pytest.mark.parametrize(
    ("config", "heads"),
    [(TINY, {"rte": HeadSize(2)}), (TINY_ROBERTA, {"rte": HeadSize(2)}), (TINY, {"copa": HeadSize(1, has_bias=False)})],
    ids=["bert", "roberta", "bert, without a head"],
)
def test_a_merged_encoder_leaves_for_transformers(config, heads, adapter, tmp_path, monkeypatch):
    transformers = pytest.importorskip("transformers")
    monkeypatch.setattr("tests.helpers.encoders.HEADS", heads)
    model, options = trained(BERT, adapter=adapter, config=config)
    state, _ = merge(tmp_path, model, options)
    folder, said = leave(tmp_path, state, tokenizer=serialized_tokenizer())
    assert "need `trust_remote_code=True`" in said
    inputs = batch(config)
    given = {
        "input_ids": inputs["tokens"], "attention_mask": (~inputs["padding_mask"]).long(),
        "token_type_ids": inputs["token_type_ids"],
    }  # fmt: skip
    auto = transformers.AutoModelForSequenceClassification if "rte" in heads else transformers.AutoModel
    found = auto.from_pretrained(folder, trust_remote_code=True).eval()(**given)
    hidden = model.encoder(**inputs).hidden
    if "rte" in heads:
        wanted = torch.nn.functional.linear(hidden[:, 0], model.heads["rte"].weight, model.heads["rte"].bias)
        torch.testing.assert_close(found.logits, wanted, rtol=1e-5, atol=1e-5)
    else:
        real = ~inputs["padding_mask"]
        torch.testing.assert_close(found.last_hidden_state[real], hidden[real], rtol=1e-5, atol=1e-5)


def test_what_is_not_merged_stays(tmp_path):
    model, options = trained(T5)
    state = {"cfg": {"model": options, "task": None}, "model": model.state_dict()}
    with pytest.raises(UserError, match=r"`mtmoe merge .*trained.pt merged.pt` first"):
        leave(tmp_path, state, sentencepiece=torch.ones(3, dtype=torch.uint8))
    assert not (tmp_path / "folder").exists()


def test_what_cannot_be_merged_is_refused(tmp_path):
    """Gates that read each text, what borrows nothing, and weights that are not as the options say."""
    model, options = trained(TRANSLATION)
    nothing = replace(Metadata.from_text(options["pemt"]), sources=()).to_text()
    stock = {name: value for name, value in options.items() if "pemt" not in name} | {"_name": "base_dense"}
    for changed in ({**options, "pemt": ""}, {**options, "pemt": nothing}, stock):
        with pytest.raises(UserError, match="must hold a model that borrows from sources"):
            merge(tmp_path, model, changed)
    with refused("--gate-input"):
        merge(tmp_path, model, {**options, "gate_input": "hidden"})
    with pytest.raises(UserError, match="must fit its options"):
        merge(tmp_path, model, {**options, "adapter_rank": RANK + 1})
    del model.encoder.prompt
    with refused("encoder.prompt.weight"):
        merge(tmp_path, model, options)
    assert not (tmp_path / "merged.pt").exists()


def test_options_of_an_older_form_are_read_alike(tmp_path):
    model, options = trained(TRANSLATION)
    found, _ = merge(tmp_path, model, options)
    other, _ = merge(tmp_path, model, Namespace(**options), "--overwrite")
    assert all(torch.equal(other["model"][key], value) for key, value in found["model"].items())
