#!/usr/bin/env bash
# Table 10: CA-MTL with no blocks, a quarter and half of the blocks frozen, and one model per task. The paper's encoder is
# BERT large: set ARCH=ca_mtl_large.
source "$(dirname "$0")/runs.sh"
QUARTER=$([[ $ARCH = *large ]] && echo 6 || echo 3)
single single_task "$TASKS" "${PLAIN[@]}" "$@"
for frozen in 0 "$QUARTER" half; do
    system=$([ "$frozen" = half ] && echo ca_mtl || echo "frozen_$frozen")
    together "$system" "$TASKS" --conditional "$PARTS" --sampling-method uncertainty --freeze-layers "$frozen" "$@"
done
compare "$TASKS" single_task frozen_0 "frozen_$QUARTER" ca_mtl
