#!/usr/bin/env bash
# Translate and score every test set, then draw what training logged.
set -euo pipefail
MODEL=${RUNS:-runs}/catalogs/model
mtmoe evaluate "${RUNS:-runs}/catalogs/data" --path "$MODEL/checkpoint_best.pt" --overwrite "$@"
mtmoe plot "$MODEL"
