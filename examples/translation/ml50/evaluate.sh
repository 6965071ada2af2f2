#!/usr/bin/env bash
# Translate and score all test sets with the best checkpoint, then draw the run log's figures.
set -euo pipefail
DATA=${DATA:-${RUNS:-runs}/ml50/data}
MODEL=${RUNS:-runs}/ml50/model
mtmoe evaluate "$DATA" --path "$MODEL/checkpoint_best.pt" "$@"
mtmoe report "$MODEL" --png "$MODEL/plots"
