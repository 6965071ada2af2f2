#!/usr/bin/env bash
# Table 2: new tasks with 1% and 10% of their examples, from the mixtures of four_systems.sh, which it trains if missing.
source "$(dirname "$0")/stages.sh"
SYSTEMS=${SYSTEMS-mt_dense mt_switch mt_tag}
NEW=${NEW:-scitail=mnli,imdb=sst2} # NEW=TASK of the mixture whose gate MT-TaG reuses
names=$(sed -E 's/=[^,]*//g' <<<"$NEW")
known NEW ${names//,/ }
for system in $SYSTEMS; do
    mixture "$system" "$system" "$TASKS" "$@"
done
for SHARE in ${SHARES:-0.01 0.1}; do
    rows=("single_task_$SHARE")
    single "single_task_$SHARE" "$names" "$@" --train-share "$SHARE"
    for FROM in $SYSTEMS; do
        for new in ${NEW//,/ }; do
            reuse=()
            [ "$FROM" = mt_tag ] && reuse=(--reuse-gate "${new#*=}")
            tuned "${FROM}_$SHARE" "$FROM" "${new%=*}" "$@" --train-share "$SHARE" "${reuse[@]}"
        done
        rows+=("${FROM}_$SHARE")
    done
    compare "$names" "${rows[@]}"
done
