#!/usr/bin/env bash
# Tables 2 and 9: one model per task of GLUE, MTL and CA-MTL. Figure 6 for the first seed.
source "$(dirname "$0")/runs.sh"
single single_task "$TASKS" "${PLAIN[@]}" "$@"
together mtl "$TASKS" --conditional none --sampling-method uniform "$@"
together ca_mtl "$TASKS" --conditional "$PARTS" --sampling-method uncertainty "$@"
compare "$TASKS" single_task mtl ca_mtl
SEEDS=${SEEDS%% *}
mtmoe similarity "$RUNS/mtl-$SEEDS" "$RUNS/ca_mtl-$SEEDS" $(folders single_task "$TASKS") --out "$RUNS/similarity-$SEEDS"
