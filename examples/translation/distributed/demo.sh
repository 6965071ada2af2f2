#!/usr/bin/env bash
# Two processes train, one is killed, one goes on alone, and its model is evaluated. Computes on the CPU, also where there are GPUs.
# Interrupted and started again, it goes on.
set -euo pipefail
HERE=$(dirname "$0")
RUN=${RUNS:-runs}/distributed
MODEL=$RUN/model
UPDATES=${UPDATES:-600}

mtmoe prepare catalogs "$RUN/data" --langs fr,de,es,cs --vocab-size 4000

if [ ! -e "$MODEL/checkpoint_last.pt" ]; then
    echo "== Two processes train: each holds 4 of the 8 experts, and they exchange tokens."
    PORT=$((20000 + RANDOM % 20000))
    for rank in 0 1; do  # what `torchrun --nproc_per_node 2` does, but with the processes' numbers at hand
        MASTER_ADDR=127.0.0.1 MASTER_PORT=$PORT WORLD_SIZE=2 RANK=$rank OMP_NUM_THREADS=1 \
            bash "$HERE/train.sh" --cpu --max-update "$UPDATES" &
        pids[rank]=$!
    done
    trap 'kill -9 "${pids[@]}" 2>/dev/null || true' EXIT
    until [ -e "$MODEL/checkpoint_last.pt" ]; do
        kill -0 "${pids[0]}" 2>/dev/null || { wait "${pids[0]}"; exit 1; }
        sleep 1
    done
    echo "== Process 1 is killed (kill -9); process 0 says so and ends."
    kill -9 "${pids[1]}"
    wait "${pids[0]}" || true
    trap - EXIT
    ls -R "$MODEL" | grep -v '\.log'
fi

echo "== One process goes on from the checkpoint of two."
bash "$HERE/train.sh" --cpu --max-update "$UPDATES"
mtmoe evaluate "$RUN/data" --path "$MODEL/checkpoint_last.pt" --beam 2 --cpu --overwrite "$@"
