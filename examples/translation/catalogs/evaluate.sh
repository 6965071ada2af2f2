#!/usr/bin/env bash
# Translate and score all test sets, draw the run log's figures, and write a page about the run.
set -euo pipefail
MODEL=${RUNS:-runs}/catalogs/model
mtmoe evaluate "${RUNS:-runs}/catalogs/data" --path "$MODEL/checkpoint_best.pt" --overwrite "$@"
mtmoe report "$MODEL" --png "$MODEL/plots"
mtmoe report "$MODEL" "$MODEL/report.html" --overwrite
