"""`--zero-sharding os` changes where an optimizer's state is, not what it does, and not what is saved of it."""

import pytest
import torch
from omegaconf import OmegaConf
from torch import distributed as dist

from fairseq_mtmoe.errors import UserError
from tests.helpers.processes import run_processes


def build(kind, spread, num_experts, weights=None):
    """A sparse model and fairseq's optimizer of it, whose state is spread over the processes or not."""
    from fairseq.optim.adam import FairseqAdam, FairseqAdamConfig

    from fairseq_mtmoe.optim.fused_adam import FairseqFusedAdam, FusedAdamConfig
    from fairseq_mtmoe.training.zero_sharding import shard
    from tests.helpers.models import moe_model, perturb

    model = moe_model(num_experts=num_experts, no_token_shuffle=True)
    if weights is None:
        perturb(model)
    else:
        model.load_state_dict(weights)
    options = dict(adam_betas="(0.9, 0.98)", weight_decay=0.01, lr=[0.5])
    parameters = list(model.parameters())
    if kind == "adam":
        optimizer = FairseqAdam(FairseqAdamConfig(**options, tpu=False), parameters)
    else:
        optimizer = FairseqFusedAdam(FusedAdamConfig(**options), parameters)
    if spread:
        shard(optimizer, dist.group.WORLD)
    return model.train(), optimizer


def make_updates(model, optimizer, rank, updates):
    from tests.helpers.models import batch

    for update in updates:
        optimizer.zero_grad()
        optimizer.set_lr(0.01 / (update + 1))
        net_input = {key: value[2 * rank : 2 * rank + 2] for key, value in batch().items()}
        logits, _ = model(**net_input)
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), net_input["prev_output_tokens"].flatten())
        optimizer.backward(loss)
        for parameter in model.parameters():
            if not hasattr(parameter, "expert"):  # what data parallelism does
                dist.all_reduce(parameter.grad.div_(dist.get_world_size()))
        optimizer.step()


def saved_state(optimizer):
    """What a process would load: the first one's state, but for experts that are its own."""
    if hasattr(optimizer.optimizer, "consolidate_state_dict"):
        optimizer.optimizer.consolidate_state_dict()
    own = None
    if dist.get_rank() == 0 or any(hasattr(parameter, "expert") for parameter in optimizer.params):
        own = optimizer.state_dict()
    sent = [own]
    dist.broadcast_object_list(sent)
    experts = [place for place, parameter in enumerate(optimizer.params) if hasattr(parameter, "expert")]
    state = sent[0]["state"] | {place: own["state"][place] for place in experts}
    return {**sent[0], "state": {place: state[place] for place in sent[0]["state"]}}


def train_and_resume(rank, kind, num_experts, spreads):
    """Train with the state spread or not, save, go on with it spread or not; for each such pair."""
    results = {}
    for before, after in spreads:
        model, optimizer = build(kind, before, num_experts)
        make_updates(model, optimizer, rank, range(5))
        state = saved_state(optimizer)
        first = as_lists(model.state_dict())
        saved = {place: as_lists(entry) for place, entry in state["state"].items()}
        resumed, resumed_optimizer = build(kind, after, num_experts, model.state_dict())
        resumed_optimizer.load_state_dict(state, resumed_optimizer.optimizer_config)
        make_updates(resumed, resumed_optimizer, rank, range(5, 8))
        then = as_lists(resumed.state_dict())
        results[before, after] = (first, then, saved, state["param_groups"], held_by(optimizer))
    return results


def as_lists(values):
    return {name: torch.as_tensor(value).tolist() for name, value in values.items()}


def held_by(optimizer):
    """How many numbers of state this process keeps for its next update."""
    inner = optimizer.optimizer
    parts = [inner.shared.optim, inner.experts] if hasattr(inner, "shared") else [getattr(inner, "optim", inner)]
    entries = [entry for part in parts for entry in part.state.values()]
    return sum(value.numel() for entry in entries for value in entry.values() if torch.is_tensor(value))


SPREADS = [(False, False), (False, True), (True, False), (True, True)]


@pytest.mark.parametrize(("kind", "num_experts"), [("adam", 4), ("fused_adam", 4), ("adam", 3)])
def test_spread_state_trains_and_resumes_alike(kind, num_experts):
    """With experts that are exchanged (4), and with experts in every process (3)."""
    one, other = run_processes(train_and_resume, 2, kind, num_experts, SPREADS)
    for results in (one, other):
        first, then, state, groups, held = results[False, False]
        for spreads in SPREADS[1:]:
            other_first, other_then, other_state, other_groups, other_held = results[spreads]
            assert_close(other_first, first)
            assert_close(other_then, then)
            assert list(other_state) == list(state) == list(range(len(state))) and other_groups == groups
            for place, entry in state.items():
                assert_close(other_state[place], entry)
            assert (other_held < 0.8 * held) == spreads[0]
    for name, value in one[True, True][1].items():
        own = num_experts == 4 and ".moe.experts." in name
        assert (value != other[True, True][1][name]) == own, name


@pytest.mark.parametrize(
    ("model", "sampling", "has_cuda", "place"),
    [
        ({"num_experts": 4}, "temperature", True, "with experts in several processes"),
        ({"num_experts": 3}, "uncertainty", True, "with `--sampling-method uncertainty`"),
        ({"freeze_layers": "half"}, "temperature", True, "with `--freeze-layers half`"),
        ({"num_experts": 3, "gate_lr_factor": 2.0}, "temperature", True, "with `--gate-lr-factor`"),
        ({"num_experts": 3}, "temperature", False, "on a machine without CUDA"),
        ({"num_experts": 3, "freeze_layers": "0"}, "temperature", True, None),
        ({}, None, True, None),
    ],
)
def test_full_sharding_is_refused_where_it_cannot_work(model, sampling, has_cuda, place, monkeypatch):
    from fairseq_mtmoe.training.option_check import refuse_full_sharding

    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_cuda)
    distributed = {"ddp_backend": "fully_sharded", "distributed_world_size": 2}
    task = {} if sampling is None else {"sampling_method": sampling}
    cfg = OmegaConf.create({"model": model, "task": task, "distributed_training": distributed})
    if place is None:
        refuse_full_sharding(cfg)
        return
    with pytest.raises(UserError, match=f"`--ddp-backend` must be .* {place}, .*fully_sharded"):
        refuse_full_sharding(cfg)
    cfg.distributed_training.ddp_backend = "legacy_ddp"
    refuse_full_sharding(cfg)


def test_one_process_keeps_the_whole_state():
    from fairseq_mtmoe.training.zero_sharding import shard

    _, optimizer = build("adam", False, 4)
    plain = optimizer.optimizer
    shard(optimizer, None)
    assert optimizer.optimizer is plain


def assert_close(found, expected):
    assert list(found) == list(expected)
    for name, value in expected.items():
        torch.testing.assert_close(torch.tensor(found[name]), torch.tensor(value), rtol=1e-6, atol=1e-6, msg=name)
