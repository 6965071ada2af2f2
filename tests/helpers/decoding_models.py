"""Tiny translators of each kind that have learned a little, and a data directory of their vocabulary."""

from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from fairseq_mtmoe import register
from fairseq_mtmoe.checkpoints import file_io
from fairseq_mtmoe.translation.data.vocabulary import Vocabulary
from tests.helpers.benchmark import save_before_training
from tests.helpers.bert import perturb
from tests.helpers.binarized import write_words
from tests.helpers.generations import SOURCE, TARGET, Translating
from tests.helpers.invoked import mtmoe
from tests.helpers.translators import CASES, NLLB_CODES, lines, write_folder

TASK = ("--task", "translation_heated", "--lang-pairs", f"{SOURCE}-{TARGET}", "--langs", ",".join(NLLB_CODES),
        "--encoder-langtok", "src", "--decoder-langtok")  # fmt: skip
KINDS = {
    "base_moe": ("--arch", "base_moe_tiny", "--num-experts", "4", "--expert-gates", "base,task"),
    "base_dense": ("--arch", "base_dense_tiny"),
    "pemt_translation": ("--arch", "pemt_translation_tiny", "--pemt-stage", "source", "--description", "abc"),
    "imported": (),
}
SENTENCES = 5  # of the test set


class DecodingModels:
    """Two of each kind, made when they are first asked for."""

    def __init__(self, folder: Path) -> None:
        register()
        self.folder = folder
        self.made: dict[Any, Translating] = {}  # by kind and seeds
        write_folder(folder / "theirs", CASES["nllb"])
        mtmoe("import-hf", folder / "theirs", folder / "imported.pt")
        self.data = self._data()

    def _data(self) -> Path:
        vocabulary = Vocabulary.of_state(file_io.load(str(self.folder / "imported.pt"))["task_state"])
        data, dictionary = self.folder / "data", vocabulary.source.dictionary()
        processor = vocabulary.source.processor
        data.mkdir()
        (data / "spm.model").write_bytes(vocabulary.source.model)
        for seed, lang in enumerate((SOURCE, TARGET)):
            dictionary.save(str(data / f"dict.{lang}.txt"))
            for split in ("train", "test"):
                pieces = processor.encode(list(lines(seed=seed)[:SENTENCES]), out_type=str)
                texts = [" ".join(line[: 12 - 6 * seed]) for line in pieces]
                write_words(data / f"{split}.{SOURCE}-{TARGET}.{lang}", texts, dictionary)
        return data

    def of(self, kind: str, *seeds: int) -> Translating:
        """A model of this kind, the first if nothing is said, or an ensemble."""
        if (kind, seeds) not in self.made:
            paths = [self.folder / f"{kind}.{seed}.pt" for seed in seeds or (1,)]
            for path, seed in zip(paths, seeds or (1,), strict=True):
                if not path.exists():
                    self._make(kind, path, seed)
            self.made[kind, seeds] = Translating(self.data, paths)
        return self.made[kind, seeds]

    def _make(self, kind: str, path: Path, seed: int) -> None:
        if kind == "imported":
            state = file_io.load(str(self.folder / "imported.pt"))
        else:
            save_before_training([self.data, *TASK, *KINDS[kind]], path, partial(perturb, scale=0.1, seed=seed), seed)
            state = file_io.load(str(path))
        torch.save(state, path)
        made = Translating(self.data, [path])
        teach(made, seed)
        torch.save({**state, "model": made.loaded[0][0].state_dict()}, path)


def teach(made: Translating, seed: int) -> None:
    """Let a model, a little other than it was, see the test set: it then ends sentences, and each in another way."""
    (model,), task = made.loaded
    perturb(model, scale=0.02, seed=seed)
    task.load_dataset("test")
    (batch,) = task.get_batch_iterator(task.dataset("test"), max_sentences=SENTENCES).next_epoch_itr(shuffle=False)
    inputs, pad = task.for_models(batch, [model])["net_input"], task.target_dictionary.pad()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for _ in range(40):
        optimizer.zero_grad()
        cross_entropy(model(**inputs)[0].transpose(1, 2), batch["target"], ignore_index=pad).backward()
        optimizer.step()
