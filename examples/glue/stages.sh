# The paper's two stages (§4.5, appendix A.3) for the scripts beside it, which begin with `source stages.sh`:
#   mixture SYSTEM ARCH TASKS [options]   stage 1: train the tasks together, for each seed
#   tuned SYSTEM ARCH TASKS [options]     stage 2: fine-tune each task from the mixture of SYSTEM or of FROM
#   single SYSTEM TASKS [options]         train each task from the pretrained encoder
#   compare TASKS SYSTEM…                 print the systems' scores side by side
# Scripts share their runs, skip finished ones, and continue interrupted ones.
set -euo pipefail
# Hide warnings from the imports of fairscale and fairseq, which come before the plugin can filter them
export PYTHONWARNINGS=ignore::FutureWarning:fairscale.experimental.nn.offload LOGLEVEL=${LOGLEVEL:-WARNING}
GLUE_DIR=${GLUE_DIR:?must be the folder with the unpacked files of GLUE}
ENCODER=${ENCODER:?must be a file of mtmoe import-hf}
RUNS=${RUNS:-runs/glue}/$(basename "$ENCODER" .pt)
SEEDS=${SEEDS:-1 2 3}
UPDATES=${UPDATES:-30000} # of stage 1; maximum for stage 2
EPOCHS=${EPOCHS:-10}      # of stage 2
TABLE=${TABLE-$(dirname "${BASH_SOURCE[0]}")/paper.yaml} # additional task table; empty: none
TASKS=${TASKS:-rte,mrpc,stsb,cola,sst2,qnli,qqp,mnli}
# Number of training examples per task, for the length of stage 2
declare -A EXAMPLES=(
    [rte]=2490 [mrpc]=3668 [stsb]=5749 [cola]=8551 [sst2]=67349 [qnli]=104743 [qqp]=363846 [mnli]=392702 [cb]=250
    [copa]=400 [wic]=5428 [rotten_tomatoes]=8530 [boolq]=9427 [multirc]=27243 [imdb]=25000 [yelp]=560000
    [scitail]=23596 [sick]=4500
)

# known VARIABLE TASK…: check that each task's number of examples is known, before any training.
known() {
    local task
    for task in "${@:2}"; do
        [ -n "${EXAMPLES[$task]:-}" ] && continue
        echo "\`$1\` must be some of $(printf '%s\n' "${!EXAMPLES[@]}" | sort | xargs | sed 's/ /, /g'), but has $task:" \
            "add its number of training examples to EXAMPLES in this script." >&2
        exit 1
    done
}

# train FOLDER ARCH TASKS BATCH UPDATES [options]
train() {
    fairseq-train "$GLUE_DIR" --user-dir "$(mtmoe user-dir)" --save-dir "$1" --task glue --arch "$2" --glue-tasks "$3" \
        ${TABLE:+--task-table "$TABLE"} \
        --criterion multitask --batch-size "$4" --optimizer fused_adam --adam-betas '(0.9,0.999)' --clip-norm 1 \
        --lr "${LR:-5e-5}" --lr-scheduler polynomial_decay --max-update "$5" --total-num-update "$5" \
        --warmup-updates "$(($5 / 10))" --best-checkpoint-metric all --maximize-best-checkpoint-metric \
        --no-epoch-checkpoints --log-format rich --log-interval 20 "${@:6}"
}

mixture() {
    for seed in $SEEDS; do
        local folder=$RUNS/$1-$seed/mixture
        [ -e "$folder/finished" ] && continue
        echo "== $1, seed $seed: $3"
        train "$folder" "$2" "$3" 128 "$UPDATES" --seed "$seed" --init-encoder "$ENCODER" "${@:4}"
        touch "$folder/finished"
    done
}

# tune FOLDER ARCH TASK [options]: keep the best epoch's checkpoint, and write its scores.
tune() {
    local updates
    updates=$(awk "BEGIN { n = ${EXAMPLES[$3]} * ${SHARE:-1} * $EPOCHS / 32 + 1; print int(n < $UPDATES ? n : $UPDATES) }")
    train "$1" "$2" "$3" 32 "$updates" --no-last-checkpoints --no-save-optimizer-state "${@:4}"
    fairseq-validate "$GLUE_DIR" --user-dir "$(mtmoe user-dir)" --task glue --path "$1/checkpoint_best.pt" --batch-size 128 \
        --results-path "$1"
}

tuned() {
    for seed in $SEEDS; do
        for task in ${3//,/ }; do
            local folder=$RUNS/$1-$seed/$task
            [ -e "$folder/scores.json" ] && continue
            echo "== $1, seed $seed: $task"
            tune "$folder" "$2" "$task" --seed "$seed" \
                --finetune-from-model "$RUNS/${FROM:-$1}-$seed/mixture/checkpoint_last.pt" "${@:4}"
        done
    done
}

single() {
    for seed in $SEEDS; do
        for task in ${2//,/ }; do
            local folder=$RUNS/$1-$seed/$task
            [ -e "$folder/scores.json" ] && continue
            echo "== $1, seed $seed: $task"
            tune "$folder" mt_dense "$task" --seed "$seed" --init-encoder "$ENCODER" "${@:3}"
        done
    done
}

compare() {
    local system seed task systems=()
    for system in "${@:2}"; do
        local folders=()
        for seed in $SEEDS; do
            for task in ${1//,/ }; do folders+=("$RUNS/$system-$seed/$task"); done
        done
        systems+=("$system=$(IFS=, && echo "${folders[*]}")")
    done
    mtmoe compare "${systems[@]}"
}
