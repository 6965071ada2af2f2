"""Layers and models on a pretended GPU: the numbers are right, and nothing is where it should not be."""

import pytest
import torch
from fairseq.sequence_generator import SequenceGenerator
from torch.nn import functional as F

from fairseq_mtmoe.moe import ExpertBank, MoELayer, build_gate
from fairseq_mtmoe.moe.device_kind import DeviceKind, device_kind_everywhere
from tests.helpers.layer_reference import slow_forward
from tests.helpers.models import batch, moe_model, perturb, stub_task
from tests.helpers.pairwise import pairwise
from tests.helpers.pretended_gpu import pretended_gpu

GATES = ["base", "task", "switch", "base,task"]
TOLERANCES = {torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 3e-2}
CAPABILITIES = {(8, 0): DeviceKind.GPU, (9, 0): DeviceKind.GPU_WITH_GROUPED_MM}


def moved(arguments):
    return [None if tensor is None else tensor.cuda() for tensor in arguments]


@pairwise(
    kind=GATES[:3], activation=[F.relu, F.gelu], training=[True, False], capability=CAPABILITIES, dtype=TOLERANCES
)
def test_a_layer_gives_the_outputs_and_gradients_of_the_reference(kind, activation, training, capability, dtype):
    torch.manual_seed(0)
    layer = MoELayer(build_gate(kind, 4, 8, 3), ExpertBank(4, 8, 16, activation=activation)).to(dtype).train(training)
    with torch.no_grad():
        layer.gate.weight.normal_(std=0.3)
        layer.blend.fill_(0.4)
    hidden, branch, weight = (torch.randn(7, 3, 8).to(dtype) for _ in range(3))
    padding, tasks = torch.rand(7, 3) < 0.3, torch.randint(3, (7, 3))

    def gradients(forward, *arguments):
        inputs = [tensor.requires_grad_() for tensor in arguments[:2]]
        output = forward(*arguments)
        (output * weight.to(output.device)).sum().backward()
        named = {name: parameter.grad for name, parameter in layer.named_parameters()}
        found = {"output": output.detach(), "hidden": inputs[0].grad, "branch": inputs[1].grad, **named}
        layer.zero_grad()
        return found

    with device_kind_everywhere(CAPABILITIES[capability]):
        slow = gradients(lambda *args: slow_forward(layer, *args), hidden.clone(), branch.clone(), padding, tasks)
    with pretended_gpu(capability):
        layer.cuda()
        fast = gradients(layer, *moved([hidden, branch, padding, tasks]))
        assert all(tensor.is_cuda for tensor in fast.values() if tensor is not None)
    for name, right in slow.items():
        if right is None:  # what the gate of evaluation does not reach
            assert fast[name] is None or not fast[name].any(), name
            continue
        # The gradient of a single number is a sum whose terms cancel: what is rounded has their size.
        scale = max(right.abs().max().item(), 1 if name == "blend" else 1e-3)
        assert (fast[name].float() - right.float()).abs().max() <= TOLERANCES[dtype] * scale, name


def passed(model, net_input):
    """The output and all gradients."""
    output, _ = model(**net_input)
    output.float().square().mean().backward()
    return [output.detach(), *(parameter.grad for parameter in model.parameters())]


@pairwise(gates=GATES, dtype=TOLERANCES, capability=CAPABILITIES)
def test_a_model_trains_as_in_this_form_on_a_cpu(gates, dtype, capability):
    layers = dict(encoder_layers=4, decoder_layers=4) if "," in gates else {}
    models = [perturb(moe_model(expert_gates=gates, **layers)).to(dtype).train() for _ in range(2)]
    with device_kind_everywhere(CAPABILITIES[capability]):
        right = passed(models[0], batch())
    with pretended_gpu(capability):
        net_input = {name: tensor.cuda() for name, tensor in batch().items()}
        found = passed(models[1].cuda(), net_input)
        assert all(tensor.is_cuda for tensor in found)
    for one, other in zip(found, right, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("gates", GATES[:3])
def test_sparsifying_on_a_gpu_and_translating(gates):
    """Beam search of fairseq's, word by word; the model becomes sparse where it is."""
    models = [moe_model(expert_gates=gates, dense_updates=1) for _ in range(2)]
    for model in models:
        perturb(model)
    target = stub_task().target_dictionary

    def translations(model, net_input):
        generator = SequenceGenerator([model], target, beam_size=3, max_len_b=8)
        found = generator.generate([model], net_input)
        return [[hypothesis["tokens"].tolist() for hypothesis in each] for each in found]

    models[0].sparsify()
    right = translations(models[0], {"net_input": batch()})
    with pretended_gpu():
        models[1].cuda().sparsify()
        models[1].load_state_dict(models[0].state_dict())
        assert all(parameter.is_cuda for parameter in models[1].parameters())
        net_input = {name: tensor.cuda() for name, tensor in batch().items()}
        assert translations(models[1], {"net_input": net_input}) == right
