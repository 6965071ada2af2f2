"""The task's hooks, one by one, with tiny models; BLEU and chrF++ in validation."""

import shutil
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion
from fairseq.logging import metrics
from omegaconf import OmegaConf

from fairseq_mtmoe.core.errors import UserError
from fairseq_mtmoe.multitask.mixtures.candidates import CANDIDATES
from fairseq_mtmoe.multitask.mixtures.dataset import BatchLimits
from fairseq_mtmoe.report.run_log import read
from fairseq_mtmoe.report.scores import score_pair
from fairseq_mtmoe.slots import expert_layers
from fairseq_mtmoe.translation.decode.decode import Decoding
from fairseq_mtmoe.translation.decode.translator import Translator
from tests.helpers.digits import PAIRS, digit_dictionary, digit_fixture, digit_task
from tests.helpers.models import SIZES, BaseMoEConfig, DenseConfig, perturb
from tests.helpers.processes import run_processes
from tests.helpers.refused import refused
from tests.helpers.training import train_here


def options_of(kind, name, **options):
    cfg = OmegaConf.structured(kind(**{**SIZES, **options}))
    cfg._name = name
    OmegaConf.set_struct(cfg, True)
    return cfg


def moe_options(**options):
    return options_of(BaseMoEConfig, "base_moe", num_experts=3, expert_gates="task", **options)


def moe(task, from_checkpoint=False, **options):
    torch.manual_seed(1)
    return task.build_model(moe_options(**options), from_checkpoint=from_checkpoint)


def dense(task):
    return task.build_model(options_of(DenseConfig, "base_dense"))


def criterion(task):
    return LabelSmoothedCrossEntropyCriterion(task, False, 0.1)


def batches(task, split="valid"):
    task.load_dataset(split)
    iterator = task.get_batch_iterator(task.dataset(split), max_tokens=100)
    return list(iterator.next_epoch_itr(shuffle=False))


def interactive(digits, **options):
    """A task that translates to `cc` with what a training's checkpoint says, its model, and the training's task."""
    training, task = digit_task(digits, **options), digit_task(digits, source_lang="en", target_lang="cc")
    task.load_state_dict(training.state_dict())
    return task, moe(task, from_checkpoint=True, task_names=",".join(training.task_names)), training


@pytest.mark.parametrize(("task_ids", "names", "of_pairs"), [
    ("target", ["aa", "bb", "cc"], [0, 1, 2]),  # English is a source alone
    ("pair", list(PAIRS), [0, 1, 2]),
    ("aa+cc", ["aa+cc", "bb"], [0, 1, 0]),
])  # fmt: skip
def test_the_model_learns_the_names_of_the_tasks(task_ids, names, of_pairs, digits):
    task, cfg = digit_task(digits, task_ids=task_ids), moe_options()
    assert task.build_model(cfg).task_names == task.task_names == names
    assert cfg.task_names == ",".join(names)  # in the checkpoint
    assert [task.task_id(pair) for pair in PAIRS] == of_pairs


def test_generation_uses_the_models_names_which_an_ensemble_agrees_on(digits):
    task = digit_task(digits, source_lang="en", target_lang="bb")
    for _ in range(2):
        moe(task, from_checkpoint=True, task_names="xx,bb,yy")
    assert task.task_names == ["xx", "bb", "yy"]
    assert {number for batch in batches(task, "test") for number in batch["task_ids"].tolist()} == {1}
    with pytest.raises(UserError, match="must have the same tasks"):
        moe(task, from_checkpoint=True, task_names="bb,aa")
    unknown = digit_task(digits, source_lang="en", target_lang="bb")
    moe(unknown, from_checkpoint=True, task_names="aa,cc")
    with refused("en-bb"):
        unknown.load_dataset("test")
    with refused("--source-lang", "--target-lang"):
        unknown.begin_epoch(1, None)


def test_only_models_that_take_ids_see_them(digits):
    task = digit_task(digits, enable_lang_ids=True)
    batch = batches(task)[0]
    sparse, other = moe(task), dense(task)
    assert torch.equal(task.for_models(batch, [sparse, other])["net_input"]["task_ids"], batch["task_ids"])
    stock = SimpleNamespace(forward=lambda src_tokens, src_lengths, prev_output_tokens: None)
    seen = task.for_models(batch, [sparse, stock])["net_input"]
    assert seen.keys() == {"src_tokens", "src_lengths", "prev_output_tokens"}


def test_each_sentence_is_routed_by_its_own_gate(digits):
    task = digit_task(digits)
    model = moe(task)
    for layer in expert_layers(model).values():
        torch.nn.init.normal_(layer.gate.weight)
    task.load_dataset("train")
    dataset = task.dataset("train")
    items = [dataset[index] for index in (0, 205, 255, 1, 265)]
    together = task.valid_step(dataset.collater(items), model, criterion(task))[0]
    apart = sum(task.valid_step(dataset.collater([item]), model, criterion(task))[0] for item in items)
    torch.testing.assert_close(together, apart)


def test_an_epoch_says_how_it_samples(digits, tmp_path):
    options = {"sampling_method": "temperature", "sampling_temperature": 1.0, "heating_coefficient": 3.0}
    task = digit_task(digits, save_dir=str(tmp_path), max_epoch=4, **options)
    task.load_dataset("train")
    task.begin_epoch(1, None)
    task.begin_epoch(5, None)
    run, first, last = read(tmp_path)
    assert run["sizes"] == {"en-aa": 200, "en-bb": 50, "en-cc": 20} and run["heating_epochs"] == 4
    assert run["tiers"] == {"en-aa": "high", "en-bb": "mid", "en-cc": "low"}
    assert (first["epoch"], first["temperature"]) == (1, 1.0) and (last["epoch"], last["temperature"]) == (5, 2.0)
    assert first["probabilities"]["en-cc"] == pytest.approx(20 / 270)


def test_data_that_does_not_fit_the_options_is_refused(digits, tmp_path):
    with refused("--sampling-weights"):
        digit_task(digits, sampling_weights="{'main:en-aa': 1, 'main:en-bb': 1}").load_dataset("train")
    with refused("--sample-pieces"):  # the directory has no model of pieces
        digit_task(digits, sample_pieces=0.3).load_dataset("train")
    shutil.copytree(digits, tmp_path / "data")
    other = digit_dictionary()
    other.add_symbol("x")
    other.save(str(tmp_path / "data" / "dict.cc.txt"))
    with refused("dict.cc.txt", "dict.aa.txt"):
        digit_task(tmp_path / "data")
    assert digit_task(tmp_path / "data", target_dict=str(digits / "dict.en.txt")).target_dictionary


def validate(task, model):
    task.begin_valid_epoch(3, model)
    with metrics.aggregate(new_root=True) as meters:
        for batch in batches(task):
            _, _, log = task.valid_step(batch, model, criterion(task))
            task.reduce_metrics([log], criterion(task))
    task.post_validate(model, {"num_updates": 50}, meters)
    return meters


def test_each_pairs_loss_is_that_of_its_data_alone(digits, tmp_path):
    task = digit_task(digits, save_dir=str(tmp_path))
    model = moe(task)
    meters = validate(task, model)
    for pair in PAIRS:
        alone = digit_task(digits, lang_pairs=pair, langs="aa,bb,cc,en", save_dir=str(tmp_path))
        alone.task_names = task.task_names
        expected = validate(alone, model)
        for name in ("loss", "nll_loss"):
            assert float(meters[f"{pair}_{name}"].avg) == pytest.approx(float(expected[name].avg), rel=1e-5)
    assert meters["low_loss"].avg == meters["en-cc_loss"].avg
    tokens = [float(meters[f"{pair}_nll_loss"].count) for pair in PAIRS]
    total = sum(count * meters[f"{pair}_nll_loss"].avg for count, pair in zip(tokens, PAIRS, strict=True))
    assert total / sum(tokens) == pytest.approx(float(meters["nll_loss"].avg), rel=1e-5)


def test_a_validation_is_written_to_the_run_log_and_nothing_counts_in_training(digits, tmp_path):
    task = digit_task(digits, save_dir=str(tmp_path))
    model = moe(task)
    task.stopwatch.stop_at(120.0)
    meters = validate(task, model)
    valid, experts, gates = read(tmp_path)
    assert gates["event"] == "gates" and set(gates["layers"]) == set(expert_layers(model))
    assert valid.items() >= {"epoch": 3, "update": 50, "subset": "valid", "minutes": 2.0}.items()
    assert list(valid["pairs"]) == list(PAIRS) and list(valid["tiers"]) == ["high", "mid", "low"]
    assert valid["all"]["nll_loss"] == pytest.approx(float(meters["nll_loss"].avg))
    counts = torch.tensor(experts["layers"]["decoder.layers.1"])
    assert counts.shape == (3, 3) and counts.sum(1).tolist() == [valid["pairs"][p]["tokens"] for p in PAIRS]
    optimizer = SimpleNamespace(backward=torch.Tensor.backward)  # as much of fairseq's as a training step uses
    task.train_step(batches(task, "train")[0], model, criterion(task), optimizer, 51)
    assert not any(layer.load.enabled for layer in expert_layers(model).values()) and task.stopwatch.is_running


def test_interactive_lines_get_task_ids_and_those_without_text_stay_so(digits):
    task, model, training = interactive(digits, task_ids="bb+cc")
    generator = task.build_generator([model], SimpleNamespace(beam=2, nbest=2, max_len_b=20))
    generator.generate = Mock(wraps=generator.generate)
    lang, one = task.source_dictionary.index("__cc__"), task.source_dictionary.index("1")
    tokens = torch.tensor([[lang, one, one, 2], [1, 1, lang, 2]])
    sample = {"net_input": {"src_tokens": tokens, "src_lengths": torch.tensor([4, 2])}}
    text, nothing = task.inference_step(generator, [model], sample)
    (_, found), _ = generator.generate.call_args
    assert found["net_input"]["task_ids"].tolist() == [training.task_id("en-cc")] * 2
    assert len(text) == 2 and len(text[0]["tokens"]) > 1
    assert [hypothesis["tokens"].tolist() for hypothesis in nothing] == [[2]]
    assert nothing[0]["score"] == 0 and nothing[0]["positional_scores"].tolist() == [0]


@pytest.mark.parametrize("keep", [False, True])
def test_language_tokens_are_stripped_from_the_output_unless_they_are_wanted(keep, digits):
    options = {"decoder_langtok": True, "keep_inference_langtok": keep}
    task = digit_task(digits, source_lang="en", target_lang="cc", **options)
    generator = task.build_generator([dense(task)], SimpleNamespace(beam=2))
    assert (task.target_dictionary.index("__cc__") in generator.symbols_to_strip_from_output) == (not keep)


@torch.no_grad()
def test_a_steps_candidates_are_as_uncertain_together_as_each_alone(digits):
    task = digit_task(digits, sampling_method="uncertainty")
    task.load_dataset("train")
    dataset = task.dataset("train")
    batches, _ = dataset.epoch_batches((1024, 1024), BatchLimits(max_tokens=40))
    model = dense(task)
    perturb(model)
    sample = dataset.collater([dataset[int(index)] for index in batches[3]])
    candidates = sample[CANDIDATES]
    chosen = task.choose(sample, model, None, 1)
    model.eval()
    alone = []
    for number in range(len(candidates.items)):
        example = dataset.chosen_batch(candidates.examples([number]))
        _, entropy, most = task.uncertainties(example, model, None, False)
        alone.append((entropy / most).item())
    assert chosen.relative_C.tolist() == pytest.approx(alone, rel=1e-5) and max(alone) - min(alone) > 0.01
    best = sorted(range(len(alone)), key=lambda number: -alone[number])[: candidates.count]
    assert [example["index"] for _, example in chosen.items] == [candidates.items[n][1]["index"] for n in sorted(best)]


SCORED = ("--eval-bleu", "--eval-chrf", "--eval-bleu-args", '{"beam": 3, "max_len_b": 20}', "--num-experts", 4,
          "--best-checkpoint-metric", "bleu", "--maximize-best-checkpoint-metric")  # fmt: skip
data = digit_fixture(train=600, valid=20)


@pytest.fixture(scope="module")
def run(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    return folder, train_here(data, folder, *SCORED, "--max-update", 120, "--validate-interval", 9)["validations"]


def translated(data, folder, **options):
    """Both scores of each pair by an evaluation of a run's last checkpoint, and the run's last event `valid`."""
    decoding = Decoding(beam=3, max_len_b=20, cpu=True, **options)
    translator = Translator(str(data), [str(folder / "checkpoint_last.pt")], decoding)
    found = {pair: next(translator.translations([pair], "valid")) for pair in PAIRS}
    scores = {pair: score_pair(pair, of.hypotheses, of.references.lines) for pair, of in found.items()}
    return scores, [event for event in read(folder) if event["event"] == "valid"][-1]


def test_what_is_logged_is_what_an_evaluation_finds(data, run):
    folder, scores_of_run = run
    scores, event = translated(data, folder)
    for pair, score in scores.items():
        logged = [event["pairs"][pair][name] for name in ("bleu", "chrf")]
        assert logged == pytest.approx([score.bleu, score.chrf], abs=0.006)
    mean = sum(score.bleu for score in scores.values()) / len(PAIRS)
    assert 3 < mean < 99.9 and scores_of_run[-1] == [event["all"]["bleu"]] == [pytest.approx(mean, abs=0.006)]


def test_translations_of_a_validation_in_balance_are_by_prices(data, tmp_path):
    train_here(data, tmp_path, *SCORED, "--base-evaluation", "balanced", "--max-update", 30, "--lr", 0.01)
    for way, is_equal in (("prices", True), ("greedy", False)):
        scores, event = translated(data, tmp_path, base_evaluation=way)
        logged = {pair: event["pairs"][pair]["chrf"] for pair in PAIRS}
        assert (logged == pytest.approx({pair: of.chrf for pair, of in scores.items()}, abs=0.006)) == is_equal


def validations(rank, data, folder, *options):
    return train_here(data, folder, *SCORED, "--no-save", *options)["validations"]


def test_two_processes_that_share_the_experts_find_what_one_finds(data, run, tmp_path):
    found = []
    for world_size in (1, 2):
        shutil.copytree(run[0], tmp_path / str(world_size))
        options = ("--max-update", 122, "--update-freq", 2 // world_size, "--no-token-shuffle")
        found += run_processes(validations, world_size, str(data), str(tmp_path / str(world_size)), *options)
    alone, first, second = (np.ravel(one) for one in found)
    assert len(alone) and first.tolist() == second.tolist() == pytest.approx(alone.tolist(), abs=0.006)


def test_a_search_of_the_dense_phase_does_not_serve_experts_in_several_processes(data, tmp_path):
    """Their processes search until the last of them has ended; by themselves they would wait for ever."""
    options = ("--dense-updates", 2, "--max-update", 4, "--validate-interval-updates", 1)
    first, second = run_processes(validations, 2, str(data), str(tmp_path), *options)
    assert len(first) >= 4 and first == second


def test_scores_change_nothing_of_the_training(data, tmp_path):
    first, second = (
        train_here(data, tmp_path / name, *options, "--max-update", 4)["norms"]
        for name, options in (("plain", ()), ("scored", SCORED[:1] + SCORED[2:4]))
    )
    assert first == second


@pytest.mark.parametrize(("metric", "named"), [("bleu", "--eval-bleu"), ("los", "--best-checkpoint-metric")])
def test_a_metric_that_no_validation_logs_is_refused_before_the_first_checkpoint(metric, named, data, tmp_path):
    with refused(named):
        train_here(data, tmp_path, "--best-checkpoint-metric", metric, "--max-update", 1)
    assert not list(tmp_path.glob("*.pt"))


def test_subsets_that_are_combined_are_not_scored(data, tmp_path):
    shutil.copytree(data, tmp_path / "data")
    for side in [*(tmp_path / "data").glob("valid.en-aa.*")]:
        shutil.copy(side, side.with_name(side.name.replace("valid", "valid1")))
    task = digit_task(tmp_path / "data", eval_chrf=True)
    with refused("--combine-valid-subsets", "--eval-chrf"):
        task.load_dataset("valid", combine=True)
