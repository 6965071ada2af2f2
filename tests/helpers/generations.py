"""What fairseq-generate and fairseq-interactive write with a model, and what the model itself says of it."""

import copy
import io
import math
import re
from argparse import ArgumentParser, Namespace
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from fairseq import checkpoint_utils, options
from fairseq.data import Dictionary
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq_cli import generate, interactive
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


@dataclass(frozen=True)
class Translating:
    """Checkpoints (several are an ensemble) and the data directory of their test set."""

    data: Path
    paths: tuple[Path, ...]

    @property
    def path(self) -> str:
        return ":".join(map(str, self.paths))

    def generate(self, *more: object) -> Output:
        """What fairseq-generate writes of the test set."""
        return self._run(generate.main, options.get_generation_parser(), *more)

    def interact(self, lines: list[str], file: Path, *more: object) -> Output:
        """What fairseq-interactive writes of lines."""
        file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        parser = options.get_interactive_generation_parser()
        return self._run(interactive.main, parser, "--input", file, "--buffer-size", 9, *more)

    def _run(self, main: Any, parser: ArgumentParser, *more: object) -> Output:
        arguments = [self.data, *_TASK, *_SEARCH, "--path", self.path, *more]
        cfg = _configuration(main, options.parse_args_and_arch(parser, list(map(str, arguments))))
        with redirect_stdout(io.StringIO()) as written:
            main(cfg)
        return read(written.getvalue())

    @cached_property
    def loaded(self) -> tuple[list[Any], Any]:
        """The models in evaluation mode, and their task."""
        given = {"data": str(self.data), "source_lang": SOURCE, "target_lang": TARGET}
        models, _, task = checkpoint_utils.load_model_ensemble_and_task(list(map(str, self.paths)), given)
        return [model.eval() for model in models], task

    @property
    def dictionary(self) -> Dictionary:
        found: Dictionary = self.loaded[1].target_dictionary
        return found

    @torch.no_grad()
    def forced(self, source: list[str], target: list[str], temperature: float = 1) -> tuple[Tensor, Tensor]:
        """Of each token the log-probability to base 2, and the attention to the source, without a search.

        `source` begins with its language's token, as in the output; the target's language and the ends are added.
        """
        models, task = self.loaded
        words = self.dictionary
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
            found.append((logits[0] / temperature).log_softmax(-1).gather(1, target_ids[:, None])[:, 0])
            attentions.append(extra["attn"][0][0])
        scores = torch.stack(found).logsumexp(0) - math.log(len(found))
        return scores / math.log(2), torch.stack(attentions).mean(0)

    def check_scores(self, output: Output, but_for_ends: bool = False, temperature: float = 1) -> None:
        """Assert that scores in the output are what the model gives to these hypotheses, read at once."""
        assert output.hypotheses
        for number, one in output.all:
            wanted = self.forced(output.sources[number], one.pieces, temperature)[0]
            found = torch.tensor(one.scores)
            end = len(found) - but_for_ends
            torch.testing.assert_close(found[:end], wanted[:end], rtol=1e-4, atol=2e-4)  # of four digits


_configurations: dict[Any, Any] = {}  # what fairseq makes of some options of a command, in seconds


def _configuration(main: Any, args: Namespace) -> Any:
    """As fairseq's `convert_namespace_to_omegaconf`."""
    if main not in _configurations:
        _configurations[main] = convert_namespace_to_omegaconf(args)
    cfg = copy.deepcopy(_configurations[main])
    for group in filter(OmegaConf.is_config, cfg.values()):
        with open_dict(group):
            group.update({name: value for name, value in vars(args).items() if name in group})
    return cfg
