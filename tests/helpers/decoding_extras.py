"""What fairseq's decoding options must do with a translator."""

import itertools
import math
from collections.abc import Callable
from typing import NamedTuple

import torch

from tests.helpers.decoding_models import DecodingModels
from tests.helpers.generations import Output, Translating
from tests.helpers.invoked import mtmoe

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


def words(output: Output) -> list[list[str]]:
    return [one.pieces for _, one in output.all]


def repeated(pieces: list[str]) -> bool:
    """Whether two neighbours come again."""
    pairs = list(itertools.pairwise(pieces))
    return len(set(pairs)) < len(pairs)


# ---- what each must do ----


def n_best(trial: Trial) -> None:
    output = trial.scored(*ALL)
    for found in output.hypotheses.values():
        scores = [one.score for one in found]
        assert len(found) == 4 == len({tuple(one.pieces) for one in found}) and scores == sorted(scores, reverse=True)
    assert output.best == trial.run().best


def _samples(trial: Trial, most: tuple[object, ...], least: tuple[object, ...]) -> None:
    """By the same seed alike, by another not; drawn from one word alone, as without drawing."""
    drawn = trial.scored("--sampling", *most, *ALL, "--seed", 1)
    assert trial.model.generate("--sampling", *most, *ALL, "--seed", 1) == drawn
    assert trial.scored("--sampling", *most, *ALL, "--seed", 2) != drawn
    assert trial.run("--sampling", *least, "--beam", 1).best == trial.run("--beam", 1).best


def sampling(trial: Trial) -> None:
    _samples(trial, ("--sampling-topk", 20), ("--sampling-topk", 1))


def nucleus(trial: Trial) -> None:
    _samples(trial, ("--sampling-topp", 0.9), ("--sampling-topp", 1e-6))


def diverse_siblings(trial: Trial) -> None:
    """From its second word on a hypothesis pays for each word's rank among those that go on from the same words."""
    assert trial.run("--diversity-rate", 0, *ALL) == trial.run(*ALL)
    ranks = []
    for number, one in (output := trial.run("--diversity-rate", 2, *ALL)).all:
        paid = trial.model.forced(output.sources[number], one.pieces)[0] - torch.tensor(one.scores)
        ranks.append(paid * math.log(2) / 2)
        torch.testing.assert_close(ranks[-1], ranks[-1].round(), rtol=0, atol=1e-3)
        assert ranks[-1][0].round() == 0 and (ranks[-1][1:].round() >= 1).all()
    assert any(found.max().round() > 1 for found in ranks)


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


def average(trial: Trial) -> None:
    """The mean of a model with itself is itself; that of two is between them."""
    first, second = (trial.models.of(trial.kind, seed).paths[0] for seed in (1, 2))
    for name, inputs in (("same", (first, first)), ("mean", (first, second))):
        path = trial.models.folder / f"{trial.kind}.{name}.pt"
        mtmoe("average", "--inputs", *inputs, "--output", path, "--overwrite")
        weights = [torch.load(file)["model"] for file in (path, *inputs)]
        for key, value in weights[0].items():
            if value.is_floating_point():
                torch.testing.assert_close(value, (weights[1][key] + weights[2][key]) / 2)
        made = Translating(trial.models.data, (path,))
        found = made.generate()
        made.check_scores(found)
        assert (found == trial.run()) is (name == "same")


def source_length(trial: Trial) -> None:
    output = trial.run("--match-source-len")
    for number, found in output.hypotheses.items():
        assert len(found[0].scores) == len(output.sources[number]) + 2
    trial.model.check_scores(output, but_for_ends=True)


def no_repeats(trial: Trial) -> None:
    long = ("--min-len", 11, *ALL)
    assert any(map(repeated, words(trial.run(*long))))
    assert not any(map(repeated, words(trial.scored(*long, "--no-repeat-ngram-size", 2))))


def unknown_words(trial: Trial) -> None:
    assert not any("<unk>" in pieces for pieces in words(trial.scored("--unkpen", 100, *ALL)))
    assert all(set(pieces) == {"<unk>"} for pieces in trial.run("--unkpen", -100).best.values())


def lengths(trial: Trial) -> None:
    output = trial.scored("--lenpen", 0.5, "--min-len", 3, "--max-len-a", 0.1, "--max-len-b", 4, *ALL)
    for number, one in output.all:
        length = len(one.scores)
        assert 3 < length <= 5 + (len(output.sources[number]) + 1) // 10 + 1
        assert abs(one.score - sum(one.scores) / length**0.5) < 1e-3
    for _, one in trial.scored("--unnormalized").all:
        assert abs(one.score - sum(one.scores)) < 2e-3


def temperature(trial: Trial) -> None:
    output = trial.run("--temperature", 2, *ALL)
    trial.model.check_scores(output, temperature=2)


def dropout(trial: Trial) -> None:
    first, again, other = (trial.model.generate("--retain-dropout", "--seed", seed) for seed in (1, 1, 2))
    assert first == again and other != first != trial.run()


CHECKS: dict[str, Callable[[Trial], None]] = {
    "--nbest": n_best,
    "--sampling-topk": sampling,
    "--sampling-topp": nucleus,
    "--temperature": temperature,
    "--diversity-rate": diverse_siblings,
    "--prefix-size": prefix,
    "--print-alignment": alignment,
    "--path FILE:FILE": ensemble,
    "--score-reference": reference_scores,
    "--path MEAN": average,
    "--lenpen": lengths,
    "--match-source-len": source_length,
    "--no-repeat-ngram-size": no_repeats,
    "--unkpen": unknown_words,
    "--retain-dropout": dropout,
}
