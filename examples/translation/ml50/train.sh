#!/usr/bin/env bash
# Train as configs/experiment/ml50.yaml, with options of fairseq-train.
set -euo pipefail
DATA=${DATA:-${RUNS:-runs}/ml50/data}
exec fairseq-train "$DATA" --user-dir "$(mtmoe user-dir)" \
    --save-dir "${RUNS:-runs}/ml50/model" \
    --task translation_heated --lang-dict "$DATA/langs.txt" --lang-pairs "$DATA/lang_pairs.txt" \
    --lang-tok-style "$(cat "$DATA/lang_tok_style.txt" 2>/dev/null || echo multilingual)" \
    --encoder-langtok tgt --decoder-langtok --virtual-epoch-size 1000000 \
    --sampling-method temperature --sampling-temperature 1.5 --heating-coefficient 1 --heating-epochs 30 \
    --arch base_moe_ml50 --num-experts 16 --expert-gates base --dense-updates 20000 \
    --criterion moe_label_smoothed_cross_entropy --label-smoothing 0.1 \
    --optimizer fused_adam --adam-betas '(0.9,0.98)' --clip-norm 1.0 \
    --lr 0.0007 --lr-scheduler inverse_sqrt --warmup-updates 4000 --max-update 100000 --max-tokens 8192 \
    --seed 1 --log-interval 100 --validate-interval-updates 5000 --save-interval-updates 5000 \
    --keep-interval-updates 2 --no-epoch-checkpoints "$@"
