"""Whole updates on a pretended GPU, in one process and in several, and how often the host waits."""

import logging
import math

import pytest
import torch
from torch.nn import functional as F

from fairseq_mtmoe.moe.device_kind import DeviceKind, device_kind_everywhere
from tests.helpers import waits
from tests.helpers.processes import run_processes
from tests.helpers.trainers import groups_of, state_of, trainer_here


@pytest.mark.parametrize("options", [{}, {"activation": F.gelu, "dropout": 0.1}], ids=["relu", "gelu"])
@pytest.mark.parametrize("dtype", waits.TYPES)
def test_base_gates_wait_for_nothing_in_training_and_others_once(dtype, options):
    for gate in waits.GATES:
        expected = 0 if dtype == ("bfloat16", (9, 0)) else 1  # where there are grouped products
        assert waits.layer_waits(gate, *dtype, training=True, **options) == (0 if gate == "base" else expected)
        assert waits.layer_waits(gate, *dtype, training=False, **options) == expected


@pytest.mark.parametrize("gates", ["base", "task"])
def test_updates_are_those_of_this_form_on_a_cpu(digits, tmp_path, gates):
    """The parameters and moments after three updates."""
    options = ("--expert-gates", gates, "--criterion", "moe_label_smoothed_cross_entropy", "--optimizer", "fused_adam")

    def updated(cpu):
        trainer = trainer_here(digits, tmp_path / str(cpu), *options, common__cpu=cpu)
        for group in groups_of(trainer, 3):
            trainer.train_step(group)
        return state_of(trainer)

    with device_kind_everywhere(DeviceKind.GPU_WITH_GROUPED_MM):
        right = updated(cpu=True)
    with waits.pretended_gpu():
        found = updated(cpu=False)
        assert all(value.is_cuda for name, value in found.items() if not name.endswith("step"))
    assert found.keys() == right.keys()
    for name, value in right.items():
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-5, msg=name)


# Nine batches: in an epoch's last update some processes have none of their own.
FEW = ("--max-tokens", 300, "--virtual-epoch-size", 250)


def update_everywhere(rank, data, folder):
    """The updates of an epoch: what they make of the parameters that all share, and whether a batch was another's."""
    logging.disable(logging.INFO)
    waits.prepare()
    sizes, was_idle = [], False
    for gates, dtype in (("base", "float16"), ("task", "float32")):
        with waits.pretended_gpu():
            trainer = waits.gpu_trainer(data, folder / gates, gates, dtype, *FEW)
            for group in groups_of(trainer, 12):
                assert trainer.train_step(group)["loss"] > 0
                was_idle = was_idle or True in trainer._dummies
            shared = [parameter for parameter in trainer.get_model().parameters() if not hasattr(parameter, "expert")]
            sizes += [float(parameter.detach().float().norm()) for parameter in shared]
            assert trainer.get_num_updates() > 1
    return sizes, was_idle


def test_several_processes_update_with_idle_ones_among_them(digits, tmp_path):
    results = run_processes(update_everywhere, 4, digits, tmp_path, seconds=300)
    assert any(was_idle for _, was_idle in results)
    first, *others = [sizes for sizes, _ in results]
    assert all(other == first for other in others)
    assert len(first) > 50 and all(map(math.isfinite, first))
