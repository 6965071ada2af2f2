"""How BASE layers route, as tables: perplexity by the way they route in evaluation, and how spread each language is."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

import numpy as np
from price_runs import GREEDY, PRICES, WITHIN
from training_report import RunResult

from fairseq_mtmoe.analysis.expert_use import entropies
from fairseq_mtmoe.analysis.series import ExpertSeries
from fairseq_mtmoe.io.markdown import markdown_table

WAYS = (PRICES, GREEDY, WITHIN)
ROUTED = "perplexity_by_routing"
STACKS = ("encoder", "decoder")
OF_EVALUATION = (
    "Perplexity of the last weights. Balanced: no token of a batch goes where it is full, as in training unless that "
    "routes by prices; but batches are of one pair here and mix languages there, and are about half as large."
)
OF_ENTROPY = (
    "Of the experts that a language's tokens go to in the last validation, in shares of the most that it can be: 0, "
    "one expert has all of them, to 1, all experts have as many. The mean over layers and seeds."
)


def routing_in_evaluation(results: Sequence[RunResult]) -> list[str]:
    """Lines of Markdown: perplexity of the last weights, routed in three ways; the mean over seeds."""
    rows = []
    for runs in _by_system([result for result in results if result.finished.get(ROUTED)]):
        means = [fmean(run.finished[ROUTED][way] for run in runs) for way in WAYS]
        rows.append([runs[0].system.title, len(runs), *(f"{mean:.2f}" for mean in means)])
    if not rows:
        return []
    return ["## Routing in evaluation", "", OF_EVALUATION, "", markdown_table(["system", "seeds", *WAYS], rows), ""]


def language_entropies(experts: ExpertSeries) -> dict[str, dict[str, float]]:
    """By stack, then by language: the entropy of the last validation's routing, averaged over the stack's layers."""
    found = {}
    for stack in STACKS:
        layers = [layer for layer in experts.layers if layer.startswith(f"{stack}.")]
        if layers and experts.updates:
            last_LTN = np.array([[experts.shares[layer][task][-1] for task in experts.tasks] for layer in layers])
            means_T = np.mean([entropies(last_TN) for last_TN in last_LTN], axis=0)
            found[stack] = dict(zip(experts.tasks, map(float, means_T), strict=True))
    return found


def routing_entropy(results: Sequence[RunResult]) -> list[str]:
    """Lines of Markdown: of each stack the entropy of every language's routing; the mean over seeds."""
    rows, languages = [], dict[str, None]()
    for runs in _by_system(results):
        of_runs = [language_entropies(run.log.experts) for run in runs]
        for stack in STACKS:
            known = [one[stack] for one in of_runs if stack in one]
            if known:
                languages |= dict.fromkeys(known[0])
                mean = {language: fmean(one[language] for one in known) for language in known[0]}
                rows.append((runs[0].system.title, stack, len(known), mean))
    if not rows:
        return []
    head = ["system", "stack", "seeds", "mean", *languages]
    cells = [
        [title, stack, seeds, f"{fmean(mean.values()):.2f}", *(f"{mean[language]:.2f}" for language in languages)]
        for title, stack, seeds, mean in rows
    ]
    return ["## Entropy of a language's routing", "", OF_ENTROPY, "", markdown_table(head, cells), ""]


def _by_system(results: Sequence[RunResult]) -> list[list[RunResult]]:
    names = dict.fromkeys(result.system.name for result in results)
    return [[result for result in results if result.system.name == name] for name in names]
