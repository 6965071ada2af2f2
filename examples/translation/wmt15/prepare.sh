#!/usr/bin/env bash
# Make shards of the recipe's corpora in the folder RAW, into which `mtmoe download RAW --recipe wmt15` downloads them.
set -euo pipefail
RAW=${1:?usage: prepare.sh RAW [options of mtmoe prepare corpora]}
mtmoe prepare corpora "$RAW" "${RUNS:-runs}/wmt15/data" --recipe wmt15 "${@:2}"
