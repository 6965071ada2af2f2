"""The sparse model against stock fairseq's transformer, and its own promises."""

import pytest
import torch

from fairseq_mtmoe.checkpoints.mismatch import refusal
from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.moe import BaseGate, SwitchGate, TaskGate
from fairseq_mtmoe.slots import BatchContext, expert_blocks, expert_layers
from tests.helpers.models import batch, moe_model, perturb

pytestmark = pytest.mark.usefixtures("every_device_kind")
NORMS = [dict(), dict(encoder_normalize_before=True, decoder_normalize_before=True)]


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("gates", ["base", "task", "switch"])
def test_preserving_sparsification_leaves_the_output_as_it_was(norm, gates):
    model = moe_model(dense_updates=5, expert_gates=gates, **norm)
    perturb(model)
    before, states_before = model(**batch())
    model.sparsify()
    after, states_after = model(**batch())
    real = batch()["prev_output_tokens"].ne(1)
    torch.testing.assert_close(after[real], before[real], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(states_after["attn"][0][real], states_before["attn"][0][real], rtol=1e-4, atol=1e-5)


def test_paper_combine_scales_the_branch_by_its_gate():
    model = moe_model(dense_updates=5, expert_combine="paper", encoder_normalize_before=True)
    perturb(model)
    block = expert_blocks(model.encoder)["layers.1"]
    x = torch.randn(5, 3, 16)
    dense = block(x, BatchContext())
    block.slot.sparsify(block)
    # The residual stream that the gate reads is what the block's attention half gives: the output less its branch.
    sparse = block(x, BatchContext())
    attended, _ = block.self_attn(*[block.self_attn_layer_norm(x)] * 3, need_weights=False)
    h = x + attended
    scores = h @ block.moe.gate.weight.t()
    alpha = torch.sigmoid(scores.max(-1, keepdim=True).values)
    torch.testing.assert_close(sparse - h, alpha * (dense - h), rtol=1e-4, atol=1e-5)


def test_alternate_blocks_of_both_stacks_hold_the_patterns_gates():
    model = moe_model(encoder_layers=6, decoder_layers=6, expert_gates="base,task")
    kinds = {path: type(layer.gate) for path, layer in expert_layers(model).items()}
    assert kinds == {
        f"{stack}.layers.{index}": gate
        for stack in ("encoder", "decoder")
        for index, gate in ((1, BaseGate), (3, TaskGate), (5, BaseGate))
    }
    assert {type(layer.gate) for layer in expert_layers(moe_model(expert_gates="switch")).values()} == {SwitchGate}


def test_task_ids_follow_their_sentences_through_beam_reordering():
    model = moe_model(expert_gates="task")
    perturb(model)
    net_input = batch()
    order = torch.tensor([3, 3, 0, 2, 1])
    reordered = model.encoder.reorder_encoder_out(model.encoder.forward_torchscript(net_input), order)
    assert reordered["task_ids"][0].tolist() == [1, 1, 0, 2, 1]
    decoded, _ = model.decoder(net_input["prev_output_tokens"][order], encoder_out=reordered)
    torch.testing.assert_close(decoded, model(**net_input)[0][order])


def test_task_ids_change_the_output_of_task_gates_only_for_their_sentence():
    model = moe_model(expert_gates="task")
    perturb(model, 1.0)
    net_input = batch()
    first, _ = model(**net_input)
    net_input["task_ids"] = torch.tensor([0, 1, 2, 2])
    second, _ = model(**net_input)
    assert torch.equal(first[:3], second[:3]) and not torch.equal(first[3], second[3])


def test_padding_changes_nothing_for_real_tokens():
    model = moe_model()
    perturb(model)
    net_input = batch(pad=False)
    padded = dict(net_input)
    padded["src_tokens"] = torch.cat([torch.ones(4, 3, dtype=torch.long), net_input["src_tokens"]], dim=1)
    torch.testing.assert_close(model(**padded)[0], model(**net_input)[0], rtol=1e-4, atol=1e-5)


def gradients(model, net_inputs):
    outputs = [model(**net_input)[0] for net_input in net_inputs]  # all forward before any backward
    sum(output.square().mean() for output in outputs).backward()
    return {name: p.grad for name, p in model.named_parameters()}


@pytest.mark.parametrize("gates", ["base", "task"])
def test_activation_checkpointing_gives_the_same_gradients(gates):
    other = {**batch(), "task_ids": torch.tensor([2, 2, 0, 0])}
    results = []
    for checkpointing in (False, True):
        model = moe_model(expert_gates=gates, checkpoint_activations=checkpointing).train()
        perturb(model)
        results.append(gradients(model, [batch(), other]))
    assert results[0].keys() == results[1].keys()
    for name, gradient in results[0].items():
        torch.testing.assert_close(results[1][name], gradient, msg=name)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype):
    model = moe_model(expert_gates="base,task", encoder_layers=4, decoder_layers=4).to(dtype).train()
    output = model(**batch())[0]
    output.float().square().mean().backward()
    assert output.dtype == dtype
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_frozen_blocks_route_as_in_training_and_stay_frozen():
    model = moe_model(dense_updates=1).train()
    model.encoder.requires_grad_(False)
    model.sparsify()
    assert not any(p.requires_grad for p in model.encoder.parameters())
    for layer in expert_layers(model).values():
        layer.load.enabled = True
    model(**batch(pad=False))
    counts = expert_layers(model)["encoder.layers.1"].load.counts.sum(0)
    assert counts.max() - counts.min() <= 1  # balanced, although nothing below requires a gradient


def test_sparse_checkpoint_makes_a_model_that_starts_dense_sparse():
    trained = moe_model(seed=1)
    perturb(trained)
    fresh = moe_model(seed=2, dense_updates=7)
    assert fresh.is_dense
    fresh.load_state_dict(trained.state_dict())
    assert not fresh.is_dense and torch.equal(fresh(**batch())[0], trained(**batch())[0])


@pytest.mark.parametrize(
    ("checkpoint", "model", "sentence"),
    [
        (dict(num_experts=4), dict(num_experts=8), "`--num-experts` must be 4 as in the checkpoint's encoder"),
        (dict(dense_updates=5), dict(), "`--dense-updates` must be above 0 for a dense checkpoint"),
        (dict(expert_interval=1), dict(), "`--expert-interval` must be 1 to load the checkpoint, but is 2 instead"),
        (dict(), dict(expert_interval=1), "`--expert-interval` must be 2 to load the checkpoint, but is 1 instead"),
        (dict(decoder_layers=4), dict(), "`--decoder-layers` must be 4 to load the checkpoint, but is 2 instead"),
    ],
)
def test_a_checkpoint_of_another_shape_is_refused_in_one_sentence(checkpoint, model, sentence):
    target = moe_model(**model)
    with pytest.raises(UserError, match=sentence):
        target.load_state_dict(moe_model(**checkpoint).state_dict())


@pytest.mark.parametrize(
    ("checkpoint", "model", "sentence"),
    [
        (dict(shared_expert_dim=8), dict(), "`--shared-expert-dim` must be 8 to"),
        (dict(), dict(shared_expert_dim=8), "`--shared-expert-dim` must be 0 to"),
        (
            dict(shared_expert_dim=8, encoder_ffn_embed_dim=32),
            dict(shared_expert_dim=8),
            "`--encoder-ffn-embed-dim` must be 32 to",
        ),
    ],
)
@pytest.mark.parametrize("interval", [1, 2])
def test_what_differs_in_a_shared_expert_is_named(checkpoint, model, sentence, interval):
    """The inner size of a block without a layer of its own is that of an expert and the shared one together."""
    state = moe_model(expert_interval=interval, **checkpoint).state_dict()
    assert str(refusal(moe_model(expert_interval=interval, **model), state)).startswith(sentence)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (dict(num_experts=0), "`--num-experts` must be at least 1, but is 0 instead."),
        (dict(expert_interval=0), "`--expert-interval` must be at least 1"),
        (dict(expert_interval=3), "`--expert-interval` must be at most the number of blocks"),
        (dict(dense_updates=-1), "`--dense-updates` must be at least 0"),
        (dict(expert_combine="sum"), "`--expert-combine` must be one of preserving, paper"),
        (dict(expert_reinit_ratio=-0.5), "`--expert-reinit-ratio` must be from 0 to 1, but is -0.5 instead."),
        (dict(gate_lr_factor=-1.0), "`--gate-lr-factor` must be at least 0, and finite, but is -1.0 instead."),
        (dict(expert_dropout=1.5), "`--expert-dropout` must be from 0 to 1, but is 1.5 instead."),
        (dict(base_evaluation="even"), "`--base-evaluation` must be one of prices, greedy, balanced"),
        (dict(shared_expert_dim=24), "`--shared-expert-dim` must be from 0 to 23"),
        (dict(expert_gates="base,top2"), "`--expert-gates` must be one of base, task, switch, fixed"),
        (dict(expert_gates="task", task_names=None), "needs a task that gives each sentence a task id"),
        (dict(cross_self_attention=True), "`--cross-self-attention` must be off"),
    ],
)
def test_options_out_of_range_are_one_sentence(options, sentence):
    with pytest.raises(UserError, match=sentence):
        moe_model(**options)
