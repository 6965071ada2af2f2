#!/usr/bin/env bash
# From installed packages to a scored sparse translator, on the CPU. Interrupted and started again, each step continues.
set -euo pipefail
HERE=$(dirname "$0")
bash "$HERE/prepare.sh"
bash "$HERE/train.sh" --cpu
bash "$HERE/evaluate.sh" --cpu
