#!/usr/bin/env bash
# Train and score a translator on the catalogs of installed packages, on the CPU. Run it again to continue.
set -euo pipefail
HERE=$(dirname "$0")
bash "$HERE/prepare.sh"
bash "$HERE/train.sh" --cpu
bash "$HERE/evaluate.sh" --cpu
