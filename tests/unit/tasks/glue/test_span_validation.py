"""A validation of questions about passages, against answers that are chosen one by one from the model's numbers."""

import gzip
import json
import logging
from collections import Counter

import pytest
import torch
from fairseq_cli.train import validate

from tests.helpers.benchmark import PIECES, make_encoder, make_questions, task_arguments
from tests.helpers.trainers import trainer_of


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("questions")
    make_questions(folder, {"train": 6, "dev": 24})
    make_encoder(folder / "encoder.pt")
    return folder


@pytest.fixture(scope="module")
def validated(data, tmp_path_factory):
    """The trainer, what it reported, and what its run log says."""
    logging.disable(logging.INFO)
    folder = tmp_path_factory.mktemp("run")
    options = ("--init-encoder", data / "encoder.pt", "--glue-tasks", "squad", "--batch-size-valid", 5)
    trainer = trainer_of(task_arguments(data, folder, *options))
    trainer.task.load_dataset("valid")
    model = trainer.get_model()
    with torch.no_grad():  # so that some answers are right: what tells the letters of answers from others
        letters = model.encoder.embed_tokens.weight[PIECES.index("a") :][:10]
        model.heads["squad"].weight[:] = letters[5:].mean(0) - letters[:5].mean(0)
    reported = []
    post_validate = trainer.task.post_validate
    trainer.task.post_validate = lambda model, found, meters: (
        reported.append(dict(found)) or post_validate(model, found, meters)
    )
    validate(trainer.cfg, trainer, trainer.task, trainer.get_train_iterator(epoch=1), ["valid"])
    events = [json.loads(line) for line in (folder / "mtmoe.jsonl").read_text().splitlines()]
    return trainer, reported[-1], [event for event in events if event["event"] == "valid"][-1]


def chosen_answers(trainer):
    """The best span of all windows of each question, as tokens that are joined by spaces."""
    task, model = trainer.task, trainer.get_model().eval()
    windows, split, found = task.dataset("valid"), task.evaluated["squad"], {}
    for batch in (windows.collater([windows[n]]) for n in range(len(windows))):
        with torch.no_grad():
            (numbers,) = model(**task.for_models(batch, [model])["net_input"])["squad"]
        tokens, ((start, end),) = batch["net_input"]["src_tokens"][0], batch["net_input"]["spans"]["squad"][0]
        question = [n for n, first in enumerate(split.row_offsets_E.tolist()) if first <= batch["id"].item()][-1]
        places = [(a, b) for a in range(start, end) for b in range(a, end)]
        good, a, b = max((numbers[a, 0].item() + numbers[b, 1].item(), a, b) for a, b in places)
        if good > found.get(question, (-1e9,))[0]:
            found[question] = good, " ".join(chr(ord("a") + token - 4) for token in tokens[a : b + 1].tolist())
    return [found[question][1] for question in range(len(split))]


def true_answers(data):
    lines = gzip.decompress((data / "MRQA/dev/SQuAD.jsonl.gz").read_bytes()).decode().splitlines()[1:]
    return [question["answers"][0].lower() for line in lines for question in json.loads(line)["qas"]]


def without_articles(text):
    return [word for word in text.split() if word != "a"]


def f1(answer, right):
    words, rights = without_articles(answer), without_articles(right)
    shared = sum((Counter(words) & Counter(rights)).values())
    return 2 * shared / (len(words) + len(rights)) if shared else 0


def test_scores_are_of_whole_questions(validated, data):
    trainer, reported, event = validated
    split, answers, rights = trainer.task.evaluated["squad"], chosen_answers(trainer), true_answers(data)
    assert split.num_rows > len(split) == len(answers) == len(rights) == 24
    scores = [f1(*pair) for pair in zip(answers, rights, strict=True)]
    exact = [without_articles(answer) == right.split() for answer, right in zip(answers, rights, strict=True)]
    assert 0 < sum(exact) < sum(scores) < 24, "an extreme would hide much"
    expected = {"f1": 100 * sum(scores) / 24, "em": 100 * sum(exact) / 24}
    for name, value in expected.items():
        assert reported[f"squad_{name}"] == pytest.approx(value, abs=0.006)
        assert event["tasks"]["squad"][name] == pytest.approx(value, abs=0.006)
    assert reported["all"] == reported["squad_f1"]
