"""What `compare_sparse.py` trains: dense and sparse models and a paper's systems, one change from row to row.

Models are bound by their feed-forward layers: an inner size that is half of the width, and experts in every block. All
rows have the same data and updates, and all but stock fairseq's the same loss and optimizer; all but one have the same
active size, gates aside.
"""

from __future__ import annotations

from dataclasses import replace

from training_systems import BASE, PAPER, STOCK, Setting, System

DENSE, PRICED, TASK_GATES = "dense", "by_prices", "task_gates"
BY_PRICES = ("--base-training", "prices")
UPDATES = 3000
SPARSE = Setting(
    "WMT-15's English to 15 languages, 292,428 pairs in training, 500 of each in validation; `mtmoe prepare corpora` "
    "with 5,000 pieces",
    minutes=0,
    updates=UPDATES,
    layers=3,
    inner=32,
    num_experts=16,
    expert_interval=1,
    criterion="moe_label_smoothed_cross_entropy",
    optimizer="fused_adam",
    max_tokens=6000,
    lr=7e-3,
    warmup_updates=300,
    epoch_sentences=20_000,
    validations=10,
    tells_decoder=True,
)
ML50 = (
    "ML-50's English to 50 languages, 522,050 pairs in training, 500 of each, or 200, in validation; `mtmoe "
    "prepare corpora` with 8,000 pieces"
)
CATALOGS = (
    "the demo's names of languages and places and short messages, English to 14 languages, 74,892 pairs in training, "
    "100 of each in validation and "
    "200 in test; `mtmoe prepare catalogs` with `--vocab-size 6000`"
)
SETTINGS = {
    "wmt15": SPARSE,
    # Where the decoder has to find out by attention which language it is to write, and task gates know it.
    "wmt15_untold": replace(SPARSE, tells_decoder=False),
    # A look at the number of experts, and at what else could stand in their place.
    "wmt15_scaling": replace(SPARSE, updates=1200, validations=6),
    # A look: its validation sets are as many tokens as a hundred updates.
    "ml50": replace(SPARSE, data=ML50, updates=500, validations=5),
    # Where minutes are several passes of the languages with little data, and translations good enough for BLEU.
    "catalogs": replace(SPARSE, data=CATALOGS, updates=600, warmup_updates=100, epoch_sentences=5000),
}


def changed(name: str, title: str, *options: str, starts_dense: bool = False, heats: bool = False) -> System:
    """BASE layers of the setting's experts, from scratch and as they are by default, with one change."""
    return System(name, title, "base_moe", starts_dense=starts_dense, heats=heats, options=options)


def pretrained(percent: int) -> System:
    """Dense for another share of the updates than the setting's 40%."""
    title = f"dense → BASE, dense for {percent}%"
    return replace(changed(f"pretrained_{percent}", title, starts_dense=True), dense_share=percent / 100)


def sized(count: int, *options: str, name: str = BASE, title: str = "BASE") -> System:
    """Layers of so many experts; the setting's number is in no name."""
    of_number = () if count == SPARSE.num_experts else ("--num-experts", str(count))
    return changed(f"{name}_{count}" if of_number else name, f"{title}, {count} experts", *options, *of_number)


def by_prices(count: int) -> System:
    """Layers of so many experts that route by running prices in training, as in evaluation."""
    return sized(count, *BY_PRICES, name=PRICED, title="by prices")


def widened(times: int, name: str) -> System:
    """A dense model with feed-forward layers of several times the inner size."""
    inner = str(times * SPARSE.inner)
    options = ("--encoder-ffn-embed-dim", inner, "--decoder-ffn-embed-dim", inner)
    return System(name, f"dense, inner size × {times}", "base_dense", options=options)


SIZES = (4, 16, 64)
SCALING = (
    System(DENSE, "dense", "base_dense"),
    *map(by_prices, SIZES),
    *map(sized, SIZES),
    # About the minutes that experts cost, spent on a wider feed-forward layer.
    widened(4, "dense_wider"),
    # As many parameters as 16 experts have, all of them used for every token: what experts could give at most.
    widened(SPARSE.num_experts, "dense_widest"),
)
WHY = (
    changed("paper_combine", "the paper's combine", *PAPER),
    changed(TASK_GATES, "task gates: one for each language", "--expert-gates", "task"),
    changed("task_by_prices", "by prices and task gates in turns", "--expert-gates", "base,task", *BY_PRICES),
    changed("switch_gates", "Switch gates", "--expert-gates", "switch"),
    changed("shared", "half of each expert shared", "--shared-expert-dim", str(SPARSE.inner // 2)),
    changed("slow_gates", "gates' learning rate × 0.1", "--gate-lr-factor", "0.1"),
    changed("fast_gates", "gates' learning rate × 10", "--gate-lr-factor", "10"),
    changed("expert_dropout", "dropout 0.4 in experts", "--expert-dropout", "0.4"),  # Switch Transformer's
    changed("pretrained", "dense → BASE", starts_dense=True),
    changed("pretrained_anew", "dense → BASE, half of each anew", "--expert-reinit-ratio", "0.5", starts_dense=True),
    changed("pretrained_paper", "dense → BASE, the paper's combine", *PAPER, starts_dense=True),
    *map(pretrained, (20, 60)),
)
# With SCALING's dense and BASE and WHY's dense → BASE, the rows of "Tricks for Training Sparse Translation Models".
PUBLISHED = (
    System(STOCK, "stock fairseq, dense", "transformer"),
    System("dense_heated", "dense + heating", "base_dense", heats=True),
    changed("base_heated", "BASE + heating", heats=True),
    changed("base_heated_less", "BASE + heating, k = 1", "--heating-coefficient", "1", heats=True),
    changed("base_cold", "BASE, T = 1", "--sampling-temperature", "1.0"),
    changed(
        "base_cold_heated", "BASE + heating, T = 1, k = 1",
        "--sampling-temperature", "1.0", "--heating-coefficient", "1", heats=True,
    ),
    # The mean temperature of BASE + heating from the first update on.
    changed("base_hot", "BASE, T = 2.33", "--sampling-temperature", "2.33"),
    changed("pretrained_heated", "dense → BASE + heating", starts_dense=True, heats=True),
    changed("alternating", "alternating base,task", "--expert-gates", "base,task"),
)  # fmt: skip
SYSTEMS = (*SCALING, *WHY, *PUBLISHED)
BY_NAME = {system.name: system for system in SYSTEMS}
