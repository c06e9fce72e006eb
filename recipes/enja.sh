#!/usr/bin/env bash
# English to Japanese on small_parallel_enja (50,000 pairs): train.tsv, dev.tsv and test.tsv in one folder.
#
#     recipes/enja.sh DATA [OUT]
#
# At most 3 CPU-hours (CPU_MINUTES changes that). Ends with BLEU on the test set as it is tokenized (tokenize=none).
set -euo pipefail
data=${1:?usage: recipes/enja.sh DATA [OUT]}
out=${2:-runs/enja-recipe}

attendo train translation --train "$data/train.tsv" --valid "$data/dev.tsv" --from en --to ja --out "$out" \
    --cpu-minutes "${CPU_MINUTES:-150}" \
    --set model.d_model=256 --set model.dropout=0.3 \
    --set training.average_last=5 --set checkpoint.keep_last=5
attendo evaluate "$out" "$data/test.tsv" --tokenize none --beam 6 --length-penalty 1.0
