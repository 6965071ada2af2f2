#!/usr/bin/env bash
# Add LANGUAGE to the demo's translator: prepare text, extend the checkpoint, train, evaluate. A second call continues.
set -euo pipefail
HERE=$(dirname "$0") LANGUAGE=${LANGUAGE:-sv} OLD=${RUNS:-runs}/catalogs NEW=${RUNS:-runs}/catalogs-${LANGUAGE:-sv}
mkdir -p "$NEW"
sed "s/LANGUAGE/$LANGUAGE/g" "$HERE/language.yaml" > "$NEW/recipe.yaml"
DATA=$NEW/data RECIPE=$NEW/recipe.yaml bash "$HERE/../catalogs/prepare.sh" --vocabulary-from "$OLD/data"
[ -e "$NEW/grown.pt" ] || mtmoe add-task "$OLD/model/checkpoint_best.pt" "$NEW/grown.pt" --task "$LANGUAGE" \
    --embedding-from "${FROM:-de}"
DATA=$NEW/data MODEL=$NEW/model bash "$HERE/../catalogs/train.sh" \
    --finetune-from-model "$NEW/grown.pt" --lang-dict "$NEW/data/langs.txt" \
    --num-experts $(($(wc -l < "$NEW/data/langs.txt") - 1)) \
    --lr 0.001 --warmup-updates 100 --max-update 500 --cpu "$@"
mtmoe evaluate "$NEW/data" --path "$NEW/model/checkpoint_best.pt" --overwrite --cpu
