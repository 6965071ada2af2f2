# CA-MTL's settings (appendix A.5) for the scripts beside it, which begin with `source runs.sh`. From ../glue/stages.sh come
# `train`, `tune` and `single SYSTEM TASKS [options]` (one model per task). This file adds:
#   together SYSTEM TASKS [options]   train and score one model for all tasks, for each seed
#   compare TASKS SYSTEM…             print the systems' scores side by side
# Scripts share their runs, skip finished ones, and continue interrupted ones.
set -euo pipefail
RUNS=${RUNS:-runs/ca_mtl}
SEEDS=${SEEDS:-12}
UPDATES=${UPDATES:-60000} # of a mixture; maximum for a single task
EPOCHS=${EPOCHS:-5}       # of a single task
LR=${LR:-2e-5}
TASKS=${TASKS:-cola,sst2,mrpc,stsb,qqp,mnli,qnli,rte}
ARCH=${ARCH:-ca_mtl_base}
TABLE= # the rows of `../glue/paper.yaml` are MT-TaG's
source "$(dirname "$0")/../glue/stages.sh"
PARTS=attention,bottleneck,alignment,norm # all of CA-MTL's
PLAIN=(--arch "$ARCH" --conditional none --freeze-layers 0)

together() {
    for seed in $SEEDS; do
        local folder=$RUNS/$1-$seed
        [ -e "$folder/scores.json" ] && continue
        echo "== $1, seed $seed: $2"
        train "$folder" "$ARCH" "$2" 32 "$UPDATES" --seed "$seed" --init-encoder "$ENCODER" \
            --virtual-epoch-size "$((UPDATES * 32 / 10 + 1))" "${@:3}"
        fairseq-validate "$GLUE_DIR" --user-dir "$(mtmoe user-dir)" --task glue --path "$folder/checkpoint_best.pt" \
            --batch-size 128 --results-path "$folder"
    done
}

# folders SYSTEM TASKS: print the folders with its scores, of one model for all tasks or one per task.
folders() {
    local seed task found=()
    for seed in $SEEDS; do
        if [ -e "$RUNS/$1-$seed/scores.json" ]; then
            found+=("$RUNS/$1-$seed")
        else
            for task in ${2//,/ }; do found+=("$RUNS/$1-$seed/$task"); done
        fi
    done
    echo "${found[*]}"
}

compare() {
    local system systems=()
    for system in "${@:2}"; do
        systems+=("$system=$(tr ' ' , <<<"$(folders "$system" "$1")")")
    done
    mtmoe compare "${systems[@]}"
}
