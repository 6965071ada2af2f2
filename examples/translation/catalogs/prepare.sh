#!/usr/bin/env bash
# Harvest the demo's languages from the catalogs of pycountry, Django and Sphinx. A second run does nothing.
set -euo pipefail
LANGS=uk,hi,zh_Hans,fr,hu,pl,de,ru,tr,pt_BR,es,cs,fi,cy
mtmoe prepare catalogs "${RUNS:-runs}/catalogs/data" --langs "$LANGS" --vocab-size 6000 "$@"
