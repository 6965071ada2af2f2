#!/usr/bin/env bash
# Make shards of the recipe's corpora in the folder RAW, into which `mtmoe download RAW --recipe ml50` downloads them.
# Many of ML-50's files must be fetched by hand; missing corpora are skipped.
set -euo pipefail
RAW=${1:?usage: prepare.sh RAW [options of mtmoe prepare corpora]}
mtmoe prepare corpora "$RAW" "${RUNS:-runs}/ml50/data" --recipe ml50 --skip-missing "${@:2}"
