"""Made-up facts of runs, of any size, as `analysis.run_facts` gathers them: for tests of the page."""

from __future__ import annotations

import math
from random import Random

from fairseq_mtmoe.analysis.run_facts import fields

LAYERS, EXPERTS = ("encoder.layers.1", "encoder.layers.3", "decoder.layers.1", "decoder.layers.3"), 16
TIERS = ("low", "mid", "high")


def made_up_facts(pairs: int = 3, updates: int = 1000, runs: int = 1, samples: int = 2) -> fields.Facts:
    """Runs from English to so many languages, with a validation every 500 updates or, of long runs, 200 in all."""
    names = [f"run-{number}" for number in range(1, runs + 1)]
    found = [_run(name, [f"en-{_language(index)}" for index in range(pairs)], updates, samples) for name in names]
    rows: list[fields.Difference] = [
        {"key": one["key"], "label": one["label"], "group": one["group"], "first": 20.0, "second": 20.5 + number / 10,
         "difference": 0.5 + number / 10, "error": 0.4, "p": 0.2 / (number + 1)}
        for number, one in enumerate([*found[0]["scores"]["rows"], *found[0]["scores"]["averages"]])
    ]  # fmt: skip
    return {
        "version": 1,
        "made": {"mtmoe": "0.1.10", "commit": "0123abc", "date": "2026-11-23T06:00:00+00:00"},
        "watched": None,
        "runs": found,
        "comparisons": [
            {"first": names[0], "second": other, "metric": metric, "rows": rows}
            for other in names[1:]
            for metric in ("BLEU", "chrF++")
        ],
        "notes": [],
    }


def _language(index: int) -> str:
    return f"{chr(97 + index // 26)}{chr(97 + index % 26)}"


def _run(name: str, pairs: list[str], updates: int, samples: int) -> fields.RunFacts:
    random, tiers = Random(name), {pair: TIERS[number % 3] for number, pair in enumerate(pairs)}
    scores, curves = _scores(random, pairs, tiers), _curves(random, pairs, updates)
    experts, entropy = _experts(random, pairs, updates)
    best = curves["rows"][0]["values"][-1]
    return {
        "name": name,
        "path": f"/data/runs/{name}",
        "setup": {
            "options": {"arch": "base_moe_tiny", "lr": [0.002], "num_experts": EXPERTS, "update_freq": [1],
                        "sampling_temperature": 1.0, "fp16": True, "finetune_from_model": None},
            "versions": {"fairseq_mtmoe": "0.1.10", "fairseq": "0.12.3", "torch": "2.13.0", "python": "3.11.9"},
            "commit": "0123abc", "hardware": "1 process, CPU with 2 cores", "seed": 1,
            "command": f"fairseq-train data --user-dir fairseq_mtmoe --save-dir runs/{name}",
            "started": "2026-11-22T06:00:00+00:00", "data": "/data/wmt15",
            "folder": "/data", "parameters": 1_234_567, "multiplications": 98_765,
            "sizes": {pair: 1000 * (number + 1) for number, pair in enumerate(pairs)}, "tiers": tiers,
            "unit": "language",
        },
        "progress": {"updates": updates, "minutes": updates / 120, "tokens": updates * 3000, "epoch": 7, "skipped": 2,
                     "best": {"update": updates, "metric": "ppl", "value": best or math.nan}, "finished": True},
        "curves": curves,
        "train": _train(random, updates),
        "sampling": {
            "epochs": list(range(1, 8)), "updates": [updates * number // 7 for number in range(7)],
            "temperature": [1.0 + number / 2 for number in range(7)], "candidates": False,
            "probabilities": {pair: [round(1 / len(pairs) * (1 + 0.3 * math.sin(number + epoch)), 4)
                                     for epoch in range(7)] for number, pair in enumerate(pairs)},
        },
        "selection": None,
        "sources": None,
        "experts": experts,
        "entropy": entropy,
        "gates": {"updates": [10, 20], "figures": {"blend": {"encoder.layers.1": [0.0, -0.1]}}},
        "exchange": None,
        "sparsified": [{"update": updates // 5, "num_experts": EXPERTS}],
        "scores": scores,
        "samples": {pair: _samples(samples, pair) for pair in pairs},
        "warnings": [
            {"kind": "dead_expert", "severity": "high", "where": {"layer": LAYERS[0], "update": updates},
             "text": f"Experts 3 and 7 of {LAYERS[0]} got less than a tenth of their fair share of every language's "
             "tokens in the last 3 validations."},
            {"kind": "padding", "severity": "low", "where": {},
             "text": "14.2% of what was trained on is padding, and more than 10% costs time."},
        ],
        "notes": ["Sources of translations are not shown: there is no `raw/test.en-aa.en` in the data directory."],
    }  # fmt: skip


def _moments(updates: int, number: int) -> fields.Moments:
    at = sorted({max(1, updates * (index + 1) // number) for index in range(number)})
    return {"update": at, "minutes": [one / 120 for one in at], "tokens": [one * 3000.0 for one in at]}


def _curves(random: Random, pairs: list[str], updates: int) -> fields.Curves:
    moments = _moments(updates, min(200, max(2, updates // 500)))
    of: list[tuple[str, str, fields.Group]] = [("all", "all", "all")]
    of += [(f"tier:{tier}", tier, "tier") for tier in TIERS[: len(pairs)]]
    of += [(f"pair:{pair}", pair, "pair") for pair in pairs]
    rows: list[fields.CurveRow] = []
    for key, label, group in of:
        floor, height = random.uniform(5, 30), random.uniform(50, 300)
        share = [floor + height * math.exp(-4 * update / updates) for update in moments["update"]]
        ppl = [round(value * random.uniform(0.99, 1.01), 3) for value in share]
        loss = [round(math.log2(value) + 1, 4) for value in ppl]
        rows += [
            {"key": key, "label": label, "group": group, "metric": "ppl", "better": "lower", "values": [*ppl]},
            {"key": key, "label": label, "group": group, "metric": "loss", "better": "lower", "values": [*loss]},
        ]
    return {"subset": "valid", "moments": moments, "rows": rows}


def _train(random: Random, updates: int) -> fields.Train:
    moments = _moments(updates, min(2000, max(2, updates // 50)))
    units = {"loss": "bits per token", "lr": "", "gnorm": "", "wps": "tokens per second", "ups": "updates per second",
             "padding": "share of tokens", "skipped": "updates so far"}  # fmt: skip
    falling = [8 * math.exp(-3 * update / updates) for update in moments["update"]]
    made: dict[str, list[float | None]] = {
        key: [round(random.uniform(0.9, 1.1) * scale * (fall + 2), 4) for fall in falling]
        for key, scale in zip(units, (1, 1e-2, 0.2, 500, 1, 0.02, 1), strict=True)
    }
    return {
        "moments": moments,
        "rows": [{"key": key, "label": key, "unit": unit, "values": made[key]} for key, unit in units.items()],
    }


def _experts(random: Random, pairs: list[str], updates: int) -> tuple[fields.Experts, fields.Entropy]:
    tasks, at = [pair.partition("-")[2] for pair in pairs], _moments(updates, min(30, max(2, updates // 500)))["update"]
    known = [update for update in at if update >= updates // 5]

    def row() -> list[float]:
        weights = [random.expovariate(1) for _ in range(EXPERTS)]
        return [round(weight / sum(weights), 4) for weight in weights]

    shares = [[[row() for _ in tasks] for _ in LAYERS] for _ in known]
    entropy: list[list[list[float | None]]] = [
        [[_entropy(at_update[layer][task]) for at_update in shares] for task in range(len(tasks))]
        for layer in range(len(LAYERS))
    ]
    return (
        {"updates": known, "layers": list(LAYERS), "tasks": tasks, "num_experts": dict.fromkeys(LAYERS, EXPERTS),
         "shares": shares, "thinned": False},
        {"updates": known, "layers": list(LAYERS), "tasks": tasks, "values": entropy},
    )  # fmt: skip


def _entropy(shares: list[float]) -> float:
    return round(-sum(share * math.log(share) for share in shares if share) / math.log(len(shares)), 4)


def _scores(random: Random, pairs: list[str], tiers: dict[str, str]) -> fields.Scores:
    def row(key: str, label: str, group: fields.Group, tier: str, examples: int) -> fields.ScoreRow:
        values: dict[str, float | None] = {"BLEU": random.uniform(5, 40), "chrF++": random.uniform(20, 60)}
        errors: dict[str, float | None] = {"BLEU": random.uniform(0.3, 1), "chrF++": None}
        return {"key": key, "label": label, "group": group, "tier": tier, "examples": examples, "values": values,
                "errors": errors, "majority": None}  # fmt: skip

    known = [tier for tier in TIERS if tier in tiers.values()]
    return {
        "subset": "test", "checkpoint": "runs/checkpoint_best.pt", "metrics": ["BLEU", "chrF++"],
        "rows": [row(f"pair:{pair}", pair, "pair", tiers[pair], 1000) for pair in pairs],
        "averages": [*(row(f"tier:{tier}", tier, "tier", tier, 1) for tier in known),
                     row("all", "all", "all", "", len(pairs))],
        "signatures": ["BLEU nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0"], "remarks": [],
    }  # fmt: skip


def _samples(number: int, pair: str) -> list[fields.Sample]:
    return [
        {"line": line, "source": f"A sentence {line} of {pair} & its like.", "hypothesis": f"Ein Satz {line} « {pair}.",
         "references": [f"Ein Satz {line} von {pair}.", f"Noch einer, {line}."]}
        for line in range(1, number + 1)
    ]  # fmt: skip
