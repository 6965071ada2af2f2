import logging

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import nn

from fairseq_mtmoe.nlu.bert.pretrained import load
from tests.helpers.benchmark import make_benchmark, make_encoder, serialized_tokenizer, task_arguments
from tests.helpers.bert import built
from tests.helpers.trainers import groups_of, trainer_of

UPDATES = 4
RATE = 0.02  # of squared errors a larger one would double every rounding


def trained(data, folder):
    logging.disable(logging.INFO)
    options = ("--arch", "mt_dense", "--init-encoder", data / "encoder.pt", "--glue-tasks", "stsb", "--lr", RATE)
    trainer = trainer_of(task_arguments(data, folder, *options, "--optimizer", "sgd"))
    before = {name: value.clone() for name, value in trainer.get_model().state_dict().items()}
    losses, norms, examples = [], [], []
    clip = trainer.clip_grad_norm
    trainer.clip_grad_norm = lambda limit: norms.append(float(clip(limit))) or torch.tensor(norms[-1])
    trainer.get_criterion().register_forward_hook(lambda _, given, found: losses.append(found[0].item() / found[1]))
    for samples in groups_of(trainer, UPDATES):
        examples.append(samples[0]["id"].tolist())
        trainer.train_step(samples)
    return before, dict(losses=losses, norms=norms), examples, trainer.get_model().state_dict()


def by_hand(data, head_state, examples):
    """The same updates on the same examples: a loop over PyTorch's own modules around the encoder."""
    lines = [line.split("\t") for line in (data / "STS-B" / "train.tsv").read_text().splitlines()[1:]]
    tokenizer = Tokenizer.from_str(serialized_tokenizer())
    tokenizer.enable_padding()
    encoder = built(load(data / "encoder.pt")).train()
    for module in encoder.modules():
        for name in {"p", "dropout"} & vars(module).keys():
            setattr(module, name, 0.0)
    head = nn.Linear(encoder.config.hidden_size, 1)
    head.load_state_dict(head_state)
    parameters = [*encoder.parameters(), *head.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=RATE)
    found = dict(losses=[], norms=[])
    for batch in examples:
        chosen = [lines[number] for number in batch]
        rows = tokenizer.encode_batch([tuple(line[1:3]) for line in chosen])
        tokens, types = torch.tensor([row.ids for row in rows]), torch.tensor([row.type_ids for row in rows])
        hidden = encoder(tokens, types).hidden
        loss = ((head(hidden[:, 0])[:, 0] - torch.tensor([float(line[3]) for line in chosen])) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        found["norms"].append(nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None]).item())
        found["losses"].append(loss.item())
        optimizer.step()
    return found, {**encoder.state_dict(), **{f"head.{name}": value for name, value in head.state_dict().items()}}


def test_single_task_is_what_anybody_would_write(tmp_path):
    data = tmp_path / "data"
    make_benchmark(data, {"train": 60, "dev": 4})
    make_encoder(data / "encoder.pt")
    before, found, examples, after = trained(data, tmp_path / "run")
    head = {name: before[f"heads.stsb.{name}"] for name in ("weight", "bias")}
    assert len({tuple(batch) for batch in examples}) == UPDATES
    wanted, parameters = by_hand(data, head, examples)
    for name, values in wanted.items():
        np.testing.assert_allclose(found[name], values, rtol=2e-5, err_msg=name)
    assert max(found["losses"]) > 1.05 * min(found["losses"])  # something was learned
    for name, value in parameters.items():
        if not name.startswith("pooler."):
            key = f"heads.stsb.{name.removeprefix('head.')}" if name.startswith("head.") else f"encoder.{name}"
            torch.testing.assert_close(after[key], value, rtol=1e-5, atol=1e-5, msg=key)
