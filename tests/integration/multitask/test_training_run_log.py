"""What a run logs: time and tokens that count, and what a validation adds up of tasks, groups, experts and gates."""

import itertools
import math

import numpy as np
import pytest
import torch
from fairseq.logging import metrics

from fairseq_mtmoe.multitask import run_log, validation
from fairseq_mtmoe.multitask.run_log import LINES, Stopwatch, TrainingRecord
from fairseq_mtmoe.multitask.validation import GateMovement, Group, add_task_sums, group_values, log_groups
from fairseq_mtmoe.report.run_log import read
from fairseq_mtmoe.slots import expert_layers
from tests.helpers.digits import digit_fixture
from tests.helpers.models import batch, moe_model, perturb
from tests.helpers.pemt import pemt_translator, target_model
from tests.helpers.refused import refused
from tests.helpers.training import train_here

PAIRS = ["en-aa", "en-bb", "en-cc"]
ALONE = [Group(pair, (pair,)) for pair in PAIRS]


def output(pair, loss, nll_loss, tokens):
    """A criterion's; `nll_loss` None: of one that has none."""
    log = {"loss": loss, "ntokens": tokens, "sample_size": tokens}
    log |= {} if nll_loss is None else {"nll_loss": nll_loss}
    add_task_sums(log, pair, PAIRS)
    return log


@pytest.fixture
def meters():
    with metrics.aggregate(new_root=True) as meters:
        yield meters


def test_pairs_and_tiers_are_averages_over_tokens_in_base_2(meters):
    for log in (output("en-aa", 20.0, 10.0, 10), output("en-aa", 5.0, 2.0, 2), output("en-bb", 12.0, 9.0, 3)):
        log_groups([log], [*ALONE, Group("high", ("en-aa", "en-bb"))])
    for name, loss, nll_loss, tokens in (("en-aa", 25, 12, 12), ("high", 37, 21, 15)):
        figures = {"loss": loss / tokens / math.log(2), "nll_loss": nll_loss / tokens / math.log(2), "tokens": tokens}
        figures["ppl"] = math.exp(nll_loss / tokens)
        assert group_values(meters, f"{name}_") == pytest.approx(figures)  # for the run log, and not rounded
    assert "en-cc_loss" not in meters
    log_groups([output("en-cc", 6.0, None, 3)], ALONE)
    assert meters["en-cc_nll_loss"].avg == meters["en-cc_loss"].avg == pytest.approx(2 / math.log(2))
    metrics.log_scalar("loss", 2000.0, 5)
    assert group_values(meters, "") == {"loss": 2000.0, "nll_loss": 2000.0, "ppl": math.inf, "tokens": 5}


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
    context = model.encoder(**{name: inputs[name] for name in ("src_tokens", "src_lengths")})["encoder_pass"][0]
    for path, each in zip(found, context.weights.values(), strict=False):
        assert found[path] == pytest.approx(each.mean(0).tolist(), abs=1e-5)


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
    movement.watch(model)
    for _ in range(2):
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


def test_only_running_time_counts(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(run_log.time, "monotonic", lambda: now[0])
    watch = Stopwatch()
    watch.stop_at(60)
    watch.start()
    now[0] += 5
    assert watch.seconds == 65 and watch.is_running
    for _ in range(2):
        watch.stop()
        now[0] += 100
    assert watch.seconds == 65 and not watch.is_running


def test_figures_have_our_names_and_tokens_are_of_all_updates():
    record = TrainingRecord()
    figures = {"loss": 3.5, "gnorm": torch.tensor(2.0), "nonfinite_updates": 4, "wall": 9.0, "ups": "fast"}
    assert record.add(50, figures) == {"loss": 3.5, "gnorm": 2.0, "skipped": 4.0}
    record.add_tokens([{"ntokens": 5}, {"ntokens": 7.0}])
    record.add_tokens([{"ntokens": 3}, {"loss": 1.0}])
    assert record.tokens == 15


def test_long_runs_have_fewer_lines_with_means_of_what_they_leave_out():
    record = TrainingRecord()
    of_all = {n: record.add(n, {"loss": float(n), "nonfinite_updates": n}) for n in range(1, 20 * LINES + 1)}
    lines = {update: found for update, found in of_all.items() if found is not None}
    updates = list(lines)
    assert updates[:LINES] == list(range(1, LINES + 1)) and len(lines) < 5 * LINES
    for before, update in itertools.pairwise([0, *updates]):
        assert lines[update] == {"loss": pytest.approx((before + 1 + update) / 2), "skipped": update}
        assert update - before <= max(1, update / LINES + 1)


def test_a_training_does_not_validate_its_own_data(corpus, tmp_path):
    subsets = ("--valid-subset", "valid,train")
    with refused("--valid-subset"):
        train_here(corpus, tmp_path, *subsets, "--max-update", 1)
    assert len(train_here(corpus, tmp_path, *subsets, "--max-update", 1, "--disable-validation")["losses"]) == 1
