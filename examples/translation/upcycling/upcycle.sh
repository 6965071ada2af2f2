#!/usr/bin/env bash
# A dense transformer of stock fairseq, made sparse and trained on. Interrupted and started again, it goes on.
set -euo pipefail
RUN=${RUNS:-runs}/upcycling
DATA=$RUN/data
UPDATES=${UPDATES:-600}

# What both runs must say alike: the languages and their tokens, the sizes, and which embeddings are one.
SAME=(--lang-pairs "$DATA/lang_pairs.txt" --lang-dict "$DATA/langs.txt" --encoder-langtok tgt --decoder-langtok
    --encoder-layers 2 --encoder-embed-dim 128 --encoder-ffn-embed-dim 256 --encoder-attention-heads 2
    --decoder-layers 2 --decoder-ffn-embed-dim 256 --decoder-attention-heads 2 --share-all-embeddings)
# What they may say otherwise.
TRAINING=(--sampling-method temperature --sampling-temperature 1.5 --dropout 0.1 --label-smoothing 0.1
    --adam-betas '(0.9,0.98)' --clip-norm 1.0 --lr 0.003 --lr-scheduler inverse_sqrt --warmup-updates 200
    --max-tokens 2000 --num-workers 0 --seed 1 --log-format simple --log-interval 50 --no-epoch-checkpoints)

mtmoe prepare catalogs "$DATA" --langs fr,de,es,cs --vocab-size 4000

if [ ! -e "$RUN/sparse.pt" ]; then
    echo "== Stock fairseq trains a dense model."
    fairseq-train "$DATA" --save-dir "$RUN/dense" --save-interval 1000 \
        --save-interval-updates 200 --keep-interval-updates 1 --validate-interval-updates 200 \
        --task translation_multi_simple_epoch --arch transformer \
        --criterion label_smoothed_cross_entropy --optimizer adam \
        "${SAME[@]}" "${TRAINING[@]}" --max-update "$UPDATES"

    echo "== Every second feed-forward layer becomes 8 experts, with Adam's moments."
    mtmoe upcycle "$RUN/dense/checkpoint_last.pt" "$RUN/sparse.pt" --num-experts 8
fi

echo "== The sparse model trains on from there, for half as many updates again."
fairseq-train "$DATA" --user-dir fairseq_mtmoe --save-dir "$RUN/sparse" --continue-once "$RUN/sparse.pt" \
    --task translation_heated --arch base_moe --num-experts 8 \
    --criterion moe_label_smoothed_cross_entropy --optimizer fused_adam \
    "${SAME[@]}" "${TRAINING[@]}" --max-update $((UPDATES + UPDATES / 2)) \
    --validate-interval-updates 200 --save-interval-updates 200 --keep-interval-updates 1 "$@"

for model in dense sparse; do
    mtmoe evaluate "$DATA" --path "$RUN/$model/checkpoint_last.pt" --beam 2 --overwrite
done
