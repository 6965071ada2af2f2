#!/usr/bin/env bash
# Make a data directory from the folder of plain text that is given first.
set -euo pipefail
RAW=${1:?usage: prepare.sh RAW [options of mtmoe prepare text]}
mtmoe prepare text "$RAW" "${RUNS:-runs}/wmt15/data" --tiers "$(dirname "$0")/tiers.json" --vocab-size 32000 "${@:2}"
