#!/usr/bin/env bash
# Train in two processes, kill one, resume in one process, and evaluate the model. Uses the CPU, even on a machine with GPUs.
# After an interruption, run it again to continue.
set -euo pipefail
HERE=$(dirname "$0")
RUN=${RUNS:-runs}/distributed
MODEL=$RUN/model
UPDATES=${UPDATES:-600}

DATA=$RUN/data RECIPE=$HERE/../catalogs/four_languages.yaml bash "$HERE/../catalogs/prepare.sh"

if [ ! -e "$MODEL/checkpoint_last.pt" ]; then
    echo "== Train in two processes: each holds 4 of the 8 experts, and they exchange tokens."
    PORT=$((20000 + RANDOM % 20000))
    for rank in 0 1; do  # as `torchrun --nproc_per_node 2`, but with known process ids
        MASTER_ADDR=127.0.0.1 MASTER_PORT=$PORT WORLD_SIZE=2 RANK=$rank OMP_NUM_THREADS=1 \
            bash "$HERE/train.sh" --cpu --max-update "$UPDATES" &
        pids[rank]=$!
    done
    trap 'kill -9 "${pids[@]}" 2>/dev/null || true' EXIT
    until [ -e "$MODEL/checkpoint_last.pt" ]; do
        kill -0 "${pids[0]}" 2>/dev/null || { wait "${pids[0]}"; exit 1; }
        sleep 1
    done
    echo "== Kill process 1 (kill -9): process 0 reports it and ends."
    kill -9 "${pids[1]}"
    wait "${pids[0]}" || true
    trap - EXIT
    ls -R "$MODEL" | grep -v '\.log'
fi

echo "== Resume the checkpoint of two processes in one process."
bash "$HERE/train.sh" --cpu --max-update "$UPDATES"
mtmoe evaluate "$RUN/data" --path "$MODEL/checkpoint_last.pt" --beam 2 --cpu --overwrite "$@"
