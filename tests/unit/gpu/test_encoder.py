"""Encoders with task heads on a pretended GPU: the numbers are a CPU's, and the host waits for nothing."""

from types import SimpleNamespace

import pytest
import torch
from fairseq.utils import apply_to_sample

from fairseq_mtmoe.moe.device_kind import DeviceKind, device_kind_everywhere
from fairseq_mtmoe.nlu.criterion import MultitaskCriterion
from tests.helpers import waits
from tests.helpers.benchmark import make_benchmark, make_encoder, task_arguments
from tests.helpers.bert import in_all_places, perturb
from tests.helpers.encoders import ANSWERS, TARGET, conditional_encoder, dense_encoder, tag_model, task_batch
from tests.helpers.pretended_gpu import pretended_gpu
from tests.helpers.trainers import groups_of, trainer_of

GATES = ["task", "switch", "base"]
DENSE = {"dense": dense_encoder, "ca_mtl": conditional_encoder}
TYPES = [(torch.float32, (9, 0)), (torch.float16, (9, 0)), (torch.bfloat16, (8, 0)), (torch.bfloat16, (9, 0))]
FORMS = {(8, 0): DeviceKind.GPU, (9, 0): DeviceKind.GPU_WITH_GROUPED_MM}


def model_of(gates, dtype):
    model = DENSE[gates]() if gates in DENSE else tag_model(expert_gates=gates, expert_combine="paper")
    perturb(model)
    return model.to(dtype).train()


def loss_and_gradients(model, sample):
    criterion = MultitaskCriterion(SimpleNamespace(task_types=ANSWERS))
    loss, _, _ = criterion(model, sample)
    loss.backward()
    return [loss.detach(), *(parameter.grad for parameter in model.parameters() if parameter.grad is not None)]


@pytest.mark.parametrize(
    ("gates", "dtype", "capability"),
    [*((gates, *TYPES[0]) for gates in (*DENSE, *GATES)), *((gates, *kind) for gates in GATES for kind in TYPES[1:])],
    ids=str,
)
def test_a_batch_of_several_tasks_trains_as_in_this_form_on_a_cpu(gates, dtype, capability, monkeypatch):
    models = [model_of(gates, dtype) for _ in range(2)]
    sample = {"net_input": task_batch(), "target": TARGET, "nsentences": 5, "ntokens": 38}
    with monkeypatch.context() as patch, device_kind_everywhere(FORMS[capability]):
        in_all_places(patch)
        right = loss_and_gradients(models[0], sample)
    with pretended_gpu(capability) as rules:
        models[1].cuda()
        sample = apply_to_sample(lambda tensor: tensor.cuda(), sample)
        rules.waits.clear()
        found = loss_and_gradients(models[1], sample)
        layers = 0 if gates in (*DENSE, "base") or (dtype, capability) == TYPES[-1] else 2
        assert len(rules.waits) == layers, rules.waits  # which ask where groups of rows end
        assert all(tensor.is_cuda for tensor in found)
    assert len(found) == len(right) > 20
    for one, other in zip(found, right, strict=True):
        torch.testing.assert_close(one, other)


def test_whom_an_update_waits_for(tmp_path):
    """In bfloat16: for the norm of the gradients, and once for what is logged of all four tasks together."""
    waits.prepare()
    make_benchmark(tmp_path, {"train": 30, "dev": 4})
    make_encoder(tmp_path / "encoder.pt")
    options = ("--init-encoder", tmp_path / "encoder.pt", "--clip-norm", 1)
    with pretended_gpu() as rules:
        trainer = trainer_of(task_arguments(tmp_path, tmp_path / "run", *options), common__cpu=False, common__bf16=True)
        for group in groups_of(trainer, 2):  # the first does more
            rules.waits.clear()
            assert trainer.train_step(group)["loss"] > 0
        assert len(rules.waits) == 4, rules.waits
        labels = trainer._prepare_sample(group[0])[0]["target"]["stsb"]
        assert labels.is_cuda and torch.equal(labels.cpu(), group[0]["target"]["stsb"])
