#!/usr/bin/env bash
# Train dense for 800 updates, then with 16 BASE experts in every second block, and with temperature heating.
# A second call continues the run. DATA has 14 target languages: demo.sh prepares it.
set -euo pipefail
# Hide warnings from the imports of fairscale and fairseq, which come before the plugin can filter them
export PYTHONWARNINGS=ignore::FutureWarning:fairscale.experimental.nn.offload LOGLEVEL=${LOGLEVEL:-WARNING}
DATA=${RUNS:-runs}/base/data
fairseq-train "$DATA" --user-dir "$(mtmoe user-dir)" --save-dir "${RUNS:-runs}/base/model" \
    --task translation_heated --lang-pairs "$DATA/lang_pairs.txt" --encoder-langtok tgt --decoder-langtok \
    --sampling-method temperature --sampling-temperature 1.5 --heating-coefficient 3 --heating-epochs 15 \
    --virtual-epoch-size 12000 \
    --arch base_moe_tiny --encoder-embed-dim 128 --encoder-ffn-embed-dim 256 --decoder-ffn-embed-dim 256 \
    --num-experts 16 --expert-gates base --dense-updates 800 --dropout 0.1 \
    --criterion moe_label_smoothed_cross_entropy --label-smoothing 0.1 \
    --optimizer fused_adam --adam-betas '(0.9,0.98)' --clip-norm 1.0 \
    --lr 0.003 --lr-scheduler inverse_sqrt --warmup-updates 400 --max-update 1700 \
    --max-tokens 2000 --num-workers 0 --seed 1 --log-format rich --log-interval 50 \
    --validate-interval 1000 --validate-interval-updates 200 --save-interval-updates 200 --keep-interval-updates 1 --no-epoch-checkpoints "$@"
