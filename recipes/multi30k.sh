#!/usr/bin/env bash
# English to German on Multi30k, raw text: train.tsv, val.tsv and test_2016_flickr.tsv in one folder.
#
#     recipes/multi30k.sh DATA [OUT]
#
# 40 CPU-minutes (CPU_MINUTES changes that); everything else is chosen automatically. Ends with BLEU on test_2016.
set -euo pipefail
data=${1:?usage: recipes/multi30k.sh DATA [OUT]}
out=${2:-runs/multi30k}

attendo train translation --train "$data/train.tsv" --valid "$data/val.tsv" --from en --to de --out "$out" \
    --cpu-minutes "${CPU_MINUTES:-40}"
attendo evaluate "$out" "$data/test_2016_flickr.tsv"
