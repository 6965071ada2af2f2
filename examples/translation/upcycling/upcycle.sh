#!/usr/bin/env bash
# Train a dense transformer with stock fairseq, upcycle it, and continue training. Run it again after an interruption.
set -euo pipefail
RUN=${RUNS:-runs}/upcycling
DATA=$RUN/data
UPDATES=${UPDATES:-600}

# Options that both runs must share: languages and their tokens, sizes, shared embeddings
SAME=(--lang-pairs "$DATA/lang_pairs.txt" --lang-dict "$DATA/langs.txt" --encoder-langtok tgt --decoder-langtok
    --encoder-layers 2 --encoder-embed-dim 128 --encoder-ffn-embed-dim 256 --encoder-attention-heads 2
    --decoder-layers 2 --decoder-ffn-embed-dim 256 --decoder-attention-heads 2 --share-all-embeddings)
# Options that may differ
TRAINING=(--sampling-method temperature --sampling-temperature 1.5 --dropout 0.1 --label-smoothing 0.1
    --adam-betas '(0.9,0.98)' --clip-norm 1.0 --lr 0.003 --lr-scheduler inverse_sqrt --warmup-updates 200
    --max-tokens 2000 --num-workers 0 --seed 1 --log-format simple --log-interval 50 --no-epoch-checkpoints)

CATALOGS=$(dirname "$0")/../catalogs
DATA=$DATA RECIPE=$CATALOGS/four_languages.yaml bash "$CATALOGS/prepare.sh"

if [ ! -e "$RUN/sparse.pt" ]; then
    echo "== Train a dense model with stock fairseq."
    fairseq-train "$DATA" --save-dir "$RUN/dense" --save-interval 1000 \
        --save-interval-updates 200 --keep-interval-updates 1 --validate-interval-updates 200 \
        --task translation_multi_simple_epoch --arch transformer \
        --criterion label_smoothed_cross_entropy --optimizer adam \
        "${SAME[@]}" "${TRAINING[@]}" --max-update "$UPDATES"

    echo "== Copy every second feed-forward layer and its Adam state into 8 experts."
    mtmoe upcycle "$RUN/dense/checkpoint_last.pt" "$RUN/sparse.pt" --num-experts 8
fi

echo "== Continue training the sparse model for half the number of updates."
fairseq-train "$DATA" --user-dir "$(mtmoe user-dir)" --save-dir "$RUN/sparse" --continue-once "$RUN/sparse.pt" \
    --task translation_heated --arch base_moe --num-experts 8 \
    --criterion moe_label_smoothed_cross_entropy --optimizer fused_adam \
    "${SAME[@]}" "${TRAINING[@]}" --max-update $((UPDATES + UPDATES / 2)) \
    --validate-interval-updates 200 --save-interval-updates 200 --keep-interval-updates 1 "$@"

for model in dense sparse; do
    mtmoe evaluate "$DATA" --path "$RUN/$model/checkpoint_last.pt" --beam 2 --overwrite
done
