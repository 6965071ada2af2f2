# PEMT's settings (tables 7 and 8) for the scripts beside it, which begin with `source runs.sh`. From ../glue/stages.sh come
# `compare TASKS SYSTEM…` and the tasks' sizes. This file adds:
#   sources KIND TASKS [options]     stage 1: train each task's adapters and prompt, once for all seeds
#   borrowed KIND TASKS              print their files for --pemt-sources
#   targets SYSTEM TASKS [options]   stage 2 or a baseline: train each task alone, for each seed
# Scripts share their runs, skip finished ones, and continue interrupted ones.
set -euo pipefail
T5=${T5:?must be a file of mtmoe import-hf with a T5}
RUNS=${RUNS:-runs/pemt}
SEEDS=${SEEDS:-42 1024 4096}
ENCODER=$T5
TASKS=${TASKS:-stsb,mrpc,rte,cola,multirc,boolq,wic,wsc,cb} # targets
source "$(dirname "$0")/../glue/stages.sh"
HALVES=${HALVES:-$(dirname "${BASH_SOURCE[0]}")/halves.yaml} # splits of development sets
SIZE=${SIZE-_base} # _small, _base or _large; empty: the T5's size
SOURCES=${SOURCES:-mnli,qnli,qqp,sst2,squad,record}
SOURCE_EPOCHS=${SOURCE_EPOCHS:-5}
SOURCE_LR=${SOURCE_LR:-5e-4}
TARGET_EPOCHS=${TARGET_EPOCHS:-20} # halved above 10,000 examples; the paper has 5 for MRQA's tasks
TARGET_LR=${TARGET_LR:-6e-4}       # or 1e-3
FEW_UPDATES=${FEW_UPDATES:-100}    # with few examples
EXAMPLES+=([squad]=86588 [record]=100730 [wsc]=554)
known SOURCES ${SOURCES//,/ }
known TASKS ${TASKS//,/ }
declare -A POSITIONS=([squad]=512 [record]=512 [multirc]=348) # all others have 256

# learn FOLDER TASK EXAMPLES EPOCHS BATCH WARMUP [options]: keep the best epoch's checkpoint.
learn() {
    local updates=$((($3 * $4 + $5 - 1) / $5))
    fairseq-train "$GLUE_DIR" --user-dir "$(mtmoe user-dir)" --save-dir "$1" --task text_to_text --init-model "$T5" \
        --max-source-positions "${POSITIONS[$2]:-256}" --batch-size "$5" --optimizer fused_adam --adam-betas '(0.9,0.999)' \
        --clip-norm 1 --lr-scheduler polynomial_decay --max-update "$updates" --total-num-update "$updates" \
        --warmup-updates "$(($6 < updates ? $6 : updates / 10))" --best-checkpoint-metric all \
        --maximize-best-checkpoint-metric --no-epoch-checkpoints --no-last-checkpoints --no-save-optimizer-state \
        --log-format rich --log-interval 20 "${@:7}"
}

sources() {
    local task
    for task in ${2//,/ }; do
        local folder=$RUNS/sources-$1/$task
        [ -e "$folder/$task.pt" ] && [ -e "$folder/finished" ] && continue
        echo "== source $task, $1"
        learn "$folder" "$task" "${EXAMPLES[$task]}" "$SOURCE_EPOCHS" 128 500 --source-task "$task" \
            --arch "pemt_t5$SIZE" --pemt-stage source --criterion pemt --lr "$SOURCE_LR" "${@:3}"
        rm -f "$folder/checkpoint_best.pt" # targets need only the source file
        touch "$folder/finished"
    done
}

borrowed() {
    local task files=()
    for task in ${2//,/ }; do files+=("$RUNS/sources-$1/$task/$task.pt"); done
    (IFS=, && echo "${files[*]}")
}

targets() {
    local seed task
    for seed in $SEEDS; do
        for task in ${2//,/ }; do
            local folder=$RUNS/$1-$seed/$task examples=${EXAMPLES[$task]} epochs=$TARGET_EPOCHS batch=64 few=()
            [ -e "$folder/scores.json" ] && continue
            [ "$examples" -gt 10000 ] && epochs=$(((TARGET_EPOCHS + 1) / 2))
            if [ "$task" = yelp ]; then # the paper's limit
                examples=100000
                few=(--train-examples "$examples" --train-examples-seed 42)
            fi
            if [ -n "${SHOTS:-}" ]; then # an update is an epoch
                examples=$SHOTS epochs=$FEW_UPDATES batch=$SHOTS
                few=(--train-examples "$SHOTS" --train-examples-seed "$seed" --validate-interval 10)
            fi
            local which=(--target-task "$task")
            case " ${*:3} " in *" --pemt-stage source "*) which=(--source-task "$task") ;; esac # LoRA alone
            local subset=valid # for tasks without other labels
            { grep -q "^$task:" "$HALVES" || [[ $task =~ ^(scitail|paws)$ ]]; } && subset=test
            echo "== $1, seed $seed: $task"
            learn "$folder" "$task" "$examples" "$epochs" "$batch" 0 "${which[@]}" --task-table "$HALVES" --seed "$seed" \
                "${few[@]}" "${@:3}"
            fairseq-validate "$GLUE_DIR" --user-dir "$(mtmoe user-dir)" --task text_to_text "${which[@]}" \
                --max-source-positions "${POSITIONS[$task]:-256}" --path "$folder/checkpoint_best.pt" --batch-size 64 \
                --valid-subset "$subset" --results-path "$folder"
        done
    done
}

# Options of the compared systems: PEMT with one kind of sources, LoRA alone, and the whole T5
TARGET=(--arch "pemt_t5$SIZE" --criterion pemt --lr "$TARGET_LR")
LORA=("${TARGET[@]}" --pemt-stage source --no-prompt)
FULL=(--arch "t5$SIZE" --criterion cross_entropy --lr "${FULL_LR:-3e-4}")
