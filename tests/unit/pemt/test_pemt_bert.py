"""Encoders that learn source tasks and borrow from them: what they compute, what they keep, what they refuse."""

import shutil
from functools import partial

import pytest
import torch

from tests.helpers.bert import CONFIGS, TINY, batch, hugging_face_model, in_all_places, ours_of, perturb
from tests.helpers.encoders import all_numbers, tag_model, task_batch
from tests.helpers.pemt import (
    DESCRIPTIONS,
    DescribedTask,
    bert_options,
    described,
    pemt_encoder,
    source_files,
    source_model,
    target_model,
)
from tests.helpers.refused import refused

from fairseq_mtmoe.pemt import model as model_module  # isort: skip
from fairseq_mtmoe.pemt.model import PemtBertModel  # isort: skip


@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_a_prompt_is_what_hugging_face_s_encoder_has_before_its_words(kind):
    config = CONFIGS[kind]
    theirs = hugging_face_model(config)
    state = {name: value for name, value in ours_of(theirs).state_dict().items() if not name.startswith("pooler")}
    model = pemt_encoder(name="aa", config=config, state=state, pemt_stage="source")
    given = batch(config)
    parts = theirs.embeddings
    described = torch.tensor(DESCRIPTIONS["aa"])
    first_type = parts.token_type_embeddings.weight[0]
    prompt = parts.LayerNorm(parts.word_embeddings(described) + first_type).expand(3, -1, -1)
    words = parts(given["tokens"], given["token_type_ids"])
    padding = given["tokens"].eq(config.pad_token_id)
    hidden = torch.nn.functional.pad(padding, (len(described), 0))
    mask = hidden[:, None, None].float() * torch.finfo(torch.float32).min
    wanted = theirs.encoder(torch.cat([prompt, words], 1), mask).last_hidden_state[:, len(described) :]
    found = model.encoder(given["tokens"], given["token_type_ids"]).hidden
    torch.testing.assert_close(found[~padding], wanted[~padding], rtol=1e-5, atol=1e-5)
    first = model.encoder(given["tokens"], given["token_type_ids"], firsts_only=True).hidden
    torch.testing.assert_close(first, found[:, :1])


def learned(model):
    """What every head says and the task sparsity loss, with all gradients; heads read [CLS], words and candidates."""
    torch.manual_seed(5)  # dropout of the prompts' correlation
    outputs = model.train()(**task_batch())
    loss = all_numbers(outputs).square().sum()
    loss.backward()
    found = {name: value.grad for name, value in model.named_parameters() if value.grad is not None}
    return {**found, **{task: numbers.detach() for task, numbers in outputs.items()}}


assert_same = partial(torch.testing.assert_close, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("gate_input", ["correlation", "activations", "hidden"])
def test_padding_in_the_stream_changes_nothing(gate_input, monkeypatch):
    packed = learned(perturb(target_model(make=pemt_encoder, gate_input=gate_input)))
    assert {"task_sparsity", "encoder.prompt.weight", "encoder.layers.0.mixture.gate.weight"} <= packed.keys()
    assert all(packed[name].any() for name in packed)
    in_all_places(monkeypatch, model_module)
    assert_same(learned(perturb(target_model(make=pemt_encoder, gate_input=gate_input))), packed)


def test_what_is_computed_again_has_the_same_gradients():
    models = (target_model(make=pemt_encoder, checkpoint_activations=again) for again in (False, True))
    assert_same(*(learned(perturb(model)) for model in models))


def test_what_does_not_go_with_borrowing_is_refused(tmp_path):
    with refused("--freeze-layers"):
        pemt_encoder(freeze_layers="1")
    with refused("--finetune-from-model"):
        pemt_encoder().load_state_dict(tag_model().state_dict())
    first = source_files(pemt_encoder)[0]
    state = {name: value for name, value in pemt_encoder().encoder.state_dict().items() if ".mixture." not in name}
    state["layers.0.fc1.bias"] = state["layers.0.fc1.bias"] + 1
    with refused("aa.pt"):
        pemt_encoder(config=TINY, state=state, pemt_sources=first)
    shutil.copy(first, tmp_path / "again.pt")
    with refused("--pemt-sources"):
        pemt_encoder(pemt_sources=f"{first},{tmp_path / 'again.pt'}")


def test_a_description_may_be_longer_than_the_encoder_has_places(monkeypatch):
    monkeypatch.setitem(DESCRIPTIONS, "cc", tuple(range(5, 35)) * 2)
    model = target_model(make=pemt_encoder)
    assert len(model.encoder.prompt()) == 60 > TINY.max_positions
    assert all_numbers(model(**task_batch())).isfinite().all()


def going_on(model, **changes):
    """A task that goes on from a model's checkpoint."""
    return DescribedTask(
        described("cc"), pretrained=None, begins_with_checkpoint=True,
        checkpoint_to_go_on_from=lambda: "runs/rte/checkpoint_best.pt",
        options_to_go_on_with=lambda: {**model.noted_options, **changes},
    )  # fmt: skip


def test_a_run_that_goes_on_without_its_sources_files_needs_a_checkpoint_with_as_many():
    model, first = target_model(make=pemt_encoder), source_files(pemt_encoder)[0]
    for named in ("", "gone.pt,lost.pt"):
        found = PemtBertModel.build_model(bert_options(pemt_sources=named), going_on(model)).eval()
        with refused("--pemt-stage target", "--pemt-sources"):
            found.expect_weights()
        found.load_state_dict(model.state_dict())
        found.expect_weights()
        assert found.metadata == model.metadata
        assert found.noted_options["pemt_sources"] == (named or model.noted_options["pemt_sources"])
        torch.testing.assert_close(found(**task_batch()), model(**task_batch()), rtol=0, atol=0)
    with refused("--pemt-sources"):
        pemt_encoder(pemt_sources=first).load_state_dict(model.state_dict())
    with refused("--pemt-sources"):
        PemtBertModel.build_model(bert_options(pemt_sources="gone.pt"), going_on(model))


@pytest.mark.parametrize("stage", ["source", "target"])
def test_a_run_goes_on_from_one_of_its_own_stage_alone(stage):
    model = source_model("aa", make=pemt_encoder) if stage == "target" else target_model(make=pemt_encoder)
    other = "source" if stage == "target" else "target"
    with refused("runs/rte/checkpoint_best.pt", f"--pemt-stage {stage}", "--save-dir"):
        PemtBertModel.build_model(bert_options(pemt_stage=stage), going_on(model, pemt_stage=other))
    begun = PemtBertModel.build_model(bert_options(pemt_stage=other), going_on(model, pemt_stage=other))
    assert begun.metadata.task == "cc"
