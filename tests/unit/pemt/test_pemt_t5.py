"""T5 that learns source tasks and borrows from them: what it computes, what it keeps, what it refuses."""

import re
from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional as F

from fairseq_mtmoe.core.errors import UserError
from fairseq_mtmoe.multitask.task import Multitask
from fairseq_mtmoe.pemt.config import is_added
from fairseq_mtmoe.pemt.model import PemtT5Model
from fairseq_mtmoe.slots import adapter_blocks
from tests.helpers.bert import perturb
from tests.helpers.decoding import decode
from tests.helpers.pemt import (
    DESCRIPTIONS,
    SOURCES,
    inputs,
    pemt_model,
    pemt_options,
    source_files,
    source_model,
    target_model,
    text_task,
)
from tests.helpers.refused import refused
from tests.helpers.t5 import TINY, pretrained, texts, tiny_t5


def scores(model, **more):
    return model(**inputs(), **more)[0]


def test_a_source_begins_as_its_t5_after_its_description():
    """Adapters add nothing yet, and the prompt is what the description's tokens are."""
    model = pemt_model(name="aa", pemt_stage="source")
    plain, given = pretrained(), inputs()
    t5 = PemtT5Model.build_model(pemt_options(no_prompt=True, pemt_stage="source"), text_task("aa", plain)).eval()
    described = torch.tensor([DESCRIPTIONS["aa"]] * 3)
    wanted, _ = t5(**{**given, "src_tokens": torch.cat([described, given["src_tokens"]], dim=1)})
    torch.testing.assert_close(scores(model), wanted)


def test_a_new_target_weighs_its_sources_equally_and_reads_its_own_description():
    model = target_model()
    prompt = model.encoder.prompt
    embeddings = model.encoder.embed_tokens.weight
    assert torch.equal(prompt.weight, embeddings[list(DESCRIPTIONS["cc"])])
    for index, name in enumerate(SOURCES):
        kept = prompt.sources[index][: len(DESCRIPTIONS[name])]
        assert torch.equal(kept, source_model(name).encoder.prompt.weight)
    passed = model.encoder(texts())["encoder_pass"][0]
    assert len(passed.weights) == TINY.num_layers
    assert all(torch.equal(weights, torch.tensor([0.5, 0.5])) for weights in passed.weights.values())


@pytest.mark.parametrize("gate_input", ["correlation", "activations", "hidden"])
def test_word_by_word_is_what_is_written_at_once(gate_input):
    source = texts((13, 4, 1, 6))
    decode(perturb(target_model(gate_input=gate_input)), {"src_tokens": source, "src_lengths": source.ne(0).sum(1)})


def test_the_sparsity_loss_is_of_training_and_of_no_padding():
    model = perturb(target_model(no_prompt=True))
    assert "task_sparsity" not in model(**inputs())[1]
    model.train()
    given = inputs()
    wanted = model(**given)[1]["task_sparsity"]
    longer = {name: F.pad(given[name], (0, 4)) for name in ("src_tokens", "prev_output_tokens")}
    torch.testing.assert_close(model(**longer)[1]["task_sparsity"], wanted)
    assert -0.5 < wanted.item() < 0.5 and wanted.item() != 0
    words = torch.tensor([[0, 5, 6, 7, 8], [0, 5, 1, 0, 0], [0, 1, 0, 0, 0]])
    told = model.decoder.context_of(words, model.encoder(texts())).padding_mask
    assert torch.equal(told, torch.arange(5) >= torch.tensor([[5], [2], [1]]))
    wanted.backward()
    gates = [block.mixture.gate.weight.grad for block in adapter_blocks(model).values()]
    assert all(gradient.abs().max() > 0 for gradient in gates)


def test_what_trains_in_each_stage_is_what_the_paper_and_its_code_say():
    def trained(model):
        names = (name for name, value in model.named_parameters() if value.requires_grad)
        return {re.sub(r"layers\.\d+\.|^(en|de)coder\.|(down|up)\.(weight|bias)$", "", name) for name in names}

    of_source = {"mixture.adapters.down", "mixture.adapters.up", "prompt.weight"}
    assert trained(pemt_model(name="aa", pemt_stage="source")) == of_source
    assert trained(target_model()) == {
        *("prompt.weight", "mixture.gate.weight", "mixture.target_adapter.", "layer_norm.weight"),
        *("self_attn_layer_norm.weight", "encoder_attn_layer_norm.weight", "final_layer_norm.weight"),
    }


def test_a_checkpoint_goes_on_with_its_own_sources_in_their_order_alone(tmp_path):
    """Their names and the lengths of their prompts follow the option."""
    kept, files = target_model(), source_files()
    adapters = {name: value for name, value in kept.state_dict().items() if ".adapters." in name}
    kept.load_state_dict({**perturb(target_model()).state_dict(), **adapters})
    again = target_model()
    again.load_state_dict(kept.state_dict())
    assert torch.equal(scores(again), scores(kept))
    for given in (files[::-1], (files[1],)):
        other = pemt_model(pemt_sources=",".join(given))
        with refused("--pemt-sources"):
            other.load_state_dict(kept.state_dict())


def test_the_weights_that_come_last_are_those_that_sources_must_fit():
    """As where both `--init-model` and `--finetune-from-model` name some."""
    model = target_model()
    t5 = {name: value.clone() for name, value in model.state_dict().items() if not is_added(name)}
    model.load_state_dict(t5)
    torch.testing.assert_close(scores(model), scores(target_model()))
    t5["encoder.layers.0.fc1.weight"][0, 0] += 1e-3
    for options in ({}, dict(no_prompt=True)):
        with refused("aa.pt"):
            target_model(**options).load_state_dict(t5)


def test_without_weights_nothing_trains():
    model = PemtT5Model.build_model(pemt_options(pemt_stage="source"), text_task("aa"))
    with refused("--pemt-stage source", "--init-model"):
        Multitask.begin_epoch(SimpleNamespace(), 1, model)
    model.load_state_dict(tiny_t5(seed=2).state_dict())
    model.expect_weights()


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("--pemt-stage", dict(pemt_stage="source")),  # the task is a target
        ("--adapter-alpha", dict(adapter="bottleneck", adapter_alpha=32.0)),
        ("--target-adapter-size", dict(pemt_stage="source", target_adapter_size=3)),
        ("--pemt-sources", dict(pemt_sources="a.pt,b.pt,a.pt")),
        ("gone.pt", dict(pemt_sources="gone.pt")),
        ("--pemt-sources", dict(pemt_stage="source", pemt_sources="a.pt")),
        ("--gate-input", dict(pemt_sources="a.pt", no_prompt=True, gate_input="activations")),
        ("--gate-input", dict(gate_input="hidden")),  # without sources
        ("--prompt-init", dict(prompt_init="random")),  # without a prompt
        ("pemt", dict(pemt='{"task": 1}')),
        ("--task", dict(t5="")),
    ],
    ids=str,
)
def test_wrong_options_are_refused(name, options):
    cfg = pemt_options()
    for option, value in options.items():
        setattr(cfg, option, value)
    with refused(name):
        PemtT5Model.build_model(cfg, text_task(t5=pretrained()))


def test_a_description_must_have_words(monkeypatch):
    monkeypatch.setitem(DESCRIPTIONS, "aa", ())
    with pytest.raises(UserError, match="the description of `aa`"):
        pemt_model(name="aa", pemt_stage="source")
