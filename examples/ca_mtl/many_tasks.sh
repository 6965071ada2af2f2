#!/usr/bin/env bash
# Table 4 and figure 7: MTL and CA-MTL on 9 tasks (GLUE), 15 (with MRQA) and 24 (with SuperGLUE and WNUT-17). The paper's
# encoders are BERT large and RoBERTa large: set ARCH=ca_mtl_large. `SETS="9 15" bash many_tasks.sh` trains some mixtures.
# ReCoRD's examples are large: pass `--max-tokens` to limit batches, see README.md.
UPDATES=${UPDATES:-200000}
source "$(dirname "$0")/runs.sh"
declare -A MIXTURES=([9]=glue [15]=glue,mrqa [24]=glue,mrqa,superglue,superglue_rte,wnut17)
for number in ${SETS:-9 15 24}; do
    for system in mtl ca_mtl; do
        kind=(--conditional none --sampling-method uniform)
        [ "$system" = ca_mtl ] && kind=(--conditional "$PARTS" --sampling-method uncertainty)
        together "${system}_$number" "${MIXTURES[$number]}" "${kind[@]}" --max-positions 256 --conditional-positions 256 "$@"
    done
    compare "${MIXTURES[$number]}" "mtl_$number" "ca_mtl_$number"
done
