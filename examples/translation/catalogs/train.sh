#!/usr/bin/env bash
# Train the system that `mtmoe suggest` recommends for up to 8 target languages: in every second block, each target
# language has a feed-forward layer of its own. A second call continues the run.
# Set DATA and MODEL for other folders than the demo's.
set -euo pipefail
# Hide warnings from the imports of fairscale and fairseq, which come before the plugin can filter them
export PYTHONWARNINGS=ignore::FutureWarning:fairscale.experimental.nn.offload LOGLEVEL=${LOGLEVEL:-WARNING}
DATA=${DATA:-${RUNS:-runs}/catalogs/data}
TARGETS=$(tr , '\n' < "$DATA/lang_pairs.txt" | grep -c .)
fairseq-train "$DATA" --user-dir "$(mtmoe user-dir)" --save-dir "${MODEL:-${RUNS:-runs}/catalogs/model}" \
    --task translation_heated --lang-pairs "$DATA/lang_pairs.txt" --encoder-langtok tgt --decoder-langtok \
    --sampling-method temperature --sampling-temperature 1.5 --virtual-epoch-size 12000 \
    --arch base_moe_tiny --num-experts "$TARGETS" --expert-gates fixed \
    --encoder-normalize-before --decoder-normalize-before \
    --encoder-embed-dim 128 --encoder-ffn-embed-dim 256 --decoder-ffn-embed-dim 256 --dropout 0.1 \
    --criterion moe_label_smoothed_cross_entropy --label-smoothing 0.1 \
    --optimizer fused_adam --adam-betas '(0.9,0.98)' --clip-norm 1.0 \
    --lr 0.003 --lr-scheduler inverse_sqrt --warmup-updates 400 --max-update 1700 \
    --max-tokens 2000 --num-workers 0 --seed 1 --log-format rich --log-interval 50 \
    --validate-interval 1000 --validate-interval-updates 200 --save-interval-updates 200 --keep-interval-updates 1 --no-epoch-checkpoints "$@"
