#!/usr/bin/env bash
# Train a low-resource language with and without its relatives. DATA is a data directory of `mtmoe prepare`, such as that of
# ../translation/ml50. Trains a translator of all its pairs, then source adapters of some pairs, then targets for LOW.
set -euo pipefail
DATA=${DATA:?must be a data directory of mtmoe prepare}
RUNS=${RUNS:-runs/pemt}/languages
LOW=${LOW:-gl}
RELATIVES=${RELATIVES:-es,pt}
OTHERS=${OTHERS:-fi,tr}
SIZE=${SIZE-_wmt15} # size of the translator; empty: fairseq's default or the options'
UPDATES=${UPDATES:-100000}
SOURCE_UPDATES=${SOURCE_UPDATES:-5000}
TARGET_UPDATES=${TARGET_UPDATES:-1000}

# pair LANGUAGE: print the pair of English and LANGUAGE; DATA may have mBART's codes (en_XX-gl_ES).
pair() {
    tr , '\n' <"$DATA/lang_pairs.txt" | grep -m 1 -xE "en(_[A-Z]+)?-$1(_[A-Z]+)?" && return
    echo "\`$DATA\` must have a pair of English and $1, but has $(cat "$DATA/lang_pairs.txt")." >&2
    return 1
}

declare -A PAIRS
for language in $LOW ${RELATIVES//,/ } ${OTHERS//,/ }; do PAIRS[$language]=$(pair "$language"); done

# learn FOLDER ARCH PAIRS UPDATES VALIDATIONS [options]: keep the best checkpoint of this number of validations.
learn() {
    [ -e "$1/finished" ] && return
    local interval=$(($4 > $5 ? $4 / $5 : 1))
    echo "== ${1##*/}"
    fairseq-train "$DATA" --user-dir "$(mtmoe user-dir)" --save-dir "$1" --task translation_heated --arch "$2" \
        --lang-dict "$DATA/langs.txt" --lang-pairs "$3" --encoder-langtok tgt --decoder-langtok \
        --lang-tok-style "$(cat "$DATA/lang_tok_style.txt" 2>/dev/null || echo multilingual)" \
        --sampling-method temperature --sampling-temperature 1.5 --label-smoothing 0.1 --optimizer fused_adam \
        --adam-betas '(0.9,0.98)' --clip-norm 1 --lr 0.0007 --lr-scheduler inverse_sqrt --warmup-updates "$((($4 + 24) / 25))" \
        --max-update "$4" --max-tokens 8192 --validate-interval-updates "$interval" \
        --save-interval-updates "$interval" --keep-interval-updates 1 --no-epoch-checkpoints --log-format rich \
        --log-interval 20 "${@:6}"
    touch "$1/finished"
}

borrowed() {
    local language files=()
    for language in ${1//,/ }; do files+=("$RUNS/source_$language/${PAIRS[$language]}.pt"); done
    (IFS=, && echo "${files[*]}")
}

low() { # NAME ARCH [options]
    learn "$RUNS/$1" "$2" "${PAIRS[$LOW]}" "$TARGET_UPDATES" 10 --finetune-from-model "$RUNS/translator/checkpoint_best.pt" "${@:3}"
    mtmoe evaluate "$DATA" --path "$RUNS/$1/checkpoint_best.pt"
}

learn "$RUNS/translator" "base_dense$SIZE" "$DATA/lang_pairs.txt" "$UPDATES" 20 \
    --criterion label_smoothed_cross_entropy "$@"
PEMT=(--criterion pemt --adapter-rank 32 --adapter-alpha 32)
for language in ${RELATIVES//,/ } ${OTHERS//,/ }; do
    learn "$RUNS/source_$language" "pemt_translation$SIZE" "${PAIRS[$language]}" "$SOURCE_UPDATES" 10 \
        --finetune-from-model "$RUNS/translator/checkpoint_best.pt" --pemt-stage source "${PEMT[@]}" "$@"
done
low full "base_dense$SIZE" --criterion label_smoothed_cross_entropy "$@"
low lora "pemt_translation$SIZE" --pemt-stage source --no-prompt "${PEMT[@]}" "$@"
low relatives "pemt_translation$SIZE" --pemt-sources "$(borrowed "$RELATIVES")" "${PEMT[@]}" "$@"
low others "pemt_translation$SIZE" --pemt-sources "$(borrowed "$OTHERS")" "${PEMT[@]}" "$@"
low all "pemt_translation$SIZE" --pemt-sources "$(borrowed "$RELATIVES,$OTHERS")" "${PEMT[@]}" "$@"
mtmoe report "$RUNS/all" --png "$RUNS/all/plots"
