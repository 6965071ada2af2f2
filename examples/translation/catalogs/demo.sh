#!/usr/bin/env bash
# From installed packages to a scored sparse translator. Interrupted and started again, each step continues.
set -euo pipefail
HERE=$(dirname "$0")
bash "$HERE/prepare.sh"
bash "$HERE/train.sh"
bash "$HERE/evaluate.sh"
