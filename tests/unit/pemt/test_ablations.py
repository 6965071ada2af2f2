"""What models of all backbones do: sources' files, gates; Table 6's options, of which none is ignored."""

from functools import partial

import pytest
import torch

from fairseq_mtmoe.moe.adapters import ADAPTERS
from fairseq_mtmoe.pemt import model as model_module
from fairseq_mtmoe.pemt.sources import load
from fairseq_mtmoe.slots import adapter_blocks
from tests.helpers.bert import in_all_places, perturb
from tests.helpers.encoders import task_batch
from tests.helpers.models import batch
from tests.helpers.pemt import BACKBONES, BERT, DESCRIPTIONS, T5, TRANSLATION, adapters_of, source_model, target_model
from tests.helpers.t5 import texts

backbones = pytest.mark.parametrize("backbone", BACKBONES, ids=lambda backbone: backbone.name)


@backbones
@pytest.mark.parametrize("adapter", ["lora", "bottleneck"])
def test_a_source_s_file_is_all_that_it_learnt_but_for_heads(adapter, backbone, tmp_path):
    model = source_model("aa", backbone.make, adapter=adapter)
    found = load(model.export_source(str(tmp_path)))
    assert (found.task, found.description) == ("aa", "Say aa.")
    trained = {name: value for name, value in model.named_parameters() if value.requires_grad and "heads." not in name}
    assert {*adapters_of(found), "encoder.prompt.weight"} == set(trained)
    assert torch.equal(found.tensors["prompt"], trained["encoder.prompt.weight"])
    for name, value in adapters_of(found).items():
        assert torch.equal(value.unsqueeze(0), trained[name])
    assert target_model(make=backbone.make).export_source(str(tmp_path)) is None


@backbones
@pytest.mark.parametrize("gate_input", ["correlation", "activations", "hidden"])
def test_gates_read_what_the_option_says(gate_input, backbone, monkeypatch):
    in_all_places(monkeypatch, model_module)
    model, reads, found = perturb(target_model(make=backbone.make, gate_input=gate_input)), {}, {}
    for path, block in adapter_blocks(model).items():
        block.fc1.register_forward_hook(lambda _, inputs, __, path=path: reads.update({path: inputs[0]}))
        block.mixture.gate.register_forward_hook(lambda _, __, weights, path=path: found.update({path: weights}))
    encoded = []  # whose states the gates of a decoder read
    model.encoder.register_forward_hook(lambda *args: encoded.append(args[-1]))
    backbone.says(model)
    tokens = {T5: texts(), BERT: task_batch()["src_tokens"], TRANSLATION: batch()["src_tokens"]}[backbone]
    words = tokens.ne(1 if backbone is TRANSLATION else 0) & (gate_input == "hidden")
    prompt = torch.ones(len(words), len(DESCRIPTIONS["cc"]), dtype=torch.bool)
    read_BL = torch.cat([words, prompt] if backbone is BERT else [prompt, words], 1)
    assert reads.keys() == found.keys() and len(found) == len(adapter_blocks(model))
    for path, weights in found.items():
        states = reads[path] if path.startswith("encoder") else encoded[0]["encoder_out"][0]
        if gate_input == "correlation":
            wanted = model.encoder.prompt().mean(0).expand(len(words), -1)
        else:
            wanted = torch.stack([states[kept, row].mean(0) for row, kept in enumerate(read_BL)])
        wanted = (wanted @ model.get_submodule(path).mixture.gate.weight.t()).softmax(1)
        torch.testing.assert_close(weights.expand_as(wanted), wanted)
        assert gate_input == "correlation" or weights.std(0).max() > 1e-6  # another one for each text


ALONE = "alone"  # without sources, which is no option but the lack of one
CHANGES = (
    {"prompt_init": "random"}, {"no_prompt": True}, {ALONE: True}, {"adapter": "bottleneck"},
    {"gate_input": "activations"}, {"gate_input": "hidden"}, {"target_adapter_size": 2},
)  # fmt: skip


@pytest.mark.parametrize("options", CHANGES, ids=lambda case: "".join(map(str, case.values())))
@backbones
def test_each_option_alone(backbone, options):
    given = {name: value for name, value in options.items() if name != ALONE}
    make = backbone.make if ALONE in options else partial(target_model, make=backbone.make)
    model = make(**given)
    alone, default_input = ALONE in options, "hidden" if "no_prompt" in given else "correlation"
    assert (model.encoder.prompt is None) == (alone or "no_prompt" in given)
    assert model.encoder.gate_input == (None if alone else given.get("gate_input", default_input))
    for block in adapter_blocks(model).values():
        bank = block.mixture.adapters
        assert bank is None if alone else type(bank) is ADAPTERS[given.get("adapter", "lora")]
        wanted = given.get("target_adapter_size", max(1, len(block.fc2.weight) // 16))
        assert block.mixture.target_adapter.down.out_features == wanted
    if not (alone or "no_prompt" in given):
        embedded = model.prompt_embeddings()[list(model.metadata.tokens)]
        assert torch.equal(model.encoder.prompt.weight, embedded) == ("prompt_init" not in given)
    perturb(model).train()
    output, extra = backbone.says(model)
    assert ("task_sparsity" in extra) == (ALONE not in options)
    (output.square().mean() + extra.get("task_sparsity", 0)).backward()
    silent = [name for name, value in model.named_parameters() if value.requires_grad and value.grad is None]
    assert silent == [] and output.isfinite().all()
    kept = backbone.made_again(backbone.kept_options(model, **given))
    kept.load_state_dict(model.state_dict())
    torch.testing.assert_close(backbone.says(kept)[0], backbone.says(model.eval())[0])
