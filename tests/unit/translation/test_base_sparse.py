"""The sparse model against stock fairseq's transformer, and its own promises."""

import pytest
import torch

from fairseq_mtmoe.checkpoints.rebuild import sparsify_like
from fairseq_mtmoe.conditioning import PARTS
from fairseq_mtmoe.core.errors import UserError
from fairseq_mtmoe.moe import BaseGate, TaskGate
from fairseq_mtmoe.slots import expert_layers
from tests.helpers.models import batch, moe_model, perturb
from tests.helpers.refused import refused

pytestmark = pytest.mark.usefixtures("every_device_kind")


def test_alternate_blocks_of_both_stacks_hold_the_patterns_gates():
    model = moe_model(encoder_layers=6, decoder_layers=6, expert_gates="base,task")
    kinds = {path: type(layer.gate) for path, layer in expert_layers(model).items()}
    assert kinds == {
        f"{stack}.layers.{index}": gate
        for stack in ("encoder", "decoder")
        for index, gate in ((1, BaseGate), (3, TaskGate), (5, BaseGate))
    }


CONDITIONAL = dict(expert_gates="task", conditional=",".join(PARTS), conditional_positions=4)


@pytest.mark.parametrize(
    "options",
    [dict(expert_gates="base"), dict(expert_gates="task"), CONDITIONAL, dict(dense_updates=1, **CONDITIONAL)],
    ids=["base", "task", "conditional", "conditional dense"],
)
def test_activation_checkpointing_gives_the_same_gradients(options):
    """Those of what a block is told of its batch, too, which fairseq's own way to do that loses."""
    other = {**batch(), "task_ids": torch.tensor([2, 2, 0, 0])}
    results = []
    for checkpointing in (False, True):
        model = perturb(moe_model(checkpoint_activations=checkpointing, **options).train())
        outputs = [model(**net_input)[0] for net_input in (batch(), other)]  # all forward before any backward
        sum(output.square().mean() for output in outputs).backward()
        results.append({name: p.grad for name, p in model.named_parameters()})
    torch.testing.assert_close(results[1], results[0])


def test_sparse_checkpoint_makes_a_model_that_starts_dense_sparse():
    trained = perturb(moe_model(seed=1))
    fresh = moe_model(seed=2, dense_updates=7)
    assert fresh.is_dense
    sparsify_like(fresh, {"model": trained.state_dict()})
    fresh.load_state_dict(trained.state_dict())
    assert not fresh.is_dense and torch.equal(fresh(**batch())[0], trained(**batch())[0])


def test_a_checkpoint_of_another_shape_is_refused():
    for checkpoint, model, words in (
        (dict(num_experts=4), dict(num_experts=8), "--num-experts"),
        (dict(dense_updates=5), dict(), "--dense-updates"),
        (dict(expert_interval=1), dict(), "the experts of the model"),
        (dict(), dict(expert_interval=1), "the experts of the model"),
    ):
        with pytest.raises(UserError, match=words):
            moe_model(**model).load_state_dict(moe_model(**checkpoint).state_dict())


@pytest.mark.parametrize(("option", "given"), [
    ("--num-experts", dict(num_experts=0)),
    ("--expert-interval", dict(expert_interval=3)),  # of two blocks
    ("--expert-gates", dict(expert_gates="base,top2")),
    ("--expert-gates", dict(expert_gates="task", task_names=None)),
    ("--cross-self-attention", dict(cross_self_attention=True)),
])  # fmt: skip
def test_options_out_of_range_are_refused(option, given):
    with refused(option):
        moe_model(**given)
