"""Small runs of version 0.2.0, which later versions must resume with the same results.

`v0_2_0/` was made by version 0.2.0, and is never made anew. It has

- `data/`: a data directory as fairseq-preprocess makes them;
- `sparse/`: a checkpoint of update 8 of a run that was dense for 4, and the run log;
- `parts/`: a checkpoint of update 8 in parts, of two processes;
- `dense/`: a checkpoint of update 8 of the dense twin, with fairseq's own criterion and Adam;
- `results.json`: the gradients' norms of updates 9 to 12 of the same runs without an interruption, and the loss of
  the last validation.
"""

from pathlib import Path

FROZEN = Path(__file__).parent / "v0_2_0"
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
PROCESSES = {"sparse": 1, "parts": 2, "dense": 1}
