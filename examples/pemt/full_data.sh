#!/usr/bin/env bash
# Table 1: full fine-tuning, LoRA alone, and PEMT from all sources. Figure 4 for PEMT's first seed.
source "$(dirname "$0")/runs.sh"
sources lora "$SOURCES" "$@"
targets full "$TASKS" "${FULL[@]}" "$@"
targets lora "$TASKS" "${LORA[@]}" "$@"
targets pemt "$TASKS" "${TARGET[@]}" --pemt-sources "$(borrowed lora "$SOURCES")" "$@"
compare "$TASKS" full lora pemt
mtmoe report "$RUNS/pemt-${SEEDS%% *}"/* --png "$RUNS/plots"
