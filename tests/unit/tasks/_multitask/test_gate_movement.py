"""How far gates are from their start: what is counted, what is logged, and how a run goes on with it."""

import logging

import pytest
import torch

from fairseq_mtmoe.analysis import run_log
from fairseq_mtmoe.checkpoints import file_io
from fairseq_mtmoe.slots import expert_layers
from fairseq_mtmoe.tasks._multitask.gate_movement import GateMovement
from fairseq_mtmoe.tasks._multitask.run_log import uncounted
from tests.helpers.digits import make_digit_corpus
from tests.helpers.models import batch, moe_model, perturb
from tests.helpers.training import train_here

GATES = "base,task,switch"
OPTIONS = ("--max-tokens", 200, "--num-experts", 4, "--expert-gates", GATES, "--expert-interval", 1,
           "--encoder-layers", 3, "--decoder-layers", 3, "--validate-interval-updates", 2,
           "--save-interval-updates", 2)  # fmt: skip


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return make_digit_corpus(tmp_path_factory.mktemp("digits"), train=60, test=5)


@torch.no_grad()
def test_tokens_change_their_expert_by_the_gate_alone():
    torch.manual_seed(1)
    model = moe_model(num_experts=4, expert_gates=GATES, expert_interval=1, encoder_layers=3, decoder_layers=3).eval()
    perturb(model)
    movement = GateMovement()
    movement.begin(model, 0)
    layers = expert_layers(model)
    start = {path: layer.gate.weight.clone() for path, layer in layers.items()}
    for layer in layers.values():
        layer.gate.weight += 0.2 * torch.randn_like(layer.gate.weight)
        layer.blend.fill_(0.3)
    movement.begin(model, 5)  # it has begun
    movement.watch(model)
    seen = {path: [] for path in layers}
    hooks = [
        layer.gate.register_forward_hook(lambda gate, inputs, routing, into=seen[path]: into.append((inputs, routing)))
        for path, layer in layers.items()
    ]
    for _ in range(2):
        model(**batch())
    with uncounted(model, movement):  # such as the search of a validation's BLEU
        counts = {path: count.clone() for path, count in movement._counts.items()}
        model(**batch())
    assert all(torch.equal(count, movement._counts[path]) for path, count in counts.items())
    seen = {path: of[:2] for path, of in seen.items()}
    figures = movement.figures(model)
    for hook in hooks:
        hook.remove()
    assert movement.since == 0 and set(figures) == set(layers) and len(layers) == 6
    for path, layer in layers.items():
        changed = total = 0
        for (hidden_TH, task_B, _, _), routing in seen[path]:
            for token, hidden_H in enumerate(hidden_TH):
                if routing.expert_T[token] == 4:
                    continue
                task = task_B[token % len(task_B)]
                then, now = (
                    (weight if weight.dim() == 2 else weight[task]) @ hidden_H
                    for weight in (start[path], layer.gate.weight)
                )
                changed, total = changed + int(then.argmax() != now.argmax()), total + 1
        assert 0 < changed < total
        length = (layer.gate.weight - start[path]).norm() / start[path].norm()
        assert figures[path] == pytest.approx({"blend": 0.3, "moved": length.item(), "changed": changed / total})
    model(**batch())  # nobody compares any more
    assert movement.figures(model)[path].keys() == {"blend"}


def gates(folder):
    return [event for event in run_log.read(folder) if event["event"] == "gates"]


def test_a_run_logs_it_and_goes_on_with_it_also_from_a_checkpoint_of_before(corpus, tmp_path):
    dense = (*OPTIONS, "--dense-updates", 1)
    train_here(corpus, tmp_path / "whole", *dense, "--max-update", 6)
    whole = gates(tmp_path / "whole")
    assert whole[-1]["update"] == 6 and {event["since"] for event in whole} == {1}
    assert all(len(event["layers"]) == 6 for event in whole)
    assert all(figures.keys() == {"blend", "moved", "changed"} for figures in whole[-1]["layers"].values())
    train_here(corpus, tmp_path / "run", *dense, "--max-update", 4)
    train_here(corpus, tmp_path / "run", *dense, "--max-update", 6)
    assert gates(tmp_path / "run") == whole
    path = str(tmp_path / "run" / "checkpoint_last.pt")
    state = file_io.load(path)
    del state["extra_state"]["TranslationHeatedTask"]["gates"]
    file_io.save(state, path)
    train_here(corpus, tmp_path / "run", *dense, "--max-update", 8)
    assert gates(tmp_path / "run")[-1]["since"] == 6


def test_gates_that_stay_are_named_once_at_the_end(corpus, tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        logging.disable(logging.NOTSET)
        train_here(corpus, tmp_path / "run", *OPTIONS, "--gate-lr-factor", 0, "--max-update", 4)
    (said,) = [record.message for record in caplog.records if "hardly learned" in record.message]
    assert "weights moved by less than 0.1 of their first length in encoder.layers.0, enc" in said
