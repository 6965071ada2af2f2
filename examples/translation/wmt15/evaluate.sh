#!/usr/bin/env bash
# Translate and score every test set with the best checkpoint, then draw what training logged.
set -euo pipefail
MODEL=${RUNS:-runs}/wmt15/model
mtmoe evaluate "${RUNS:-runs}/wmt15/data" --path "$MODEL/checkpoint_best.pt" "$@"
mtmoe plot "$MODEL"
