#!/usr/bin/env bash
# Train 8 BASE experts in the processes that torchrun, SLURM or the environment set. A second call continues in any number.
set -euo pipefail
# Hide warnings from the imports of fairscale and fairseq, which come before the plugin can filter them
export PYTHONWARNINGS=ignore::FutureWarning:fairscale.experimental.nn.offload LOGLEVEL=${LOGLEVEL:-WARNING}
DATA=${RUNS:-runs}/distributed/data
exec fairseq-train "$DATA" --user-dir "$(mtmoe user-dir)" --save-dir "${RUNS:-runs}/distributed/model" \
    --task translation_heated --lang-pairs "$DATA/lang_pairs.txt" --encoder-langtok tgt --decoder-langtok \
    --sampling-method temperature --sampling-temperature 1.5 --virtual-epoch-size 8000 \
    --arch base_moe_tiny --encoder-embed-dim 128 --encoder-ffn-embed-dim 256 --decoder-ffn-embed-dim 256 \
    --num-experts 8 --expert-gates base --dropout 0.1 --log-expert-comm --distributed-timeout 60 \
    --criterion moe_label_smoothed_cross_entropy --label-smoothing 0.1 \
    --optimizer fused_adam --adam-betas '(0.9,0.98)' --clip-norm 1.0 \
    --lr 0.003 --lr-scheduler inverse_sqrt --warmup-updates 200 --max-tokens 2000 --num-workers 0 --seed 1 \
    --log-format rich --log-interval 25 --validate-interval 1000 --validate-interval-updates 100 \
    --save-interval-updates 50 --keep-interval-updates 1 --no-epoch-checkpoints "$@"
