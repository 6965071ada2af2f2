#!/usr/bin/env bash
# Table 7: MT-TaG's mixture with natural sampling (by size), uniform sampling, and uniform for the first fifth (A.4).
source "$(dirname "$0")/stages.sh"
mixture mt_tag mt_tag "$TASKS" "$@"
mixture uniform mt_tag "$TASKS" "$@" --sampling-method uniform
mixture uniform_then_natural mt_tag "$TASKS" "$@" --sampling-method uniform-then-natural \
    --virtual-epoch-size "$((UPDATES * 128 / 10 + 1))" --natural-from-epoch 3
for system in mt_tag uniform uniform_then_natural; do
    tuned "$system" mt_tag "$TASKS" "$@"
done
compare "$TASKS" uniform mt_tag uniform_then_natural
