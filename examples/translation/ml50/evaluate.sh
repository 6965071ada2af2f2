#!/usr/bin/env bash
# Translate and score every test set with the best checkpoint, then draw what training logged.
set -euo pipefail
MODEL=${RUNS:-runs}/ml50/model
mtmoe evaluate "${RUNS:-runs}/ml50/data/shard0" --path "$MODEL/checkpoint_best.pt" "$@"
mtmoe plot "$MODEL"
