#!/usr/bin/env bash
# Table 4: the first 1, 2, 4 and 6 sources. The paper does not state their order.
source "$(dirname "$0")/runs.sh"
all=$(tr , '\n' <<<"$SOURCES" | wc -l)
for count in ${COUNTS:-1 2 4 6}; do
    [ "$count" -ge 1 ] && [ "$count" -le "$all" ] && continue
    echo "\`COUNTS\` must have numbers from 1 to $all, the number of sources ($SOURCES), but has $count." >&2
    exit 1
done
sources lora "$SOURCES" "$@"
systems=()
for count in ${COUNTS:-1 2 4 6}; do
    some=$(cut -d, -f "1-$count" <<<"$SOURCES")
    targets "pemt_$count" "$TASKS" "${TARGET[@]}" --pemt-sources "$(borrowed lora "$some")" "$@"
    systems+=("pemt_$count")
done
compare "$TASKS" "${systems[@]}"
