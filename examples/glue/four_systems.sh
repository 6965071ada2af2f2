#!/usr/bin/env bash
# Tables 1, 4 and 11: Single-Task, MT-Dense, MT-Switch and MT-TaG on GLUE.
source "$(dirname "$0")/stages.sh"
SYSTEMS=${SYSTEMS-mt_dense mt_switch mt_tag}
single single_task "$TASKS" "$@"
for system in $SYSTEMS; do
    mixture "$system" "$system" "$TASKS" "$@"
    tuned "$system" "$system" "$TASKS" "$@"
done
compare "$TASKS" single_task $SYSTEMS
