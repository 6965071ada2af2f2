#!/usr/bin/env bash
# Table 3: 4, 16 and 32 examples of each target, drawn by the seed and the same for all systems.
source "$(dirname "$0")/runs.sh"
sources lora "$SOURCES" "$@"
for SHOTS in ${SHOTS:-4 16 32}; do
    targets "lora_$SHOTS" "$TASKS" "${LORA[@]}" "$@"
    targets "pemt_$SHOTS" "$TASKS" "${TARGET[@]}" --pemt-sources "$(borrowed lora "$SOURCES")" "$@"
    compare "$TASKS" "lora_$SHOTS" "pemt_$SHOTS"
done
