#!/usr/bin/env bash
# English to Japanese on small_parallel_enja (50,000 pairs): train.tsv, dev.tsv and test.tsv in one folder.
#
#     recipes/enja.sh DATA [OUT]
#
# 40 CPU-minutes (CPU_MINUTES changes that); everything else is chosen automatically. Ends with BLEU on the test set as
# it is tokenized (tokenize=none): 40.7 on a processor with bfloat16 instructions. A slower one may want 120 minutes.
set -euo pipefail
data=${1:?usage: recipes/enja.sh DATA [OUT]}
out=${2:-runs/enja}

attendo train translation --train "$data/train.tsv" --valid "$data/dev.tsv" --from en --to ja --out "$out" \
    --cpu-minutes "${CPU_MINUTES:-40}"
attendo evaluate "$out" "$data/test.tsv" --tokenize none --beam 6 --length-penalty 1.0
