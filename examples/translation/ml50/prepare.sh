#!/usr/bin/env bash
# Make shards of the recipe's corpora, which `mtmoe download ml50 RAW` brings to the folder that is given first.
# Much of ML-50 is got by hand: what is not there is left out.
set -euo pipefail
RAW=${1:?usage: prepare.sh RAW [options of mtmoe prepare corpora]}
mtmoe prepare corpora "$RAW" "${RUNS:-runs}/ml50/data" --recipe ml50 --skip-missing "${@:2}"
