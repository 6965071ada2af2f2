#!/usr/bin/env bash
# Table 1: MTL with random sampling, then CA-MTL's parts added one by one, then its sampling. Figure 8 for the last system.
source "$(dirname "$0")/runs.sh"
together mtl "$TASKS" --conditional none --sampling-method uniform "$@"
together attention "$TASKS" --conditional attention --sampling-method uniform "$@"
together bottleneck "$TASKS" --conditional attention,bottleneck --sampling-method uniform "$@"
together norm "$TASKS" --conditional "$PARTS" --sampling-method uniform "$@"
together ca_mtl "$TASKS" --conditional "$PARTS" --sampling-method uncertainty "$@"
compare "$TASKS" mtl attention bottleneck norm ca_mtl
mtmoe report "$RUNS/ca_mtl-${SEEDS%% *}" --png "$RUNS/ca_mtl-${SEEDS%% *}/plots"
