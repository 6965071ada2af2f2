#!/usr/bin/env bash
# Table 8: MT-TaG with 2, 4 and 6 experts in each block. The runs with 4 are those of four_systems.sh.
source "$(dirname "$0")/stages.sh"
systems=()
for number in ${EXPERTS:-2 4 6}; do
    system=$([ "$number" = 4 ] && echo mt_tag || echo "experts_$number")
    mixture "$system" mt_tag "$TASKS" "$@" --num-experts "$number"
    tuned "$system" mt_tag "$TASKS" "$@" --num-experts "$number"
    systems+=("$system")
done
compare "$TASKS" "${systems[@]}"
