"""What a run logs: time and tokens that count, and what a validation adds up of tasks, groups, experts and gates."""

import itertools
import logging
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from fairseq.logging import metrics

from fairseq_mtmoe.analysis.run_log import read
from fairseq_mtmoe.slots import expert_layers
from fairseq_mtmoe.tasks._multitask import run_log, validation
from fairseq_mtmoe.tasks._multitask.run_log import LINES, Stopwatch, TrainingRecord, TrainingRunLog
from fairseq_mtmoe.tasks._multitask.task import Multitask
from fairseq_mtmoe.tasks._multitask.validation import GateMovement, Group, add_task_sums, group_values, log_groups
from tests.helpers.digits import digit_fixture
from tests.helpers.models import batch, moe_model, perturb
from tests.helpers.pemt import pemt_translator, target_model
from tests.helpers.pretended_gpu import pretended_gpu
from tests.helpers.refused import refused
from tests.helpers.training import train_here

PAIRS = ["en-aa", "en-bb", "en-cc"]
ALONE = [Group(pair, (pair,)) for pair in PAIRS]


def output(pair, loss, nll_loss, tokens, device="cpu"):
    """A criterion's; `nll_loss` None: of one that has none."""
    log = {"loss": loss, "nll_loss": nll_loss}
    log = {name: torch.full((), value, device=device) for name, value in log.items() if value is not None}
    log |= {"ntokens": tokens, "sample_size": tokens}
    add_task_sums(log, pair, PAIRS)
    return log


@pytest.fixture
def meters():
    with metrics.aggregate(new_root=True) as meters:
        yield meters


def test_every_output_has_the_same_keys_of_the_same_types():
    first, second = output("en-aa", 2.0, 1.0, 3), output("en-cc", 5.0, 4.0, 7)
    assert [(key, type(value)) for key, value in first.items()] == [(key, type(v)) for key, v in second.items()]
    assert first["en-aa_loss"] == 2.0 and first["en-cc_loss"] == 0.0 and second["en-cc_ntokens"] == 7


def test_pairs_and_tiers_are_averages_over_tokens_in_base_2(meters):
    for log in (output("en-aa", 20.0, 10.0, 10), output("en-aa", 5.0, 2.0, 2), output("en-bb", 12.0, 9.0, 3)):
        log_groups([log], [*ALONE, Group("high", ("en-aa", "en-bb"))])
    for name, loss, nll_loss, tokens in (("en-aa", 25, 12, 12), ("high", 37, 21, 15)):
        figures = {"loss": loss / tokens / math.log(2), "nll_loss": nll_loss / tokens / math.log(2), "tokens": tokens}
        figures["ppl"] = math.exp(nll_loss / tokens)
        assert group_values(meters, f"{name}_") == pytest.approx(figures)  # for the run log, and not rounded
        assert meters.get_smoothed_value(f"{name}_ppl") == pytest.approx(figures["ppl"], abs=0.01)
    assert "en-cc_loss" not in meters
    log_groups([output("en-cc", 6.0, None, 3)], ALONE)
    assert meters["en-cc_nll_loss"].avg == meters["en-cc_loss"].avg == pytest.approx(2 / math.log(2))
    metrics.log_scalar("loss", 2000.0, 5)
    assert group_values(meters, "") == {"loss": 2000.0, "nll_loss": 2000.0, "ppl": math.inf, "tokens": 5}


def test_a_gpus_sums_are_copied_once(meters):
    with pretended_gpu() as rules:
        logs = [output(pair, 2.0 * n, 2.0 * n, n, device="cuda") for pair, n in (("en-aa", 3), ("en-cc", 7))]
        assert not rules.waits
        log_groups([validation.plain_numbers(log) for log in logs], [*ALONE, Group("all", tuple(PAIRS))])
        assert len(rules.waits) == len(logs)
    assert meters["all_nll_loss"].avg == meters["en-cc_loss"].avg == pytest.approx(2 / math.log(2))
    assert meters["all_loss"].count == 10


def test_entropy_of_layers_and_tasks_and_experts_in_use():
    layers = {"a": [[5, 5, 5, 5], [8, 0, 0, 0], [0, 0, 0, 0]], "b": [[1, 1, 0, 0], [0, 0, 4, 0], [0, 0, 0, 0]]}
    assert validation.expert_figures(layers, ["x", "y", "z"]) == {
        "expert_entropy/a": 0.5, "experts_used/a": 1.0, "expert_entropy/b": 0.25, "experts_used/b": 0.75,
        "expert_entropy/x": 0.75, "expert_entropy/y": 0.0,
    }  # fmt: skip
    assert validation.expert_figures({"a": [[0, 0], [0, 0]]}, ["x", "y"]) == {}


def test_counts_of_experts_are_those_of_all_processes(monkeypatch):
    load = SimpleNamespace(enabled=False, counts=torch.zeros(2, 3), reset=lambda: None)
    layer = SimpleNamespace(load=load, parameters=lambda: iter([torch.zeros(1)]))
    monkeypatch.setattr(validation, "expert_layers", lambda model: {"encoder.layers.1": layer})
    monkeypatch.setattr(validation, "adapter_blocks", lambda model: {})
    monkeypatch.setattr(validation.torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(validation.torch.distributed, "all_reduce", lambda counts: counts.mul_(2))
    validation.set_counting(None, True)
    assert load.enabled
    load.counts += torch.arange(6).view(2, 3)
    validation.set_counting(None, False)
    assert validation.expert_counts(None) == {"encoder.layers.1": [[0, 2, 4], [6, 8, 10]]}
    assert not load.enabled and load.counts.sum() == 15


def test_weights_of_sources_are_means_over_sentences_of_what_was_passed_since():
    model = perturb(target_model(make=pemt_translator, gate_input="hidden"))
    inputs = batch(task_ids=False)
    model(**inputs)
    validation.set_counting(model, True)
    for part in (slice(3), slice(3, 4)):
        model(**{name: value[part] for name, value in inputs.items()})
    found = validation.mixture_weights(model)
    validation.set_counting(model, False)
    model(**inputs)
    assert found == validation.mixture_weights(model)
    assert list(found) == ["encoder.layers.0", "encoder.layers.1", "decoder.layers.0", "decoder.layers.1"]
    context = model.encoder(**{name: inputs[name] for name in ("src_tokens", "src_lengths")})["mixture"][0]
    for path, each in zip(found, context.weights.values(), strict=False):
        assert found[path] == pytest.approx(each.mean(0).tolist(), abs=1e-5)
        assert abs(found[path][0] - 0.5) > 1e-3
    validation.set_counting(model, True)
    assert all(torch.tensor(row).isnan().all() for row in validation.mixture_weights(model).values())


GATED = {"num_experts": 4, "expert_gates": "base,task,switch", "expert_interval": 1, "encoder_layers": 3,
         "decoder_layers": 3}  # fmt: skip
OPTIONS = ("--max-tokens", 200, "--validate-interval-updates", 2, "--save-interval-updates", 2,
           *(part for name, value in GATED.items() for part in (f"--{name.replace('_', '-')}", value)))  # fmt: skip
corpus = digit_fixture(train=60, valid=10, test=5)


@torch.no_grad()
def test_tokens_change_their_expert_by_the_gate_alone():
    model = moe_model(**GATED)
    perturb(model)
    movement = GateMovement()
    movement.begin(model, 0)
    layers = expert_layers(model)
    start = {path: layer.gate.weight.clone() for path, layer in layers.items()}
    seen = {path: [] for path in layers}
    for path, layer in layers.items():
        layer.gate.weight += 0.2 * torch.randn_like(layer.gate.weight)
        layer.blend.fill_(0.3)
        layer.gate.register_forward_hook(lambda gate, inputs, routing, into=seen[path]: into.append((inputs, routing)))
    movement.begin(model, 5)  # it has begun
    movement.watch(model)
    for _ in range(2):
        model(**batch())
    with validation.uncounted(model, movement):  # such as the search of a validation's BLEU
        model(**batch())
    figures = movement.figures(model)
    assert movement.since == 0 and set(figures) == set(layers) and len(layers) == 6
    for path, layer in layers.items():
        changed = []
        for (hidden_TH, task_B, _, _), routing in seen[path][:2]:
            for token in (routing.expert_T < 4).nonzero().flatten().tolist():
                both, task = (start[path], layer.gate.weight), task_B[token % len(task_B)]
                then, now = (((of if of.dim() == 2 else of[task]) @ hidden_TH[token]).argmax() for of in both)
                changed.append(int(then != now))
        assert set(changed) == {0, 1}
        length = (layer.gate.weight - start[path]).norm() / start[path].norm()
        assert figures[path] == pytest.approx({"blend": 0.3, "moved": length.item(), "changed": np.mean(changed)})
    model(**batch())  # nobody compares any more
    assert movement.figures(model)[path].keys() == {"blend"}


def test_a_run_logs_it_and_goes_on_with_it_also_from_a_checkpoint_of_before(corpus, tmp_path):
    def gates(name, updates):
        train_here(corpus, tmp_path / name, *OPTIONS, "--dense-updates", 1, "--max-update", updates)
        return [event for event in read(tmp_path / name) if event["event"] == "gates"]

    whole = gates("whole", 6)
    assert whole[-1]["update"] == 6 and {event["since"] for event in whole} == {1}
    assert all(len(event["layers"]) == 6 for event in whole)
    assert all(figures.keys() == {"blend", "moved", "changed"} for figures in whole[-1]["layers"].values())
    gates("run", 4)
    assert gates("run", 6) == whole


def test_a_run_that_begins_its_data_anew_keeps_its_counts_unless_its_moments_go_too(corpus, tmp_path):
    def last(*options):
        train_here(corpus, tmp_path, *OPTIONS, *options)
        valid, gates = ([e for e in read(tmp_path) if e["event"] == event][-1] for event in ("valid", "gates"))
        return valid["tokens"], valid["minutes"], gates["since"]

    tokens, minutes, since = last("--max-update", 4)
    more_tokens, more_minutes, still = last("--max-update", 6, "--reset-dataloader")
    assert more_tokens > tokens and more_minutes > minutes and still == since == 0
    again = last("--max-update", 4, "--reset-dataloader", "--reset-optimizer")
    assert again[0] < more_tokens


def test_gates_that_stay_are_named_once_at_the_end(corpus, tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        logging.disable(logging.NOTSET)
        train_here(corpus, tmp_path / "run", *OPTIONS, "--gate-lr-factor", 0, "--max-update", 4)
    (said,) = [record.message for record in caplog.records if "hardly learned" in record.message]
    assert "weights moved by less than 0.1 of their first length in encoder.layers.0, enc" in said


def test_only_running_time_counts(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(run_log.time, "monotonic", lambda: now[0])
    watch = Stopwatch()
    watch.seconds = 60
    assert watch.seconds == 60 and not watch.is_running
    watch.start()
    now[0] += 5
    assert watch.seconds == 65 and watch.is_running
    for _ in range(2):
        watch.stop()
        now[0] += 100
    assert watch.seconds == 65 and not watch.is_running


@pytest.mark.parametrize("rank", [0, 1])
def test_only_the_first_process_writes(rank, tmp_path, monkeypatch):
    monkeypatch.setattr(run_log.torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(run_log.torch.distributed, "get_rank", lambda: rank)
    log = TrainingRunLog(tmp_path / "mtmoe.jsonl")
    log.write("run", seed=1)
    assert (tmp_path / "mtmoe.jsonl").exists() == (rank == 0) and log.has_begun


def test_figures_have_our_names_and_tokens_are_of_all_updates_and_unknown_after_an_old_checkpoint():
    record = TrainingRecord()
    figures = {"loss": 3.5, "gnorm": torch.tensor(2.0), "nonfinite_updates": 4, "wall": 9.0, "ups": "fast"}
    assert record.add(50, figures) == {"loss": 3.5, "gnorm": 2.0, "skipped": 4.0}
    record.add_tokens([{"ntokens": 5}, {"ntokens": 7.0}])
    record.add_tokens([{"ntokens": 3}, {"loss": 1.0}])
    assert record.tokens == 15
    record.tokens = None
    record.add_tokens([{"ntokens": 3}])
    assert record.tokens is None


def test_long_runs_have_fewer_lines_with_means_of_what_they_leave_out():
    record = TrainingRecord()
    of_all = {n: record.add(n, {"loss": float(n), "nonfinite_updates": n}) for n in range(1, 20 * LINES + 1)}
    lines = {update: found for update, found in of_all.items() if found is not None}
    updates = list(lines)
    assert updates[:LINES] == list(range(1, LINES + 1)) and len(lines) < 5 * LINES
    for before, update in itertools.pairwise([0, *updates]):
        assert lines[update] == {"loss": pytest.approx((before + 1 + update) / 2), "skipped": update}
        assert update - before <= max(1, update / LINES + 1)


def test_a_checkpoint_without_tokens_and_gates_gives_the_time_alone(tmp_path):
    parts = {"validated_tasks": [], "groups": lambda self: [], "uncertainties": None}
    task = type("Whole", (Multitask,), parts)(cfg=None)
    task.args = SimpleNamespace(save_dir=str(tmp_path), train_subset="train")
    task.set_up_tasks(["en-aa"])
    task.set_checkpoint_dict({"training_seconds": 60.0})
    assert task.stopwatch.seconds == 60 and task.record.tokens is None and task.movement.since is None


@pytest.mark.parametrize("subsets", [("--valid-subset", "valid,train"), ("--train-subset", "valid")])
def test_a_training_does_not_validate_its_own_data(subsets, corpus, tmp_path):
    with refused("--valid-subset"):
        train_here(corpus, tmp_path, *subsets, "--max-update", 1)
    assert len(train_here(corpus, tmp_path, *subsets, "--max-update", 1, "--disable-validation")["losses"]) == 1
