#!/usr/bin/env bash
# Tables 2 and 9: one model per task of GLUE, MTL and CA-MTL. Figure 6 for the first seed.
source "$(dirname "$0")/runs.sh"
single single_task "$TASKS" "${PLAIN[@]}" "$@"
together mtl "$TASKS" --conditional none --sampling-method uniform "$@"
together ca_mtl "$TASKS" --conditional "$PARTS" --sampling-method uncertainty "$@"
compare "$TASKS" single_task mtl ca_mtl
SEEDS=${SEEDS%% *}
alone=()
for folder in $(folders single_task "$TASKS"); do alone+=(--single "$folder"); done
python "$(dirname "$0")/similarity.py" "$RUNS/mtl-$SEEDS" "$RUNS/ca_mtl-$SEEDS" "${alone[@]}" --data "$GLUE_DIR" --out "$RUNS/similarity-$SEEDS.json"
