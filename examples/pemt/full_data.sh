#!/usr/bin/env bash
# Table 1: full fine-tuning, LoRA by itself, and PEMT from all sources; figure 4 of PEMT's first seed.
source "$(dirname "$0")/runs.sh"
sources lora "$SOURCES" "$@"
targets full "$TASKS" "${FULL[@]}" "$@"
targets lora "$TASKS" "${LORA[@]}" "$@"
targets pemt "$TASKS" "${TARGET[@]}" --pemt-sources "$(borrowed lora "$SOURCES")" "$@"
compare "$TASKS" full lora pemt
mtmoe plot "$RUNS/pemt-${SEEDS%% *}"/*
