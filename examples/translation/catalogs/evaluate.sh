#!/usr/bin/env bash
# Translate and score all test sets, write a page about the run, and show a sentence of each language.
set -euo pipefail
DATA=${DATA:-${RUNS:-runs}/catalogs/data} MODEL=${MODEL:-${RUNS:-runs}/catalogs/model}
mtmoe evaluate "$DATA" --path "$MODEL/checkpoint_best.pt" --overwrite "$@"
mtmoe report "$MODEL" --png "$MODEL/plots"
mtmoe report "$MODEL" "$MODEL/report.html" --overwrite

# The first test sentence of at least four words of each pair, at most five
for reference in $(find "$MODEL/scores/checkpoint_best-test" -name '*.ref' | sort | head -n 5); do
    pair=$(basename "$reference" .ref)
    paste "$DATA/raw/test.$pair.${pair%%-*}" "${reference%.ref}.hyp" "$reference" |
        awk -F '\t' -v pair="$pair" 'split($1, words, " ") > 3 && !shown++ {
            printf "\n%s  source       %s\n       translation  %s\n       reference    %s\n", pair, $1, $2, $3 }'
done
cat <<END

Report:     $MODEL/report.html
Translate:  mtmoe translate $MODEL/checkpoint_best.pt --web
Export:     mtmoe export-hf $MODEL/checkpoint_best.pt EXPORTED --to all
END
