"""What fairseq-generate writes with a model, and what the model itself says of it."""

import copy
import io
import math
import re
from argparse import Namespace
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from fairseq import checkpoint_utils, options
from fairseq.data import Dictionary
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq_cli import generate
from omegaconf import OmegaConf, open_dict
from torch import Tensor

SOURCE, TARGET = "eng_Latn", "deu_Latn"
_SEARCH = ("--beam", 4, "--max-len-b", 12, "--batch-size", 3, "--required-batch-size-multiple", 1)
_TASK = ("--task", "translation_heated", "--source-lang", SOURCE, "--target-lang", TARGET)
_TASK += ("--encoder-langtok", "src", "--decoder-langtok", "--keep-inference-langtok")
_TASK += ("--cpu", "--num-workers", 0, "--no-progress-bar")


@dataclass
class Hypothesis:
    """One of a sentence: its score, its pieces after the language's token, and the scores of all tokens (to base 2)."""

    score: float
    pieces: list[str] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    alignment: str = ""


@dataclass
class Output:
    """By the sentences' numbers."""

    sources: dict[int, list[str]] = field(default_factory=dict)
    references: dict[int, list[str]] = field(default_factory=dict)
    hypotheses: dict[int, list[Hypothesis]] = field(default_factory=dict)

    @property
    def best(self) -> dict[int, list[str]]:
        return {number: found[0].pieces for number, found in self.hypotheses.items()}

    @property
    def all(self) -> list[tuple[int, Hypothesis]]:
        return [(number, each) for number, found in self.hypotheses.items() for each in found]


def read(text: str) -> Output:
    output = Output()
    for kind, number, rest in re.findall(r"^([STHPA])-(\d+)\t(.*)$", text, re.MULTILINE):
        found = output.hypotheses.setdefault(int(number), [])
        if kind == "S":
            output.sources[int(number)] = rest.split()
        elif kind == "T":
            output.references[int(number)] = rest.split()[1:]
        elif kind == "H":
            score, pieces = rest.split("\t")
            found.append(Hypothesis(float(score), pieces.split()[1:]))
        elif kind == "P":
            found[-1].scores = [float(each) for each in rest.split()]
        else:
            found[-1].alignment = rest
    return output


@dataclass
class Translating:
    """Checkpoints (several are an ensemble) and the data directory of their test set."""

    data: Path
    paths: list[Path]
    outputs: dict[Any, Output] = field(default_factory=dict)  # by options

    def generate(self, *more: object) -> Output:
        """What fairseq-generate writes of the test set."""
        arguments = [self.data, *_TASK, *_SEARCH, "--path", ":".join(map(str, self.paths)), *more]
        parser = options.get_generation_parser()
        cfg = _configuration(options.parse_args_and_arch(parser, list(map(str, arguments))))
        with redirect_stdout(io.StringIO()) as written:
            generate.main(cfg)
        return read(written.getvalue())

    def run(self, *options: object) -> Output:
        """The same, made once."""
        if options not in self.outputs:
            self.outputs[options] = self.generate(*options)
        return self.outputs[options]

    def scored(self, *options: object) -> Output:
        """The same, after all scores were found to be the model's own."""
        output = self.run(*options)
        self.check_scores(output)
        return output

    @cached_property
    def loaded(self) -> tuple[list[Any], Any]:
        """The models in evaluation mode, and their task."""
        given = {"data": str(self.data), "source_lang": SOURCE, "target_lang": TARGET}
        models, _, task = checkpoint_utils.load_model_ensemble_and_task(list(map(str, self.paths)), given)
        return [model.eval() for model in models], task

    @torch.no_grad()
    def forced(self, source: list[str], target: list[str]) -> tuple[Tensor, Tensor]:
        """Of each token the log-probability to base 2, and the attention to the source, without a search.

        `source` begins with its language's token, as in the output; the target's language and the ends are added.
        """
        models, task = self.loaded
        words: Dictionary = task.target_dictionary
        source_ids = [*map(words.index, source), words.eos()]
        target_ids = torch.tensor([words.index(f"__{TARGET}__"), *map(words.index, target), words.eos()])
        net_input = {
            "src_tokens": torch.tensor([source_ids]), "src_lengths": torch.tensor([len(source_ids)]),
            "prev_output_tokens": torch.tensor([[words.eos(), *target_ids[:-1].tolist()]]),
        }  # fmt: skip
        sample = {"net_input": net_input, "task_ids": torch.tensor([task.task_id(f"{SOURCE}-{TARGET}")])}
        found, attentions = [], []
        for model in models:
            logits, extra = model(**task.for_models(dict(sample), [model])["net_input"])
            found.append(logits[0].log_softmax(-1).gather(1, target_ids[:, None])[:, 0])
            attentions.append(extra["attn"][0][0])
        scores = torch.stack(found).logsumexp(0) - math.log(len(found))
        return scores / math.log(2), torch.stack(attentions).mean(0)

    def check_scores(self, output: Output) -> None:
        """Assert that scores in the output are what the model gives to these hypotheses, read at once."""
        assert output.hypotheses
        for number, one in output.all:
            wanted = self.forced(output.sources[number], one.pieces)[0]
            torch.testing.assert_close(torch.tensor(one.scores), wanted, rtol=1e-4, atol=2e-4)  # of four digits


_made: list[Any] = []  # the configuration that fairseq makes of some options, in seconds


def _configuration(args: Namespace) -> Any:
    """As fairseq's `convert_namespace_to_omegaconf`."""
    if not _made:
        _made.append(convert_namespace_to_omegaconf(args))
    cfg = copy.deepcopy(_made[0])
    for group in filter(OmegaConf.is_config, cfg.values()):
        with open_dict(group):
            group.update({name: value for name, value in vars(args).items() if name in group})
    return cfg
