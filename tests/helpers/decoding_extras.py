"""What fairseq's decoding options must do with a translator."""

import itertools
from collections.abc import Callable

import torch

from tests.helpers.generations import Translating

ALL = ("--nbest", 4)


Models = Callable[..., Translating]  # of a kind, by seeds: the first one if nothing is said, or an ensemble


def n_best(models: Models) -> None:
    output = models().scored(*ALL)
    for found in output.hypotheses.values():
        scores = [one.score for one in found]
        assert len(found) == 4 == len({tuple(one.pieces) for one in found}) and scores == sorted(scores, reverse=True)
    assert output.best == models().run().best


def sampling(models: Models) -> None:
    """By the same seed alike, by another not; drawn from one word alone, as without drawing."""
    drawn = models().scored("--sampling", "--sampling-topk", 20, *ALL, "--seed", 1)
    assert models().generate("--sampling", "--sampling-topk", 20, *ALL, "--seed", 1) == drawn
    assert models().scored("--sampling", "--sampling-topk", 20, *ALL, "--seed", 2) != drawn
    assert models().run("--sampling", "--sampling-topk", 1, "--beam", 1).best == models().run("--beam", 1).best


def prefix(models: Models) -> None:
    output = models().scored("--prefix-size", 3, *ALL)
    for number, one in output.all:
        wanted = [piece.replace("<<unk>>", "<unk>") for piece in output.references[number][:2]]
        assert one.pieces[:2] == wanted
    assert any(one.pieces[:2] != output.references[number][:2] for number, one in models().run(*ALL).all)


def alignment(models: Models) -> None:
    """Soft ones are the attention of the last block; hard ones name the word of the source with the largest."""
    soft, hard = (models().scored("--print-alignment", form, "--nbest", 2) for form in ("soft", "hard"))
    for (number, one), (_, other) in zip(soft.all, hard.all, strict=True):
        wanted = models().forced(soft.sources[number], one.pieces)[1]
        rows = [[float(share) for share in row.split(",")] for row in one.alignment.split()]
        torch.testing.assert_close(torch.tensor(rows), wanted, rtol=1e-4, atol=1e-5)
        pairs = [tuple(map(int, pair.split("-"))) for pair in other.alignment.split()]
        assert pairs == [(int(row[:-1].argmax()), place) for place, row in enumerate(wanted[:-1])]


def reference_scores(models: Models) -> None:
    output = models().run("--score-reference")
    for number, (one,) in output.hypotheses.items():
        wanted = models().forced(output.sources[number], one.pieces)[0]
        torch.testing.assert_close(torch.tensor(one.scores), wanted, rtol=1e-4, atol=2e-4)
        torch.testing.assert_close(torch.tensor(one.score), wanted.mean(), rtol=1e-4, atol=2e-4)


def ensemble(models: Models) -> None:
    """A model with itself is itself; two give a word the mean of their probabilities."""
    twice, two = (models(*seeds) for seeds in ((1, 1), (1, 2)))
    for one, other in zip(twice.generate(*ALL).all, models().run(*ALL).all, strict=True):
        assert one[1].pieces == other[1].pieces
        torch.testing.assert_close(torch.tensor(one[1].scores), torch.tensor(other[1].scores), rtol=0, atol=2e-4)
    found = two.generate(*ALL)
    two.check_scores(found)
    assert found != models().run(*ALL)


def no_repeats(models: Models) -> None:
    def has_repeats(pieces: list[str]) -> bool:
        pairs = list(itertools.pairwise(pieces))
        return len(set(pairs)) < len(pairs)

    long = ("--min-len", 11, *ALL)
    assert any(has_repeats(one.pieces) for _, one in models().run(*long).all)
    assert not any(has_repeats(one.pieces) for _, one in models().scored(*long, "--no-repeat-ngram-size", 2).all)


def dropout(models: Models) -> None:
    first, again, other = (models().generate("--retain-dropout", "--seed", seed) for seed in (1, 1, 2))
    assert first == again and other != first != models().run()


CHECKS: dict[str, Callable[[Models], None]] = {
    "--nbest": n_best,
    "--sampling-topk": sampling,
    "--prefix-size": prefix,
    "--print-alignment": alignment,
    "--path FILE:FILE": ensemble,
    "--score-reference": reference_scores,
    "--no-repeat-ngram-size": no_repeats,
    "--retain-dropout": dropout,
}
