import json
import logging
import re
import shutil

import numpy as np
import pytest
import torch
from fairseq_cli.train import validate
from torch.nn import functional as F

from fairseq_mtmoe.nlu.task.text_to_text import begun_dictionary, fill_dictionary
from tests.helpers.bert import perturb
from tests.helpers.refused import refused
from tests.helpers.text_to_text import text_arguments, tiny_config
from tests.helpers.trainers import trainer_of


@pytest.fixture(scope="module")
def data(benchmark, tmp_path_factory):
    folder = shutil.copytree(benchmark, tmp_path_factory.mktemp("wsc"), dirs_exist_ok=True)
    (folder / "WSC").mkdir()
    for split, count in (("train", 24), ("val", 21)):
        target = {"span1_index": 0, "span1_text": "abc", "span2_index": 2, "span2_text": "he"}
        lines = [{"text": "abc saw he fg", "target": target, "idx": n, "label": n % 3 == 0} for n in range(count)]
        (folder / "WSC" / f"{split}.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return folder


def trainer(data, folder, *options):
    logging.disable(logging.INFO)
    made = trainer_of(text_arguments(data, folder, "--init-model", data / "t5.pt", *options))
    perturb(made.get_model(), 0.3, seed=2)
    made.task.load_dataset("valid")
    return made


def slowly_written(model, net_input, most):
    """Greedy search, a whole pass of the model for each word: tokens of each text up to and with its end."""
    texts = net_input["src_tokens"]
    written = torch.zeros(len(texts), 1, dtype=torch.long)
    for step in range(most + 1):
        scores, _ = model(texts, None, written)
        scores = scores[:, -1]
        scores[:, 0] = -torch.inf
        if step == 0:
            scores[:, 1] = -torch.inf  # fairseq writes at least a word
        word = scores.argmax(-1) if step < most else torch.ones(len(texts), dtype=torch.long)
        written = torch.cat([written, word.unsqueeze(1)], dim=1)
    return [row[1 : row.index(1) + 1] for row in written.tolist()]


@pytest.mark.parametrize("task", ["rte", "stsb", "copa"])
@torch.no_grad()
def test_a_validations_figures(task, data, tmp_path):
    made = trainer(data, tmp_path, "--target-task", task, "--batch-size-valid", 4)
    reported = []
    stats = made.task.post_validate
    made.task.post_validate = lambda model, found, meters: reported.append(dict(found)) or stats(model, found, meters)
    validate(made.cfg, made, made.task, made.get_train_iterator(epoch=1), ["valid"])
    (valid,) = [json.loads(line) for line in (tmp_path / "mtmoe.jsonl").read_text().splitlines()]
    model, losses, count, said = made.get_model().eval(), 0.0, 0, {}
    answer = made.task.scored(made.task.row)
    for batch in made.task.get_batch_iterator(made.task.dataset("valid"), max_sentences=3).next_epoch_itr():
        scores, _ = model(**batch["net_input"])
        losses += F.cross_entropy(scores.flatten(0, 1), batch["target"].flatten(), ignore_index=0, reduction="sum")
        texts = map(made.task.pieces.text, slowly_written(model, batch["net_input"], answer.most_tokens))
        said |= dict(zip(batch["id"].tolist(), texts, strict=True))
        count += int(batch["target"].ne(0).sum())
    figures = valid["tasks"][task]
    assert figures["loss"] == pytest.approx(float(losses) / count / np.log(2), rel=1e-4)
    assert reported[0][f"{task}_loss"] == pytest.approx(figures["loss"], abs=1e-3)
    written = [said[number] for number in range(21)]
    right = made.task.evaluated[task].labels_E
    names = {"rte": ["entailment", "not_entailment"], "copa": ["False", "True"], "stsb": []}[task]
    is_label = [text in names if names else bool(re.fullmatch(r"-?\d+(\.\d*)?", text)) for text in written]
    assert figures["no-label"] == pytest.approx(100 - 100 * np.mean(is_label), abs=0.01)
    if names:
        labels = [names.index(text) if text in names else -1 for text in written]
        assert figures["accuracy"] == pytest.approx(100 * np.mean(right == labels), abs=0.01)
    assert len(set(written)) > 2, "a model that writes one thing alone would hide a wrong order"
    assert answer.labels == names


def test_batches_without_a_target_do_not_end_a_validation(data, tmp_path):
    made = trainer(data, tmp_path, "--target-task", "wsc", "--batch-size-valid", 1)
    assert set(made.task.evaluated["wsc"].labels_E) == {0, 1}
    validate(made.cfg, made, made.task, made.get_train_iterator(epoch=1), ["valid"])
    (valid,) = [json.loads(line) for line in (tmp_path / "mtmoe.jsonl").read_text().splitlines()]
    assert np.isfinite(valid["tasks"]["wsc"]["loss"]) and valid["tasks"]["wsc"]["loss"] > 0


def test_a_sources_run_says_what_it_is_and_has_the_pieces_numbers(data, tmp_path):
    task = trainer(data, tmp_path, "--source-task", "cola", "--train-examples", 4).task
    task.load_dataset("train")
    assert (task.name, task.is_source, len(task.dataset("train").datasets[0])) == ("cola", True, 4)
    said = {"task_names": ["cola"], "is_source": True, "train_examples": 4, "train_examples_seed": 1}
    assert task.about_the_run() == said
    assert task.described().text == "Given a sentence, judge the grammatical acceptability of the sentence."
    dictionary, pieces = task.target_dictionary, list(task.pieces)
    assert dictionary is task.source_dictionary and len(dictionary) == tiny_config().vocab_size == len(pieces) + 8
    assert [dictionary[number] for number in range(len(pieces))] == pieces
    assert (dictionary.pad(), dictionary.eos(), dictionary.unk(), dictionary.bos()) == (0, 1, 2, 0)
    assert dictionary[len(pieces)] == "<extra_id_99>"
    with refused("spiece.model"):
        fill_dictionary(begun_dictionary(), task.pieces, 20)


@pytest.mark.parametrize(("wrong", "options"), [
    ("--task text_to_text", ("--source-task", "rte", "--target-task", "rte")),
    ("--source-task", ("--source-task", "wnut17")),
    ("--train-examples", ("--train-examples", 0)),
    ("--encoder-layers", ("--arch", "t5_small")),
    ("nowhere.pt", ("--init-model", "nowhere.pt")),
])  # fmt: skip
def test_what_it_refuses_at_its_start(wrong, options, data, tmp_path):
    with refused(wrong, first=wrong != "nowhere.pt"):
        trainer(data, tmp_path, *options)
    assert not list(tmp_path.iterdir())
