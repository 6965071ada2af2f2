"""Small runs of version 0.1.0, whose files later versions must go on with.

`v0_1_0/` was made in a checkout of that version (commit 58e9362), and is never made anew; the script that made it is in
this file's history. It has

- `data/`: a data directory as fairseq-preprocess makes them;
- `prepared/`: the data directory that `mtmoe prepare text` made of parallel text;
- `sparse/`: a checkpoint of update 8 of a run that was dense for 4, and the run log;
- `parts/`: a checkpoint of update 8 in parts, of two processes;
- `dense/`: a checkpoint of update 8 of the dense twin, with fairseq's own criterion and Adam;
- `results.json`: the gradients' norms of updates 9 to 12 of the same runs, which nobody interrupted, and the loss of
  the last validation.
"""

from pathlib import Path

OLD = Path(__file__).parent / "v0_1_0"
SAVED, END = 8, 12  # updates
SMALL = (
    "--encoder-embed-dim", 8, "--encoder-ffn-embed-dim", 16, "--encoder-layers", 2, "--decoder-layers", 2,
    "--max-tokens", 200, "--save-interval-updates", SAVED, "--max-update", END, "--lr", 0.01, "--warmup-updates", 2,
)  # fmt: skip
OURS = ("--criterion", "moe_label_smoothed_cross_entropy", "--optimizer", "fused_adam")
RUNS: dict[str, tuple[object, ...]] = {
    "sparse": (*SMALL, *OURS, "--num-experts", 4, "--expert-gates", "base,task", "--dense-updates", 4,
               "--heating-coefficient", 3, "--max-epoch", 20),
    "parts": (*SMALL, *OURS, "--num-experts", 4, "--expert-gates", "base,task"),
    "dense": (*SMALL, "--arch", "base_dense_tiny"),
}  # fmt: skip
