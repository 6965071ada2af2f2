#!/usr/bin/env bash
# Prepare 14 languages, train dense and then sparse, and score, on the CPU. Run it again to continue.
set -euo pipefail
HERE=$(dirname "$0")
export DATA=${RUNS:-runs}/base/data MODEL=${RUNS:-runs}/base/model
RECIPE=catalogs bash "$HERE/../catalogs/prepare.sh"
bash "$HERE/train.sh" --cpu "$@"
bash "$HERE/../catalogs/evaluate.sh" --cpu
