"""What fairseq's decoding options must do with a translator."""

import itertools
from collections.abc import Callable
from typing import NamedTuple

import torch

from tests.helpers.decoding_models import DecodingModels
from tests.helpers.generations import Output, Translating

ALL = ("--nbest", 4)


class Trial(NamedTuple):
    """A kind of models, the first of which is `model`."""

    models: DecodingModels
    kind: str

    @property
    def model(self) -> Translating:
        return self.models.of(self.kind)

    def run(self, *options: object) -> Output:
        """What fairseq-generate writes, made once."""
        made, key = self.models.made, (self.kind, options)
        if key not in made:
            made[key] = self.model.generate(*options)
        return made[key]

    def scored(self, *options: object) -> Output:
        """The same, after all scores were found to be the model's own."""
        output = self.run(*options)
        self.model.check_scores(output)
        return output


def n_best(trial: Trial) -> None:
    output = trial.scored(*ALL)
    for found in output.hypotheses.values():
        scores = [one.score for one in found]
        assert len(found) == 4 == len({tuple(one.pieces) for one in found}) and scores == sorted(scores, reverse=True)
    assert output.best == trial.run().best


def sampling(trial: Trial) -> None:
    """By the same seed alike, by another not; drawn from one word alone, as without drawing."""
    drawn = trial.scored("--sampling", "--sampling-topk", 20, *ALL, "--seed", 1)
    assert trial.model.generate("--sampling", "--sampling-topk", 20, *ALL, "--seed", 1) == drawn
    assert trial.scored("--sampling", "--sampling-topk", 20, *ALL, "--seed", 2) != drawn
    assert trial.run("--sampling", "--sampling-topk", 1, "--beam", 1).best == trial.run("--beam", 1).best


def prefix(trial: Trial) -> None:
    output = trial.scored("--prefix-size", 3, *ALL)
    for number, one in output.all:
        wanted = [piece.replace("<<unk>>", "<unk>") for piece in output.references[number][:2]]
        assert one.pieces[:2] == wanted
    assert any(one.pieces[:2] != output.references[number][:2] for number, one in trial.run(*ALL).all)


def alignment(trial: Trial) -> None:
    """Soft ones are the attention of the last block; hard ones name the word of the source with the largest."""
    soft, hard = (trial.scored("--print-alignment", form, "--nbest", 2) for form in ("soft", "hard"))
    for (number, one), (_, other) in zip(soft.all, hard.all, strict=True):
        wanted = trial.model.forced(soft.sources[number], one.pieces)[1]
        rows = [[float(share) for share in row.split(",")] for row in one.alignment.split()]
        torch.testing.assert_close(torch.tensor(rows), wanted, rtol=1e-4, atol=1e-5)
        pairs = [tuple(map(int, pair.split("-"))) for pair in other.alignment.split()]
        assert pairs == [(int(row[:-1].argmax()), place) for place, row in enumerate(wanted[:-1])]


def reference_scores(trial: Trial) -> None:
    output = trial.run("--score-reference")
    for number, (one,) in output.hypotheses.items():
        wanted = trial.model.forced(output.sources[number], one.pieces)[0]
        torch.testing.assert_close(torch.tensor(one.scores), wanted, rtol=1e-4, atol=2e-4)
        torch.testing.assert_close(torch.tensor(one.score), wanted.mean(), rtol=1e-4, atol=2e-4)


def ensemble(trial: Trial) -> None:
    """A model with itself is itself; two give a word the mean of their probabilities."""
    twice, two = (trial.models.of(trial.kind, *seeds) for seeds in ((1, 1), (1, 2)))
    for one, other in zip(twice.generate(*ALL).all, trial.run(*ALL).all, strict=True):
        assert one[1].pieces == other[1].pieces
        torch.testing.assert_close(torch.tensor(one[1].scores), torch.tensor(other[1].scores), rtol=0, atol=2e-4)
    found = two.generate(*ALL)
    two.check_scores(found)
    assert found != trial.run(*ALL)


def no_repeats(trial: Trial) -> None:
    def has_repeats(pieces: list[str]) -> bool:
        pairs = list(itertools.pairwise(pieces))
        return len(set(pairs)) < len(pairs)

    long = ("--min-len", 11, *ALL)
    assert any(has_repeats(one.pieces) for _, one in trial.run(*long).all)
    assert not any(has_repeats(one.pieces) for _, one in trial.scored(*long, "--no-repeat-ngram-size", 2).all)


def dropout(trial: Trial) -> None:
    first, again, other = (trial.model.generate("--retain-dropout", "--seed", seed) for seed in (1, 1, 2))
    assert first == again and other != first != trial.run()


CHECKS: dict[str, Callable[[Trial], None]] = {
    "--nbest": n_best,
    "--sampling-topk": sampling,
    "--prefix-size": prefix,
    "--print-alignment": alignment,
    "--path FILE:FILE": ensemble,
    "--score-reference": reference_scores,
    "--no-repeat-ngram-size": no_repeats,
    "--retain-dropout": dropout,
}
