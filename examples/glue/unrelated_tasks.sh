#!/usr/bin/env bash
# Tables 3 and 10: effect of CoLA and SST-2, which are unlike the other tasks: mixtures without them (C-GLUE) and with them.
source "$(dirname "$0")/stages.sh"
CLEAN=${CLEAN:-rte,mrpc,stsb,qnli,qqp,mnli}
for system in ${SYSTEMS:-mt_dense mt_switch mt_tag}; do
    mixture "clean_$system" "$system" "$CLEAN" "$@"
    tuned "clean_$system" "$system" "$CLEAN" "$@"
    mixture "$system" "$system" "$TASKS" "$@"
    tuned "$system" "$system" "$CLEAN" "$@"
    compare "$CLEAN" "clean_$system" "$system"
done
