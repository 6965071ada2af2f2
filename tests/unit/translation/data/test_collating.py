"""Mixed batches: every sentence keeps its own ids, whichever way pairs are collated."""

import numpy as np
import pytest
import torch

from fairseq_mtmoe.multitask.mixtures.dataset import MixtureDataset
from fairseq_mtmoe.multitask.sampling.draw import Numbering
from fairseq_mtmoe.translation.data.collating import PairCollate
from fairseq_mtmoe.translation.data.pairs import PairLoader
from tests.helpers.digits import TRANSLATIONS, digit_task

TARGETS = list(TRANSLATIONS)


def mixed(data, one_collater=True, **options):
    task = digit_task(data, **options)
    dataset = MixtureDataset((10, 11, 12), PairCollate(one_collater))
    dataset.choose(PairLoader(task.data_manager, "train").load(), Numbering([5, 5, 5], [3], [1]))
    return task, dataset


ORDER = [14, 0, 7, 3, 9, 11, 5, 1]


@pytest.mark.parametrize(
    ("one_collater", "options"),
    [
        (True, {"decoder_langtok": True, "enable_lang_ids": True}),
        (False, {"decoder_langtok": True, "lang_tok_replacing_bos_eos": True}),
        (False, {"enable_lang_ids": True}),
    ],
)
def test_each_row_has_its_own_task(one_collater, options, digits):
    task, dataset = mixed(digits, one_collater, **options)
    batch = dataset.collater([dataset[index] for index in ORDER])
    for *sides, number in zip(batch["net_input"]["src_tokens"], batch["target"], batch["task_ids"], strict=True):
        symbols = (task.source_dictionary.string(tokens).split() for tokens in sides)
        source, target = (np.array([int(one) for one in side if one.isdigit()]) for side in symbols)
        # The translation in a row tells which pair it is of.
        assert TRANSLATIONS[TARGETS[number - 10]](source).tolist() == target.tolist()
    assert sorted(batch["task_ids"].tolist()) == sorted(10 + index // 5 for index in ORDER)
    assert sorted(batch["id"].tolist()) == sorted(index % 5 for index in ORDER)
    lengths = batch["net_input"]["src_lengths"]
    assert torch.equal(lengths, lengths.sort(descending=True)[0])
    assert batch["nsentences"] == 8 and batch["ntokens"] == int(batch["target"].ne(task.target_dictionary.pad()).sum())
    if options.get("enable_lang_ids"):
        languages = task.data_manager.lang_dict
        assert {languages[int(source)] for source in batch["net_input"]["src_lang_id"]} == {"en"}
        targets = [languages[int(target)] for target in batch["tgt_lang_id"]]
        assert targets == [TARGETS[number - 10] for number in batch["task_ids"].tolist()]


def test_collated_apart_or_together_the_batch_is_the_same(digits):
    datasets = [mixed(digits, one_collater)[1] for one_collater in (True, False)]
    first, second = (data.collater([data[index] for index in range(0, 15, 2)]) for data in datasets)
    assert first["net_input"].keys() == second["net_input"].keys()

    def rows(batch):
        columns = (batch["net_input"]["src_tokens"], batch["target"], batch["net_input"]["prev_output_tokens"])
        return sorted(torch.cat([*columns, batch["task_ids"][:, None], batch["id"][:, None]], dim=1).tolist())

    assert rows(first) == rows(second)
