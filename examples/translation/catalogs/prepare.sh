#!/usr/bin/env bash
# Read translations in pycountry, Django and Sphinx. A second run does nothing.
# Set DATA for another folder than the demo's, and RECIPE for other languages.
set -euo pipefail
PACKAGES=$(python -c 'from pathlib import Path; import pycountry; print(Path(pycountry.__file__).parents[1])')
mtmoe prepare corpora "$PACKAGES" "${DATA:-${RUNS:-runs}/catalogs/data}" --recipe "${RECIPE:-$(dirname "$0")/demo.yaml}" "$@"
