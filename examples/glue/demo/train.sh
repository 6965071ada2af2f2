#!/usr/bin/env bash
# Train a model on the demo's tasks into runs/glue/NAME: train.sh NAME [options]. A second call continues the run.
set -euo pipefail
# What fairscale and fairseq say while they are imported, before the plugin can filter it.
export PYTHONWARNINGS=ignore::FutureWarning:fairscale.experimental.nn.offload LOGLEVEL=${LOGLEVEL:-WARNING}
HERE=$(dirname "$0")
RUN=${RUNS:-runs}/glue
NAME=$1
shift
exec fairseq-train "$RUN/data" --user-dir "$(mtmoe user-dir)" --save-dir "$RUN/$NAME" \
    --task glue --task-table "$HERE/tasks.yaml" --glue-tasks docstrings --max-positions 64 \
    --sampling-method temperature --sampling-temperature 2 --virtual-epoch-size 1280 \
    --arch mt_tag_minilm --criterion multitask --batch-size 32 \
    --optimizer fused_adam --adam-betas '(0.9,0.999)' --clip-norm 1 \
    --lr 2e-4 --lr-scheduler polynomial_decay --warmup-updates 12 --total-num-update 120 --max-update 120 \
    --best-checkpoint-metric all --maximize-best-checkpoint-metric --no-epoch-checkpoints \
    --num-workers 0 --seed 1 --log-format rich --log-interval 10 "$@"
