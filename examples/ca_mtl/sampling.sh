#!/usr/bin/env bash
# Figure 4: uniform, size-proportional and uncertainty sampling, with an encoder without conditional parts.
source "$(dirname "$0")/runs.sh"
for method in uniform concat uncertainty; do
    together "sampling_$method" "$TASKS" "${PLAIN[@]}" --sampling-method "$method" "$@"
done
compare "$TASKS" sampling_uniform sampling_concat sampling_uncertainty
mtmoe report $(for method in uniform concat uncertainty; do echo "$RUNS/sampling_$method-${SEEDS%% *}"; done) --png "$RUNS/plots"
