#!/usr/bin/env bash
# Tables 3 and 8: new tasks with 0.1% to 100% of their examples, from CA-MTL's mixture with several initial embeddings.
source "$(dirname "$0")/runs.sh"
NEW=${NEW:-scitail snli}
STARTS=${STARTS:-stsb mrpc mean random xavier} # the paper found STS-B's best for SciTail, and MRPC's for SNLI
FEW_UPDATES=${FEW_UPDATES:-100}                # minimum for a new task
EXAMPLES+=([snli]=549367)
known NEW $NEW
together ca_mtl "$TASKS" --conditional "$PARTS" --sampling-method uncertainty "$@"

# adapt SYSTEM TASK SHARE [options]: train and score one run per seed.
adapt() {
    for seed in $SEEDS; do
        local folder=$RUNS/$1-$seed/$2 updates epoch every
        [ -e "$folder/scores.json" ] && continue
        updates=$(awk "BEGIN { n = ${EXAMPLES[$2]} * $3 * $EPOCHS / 32; print int(n > $FEW_UPDATES ? n : $FEW_UPDATES) }")
        # With few examples an epoch is one or two updates: validate and save only ten times.
        epoch=$(awk "BEGIN { n = ${EXAMPLES[$2]} * $3 / 32; print int(n) + (n > int(n)) }")
        every=$(((updates + 10 * epoch - 1) / (10 * epoch)))
        echo "== $1, seed $seed: $2"
        local begin=(--init-encoder "$ENCODER" --conditional none)
        if [ -n "${FROM:-}" ]; then
            mkdir -p "$folder"
            mtmoe add-task "$RUNS/ca_mtl-$seed/checkpoint_best.pt" "$folder/begin.pt" --task "$2" --embedding-from "$FROM" \
                --seed "$seed" --overwrite
            begin=(--finetune-from-model "$folder/begin.pt" --conditional "$PARTS")
        fi
        train "$folder" "$ARCH" "$2" 32 "$updates" --seed "$seed" --train-share "$3" --train-share-seed "$seed" \
            --freeze-layers 0 --validate-interval "$every" --save-interval "$every" "${begin[@]}" --no-save-optimizer-state "${@:4}"
        fairseq-validate "$GLUE_DIR" --user-dir "$(mtmoe user-dir)" --task glue --path "$folder/checkpoint_best.pt" \
            --batch-size 128 --results-path "$folder"
        rm -f "$folder/begin.pt"
    done
}

for task in $NEW; do
    for share in ${SHARES:-0.001 0.01 0.1 1}; do
        FROM='' adapt "alone_$share" "$task" "$share" "$@"
        systems=("alone_$share")
        for start in $STARTS; do
            FROM=$start adapt "from_${start}_$share" "$task" "$share" "$@"
            systems+=("from_${start}_$share")
        done
        compare "$task" "${systems[@]}"
    done
done
