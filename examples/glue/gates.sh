#!/usr/bin/env bash
# Table 6: a new task with 10% of its examples, starting from a random gate, an unrelated task's or a related task's.
source "$(dirname "$0")/stages.sh"
NEW=${NEW:-scitail}
GATES=${GATES:-sst2 rte mnli}
SHARE=${SHARE:-0.1} FROM=mt_tag
known NEW ${NEW//,/ }
mixture mt_tag mt_tag "$TASKS" "$@"
tuned "gate_random_$SHARE" mt_tag "$NEW" "$@" --train-share "$SHARE"
for gate in $GATES; do
    tuned "gate_${gate}_$SHARE" mt_tag "$NEW" "$@" --train-share "$SHARE" --reuse-gate "$gate"
done
compare "$NEW" "gate_random_$SHARE" $(printf "gate_%s_$SHARE " $GATES)
