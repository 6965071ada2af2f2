#!/usr/bin/env bash
# Make four shards from the folder of plain text that is given first.
set -euo pipefail
RAW=${1:?usage: prepare.sh RAW [options of mtmoe prepare text]}
mtmoe prepare text "$RAW" "${RUNS:-runs}/ml50/data" --shards 4 --vocab-size 64000 "${@:2}"
