#!/usr/bin/env bash
# Sentiment of sentences: train.tsv, dev.tsv and test.tsv (label, sentence) of SST-2 in one folder, three seeds, from scratch.
#
#     recipes/sst2.sh DATA [OUT]
#
# The sentences are tokenized already, so words are the tokens. About 30 CPU-seconds a seed.
set -euo pipefail
data=${1:?usage: recipes/sst2.sh DATA [OUT]}
out=${2:-runs/sst2}

for seed in 1 2 3; do
    attendo train classification --train "$data/train.tsv" --valid "$data/dev.tsv" --out "$out-$seed" --seed "$seed" \
        --epochs 5 --set tokenizer.kind=word --set tokenizer.min_count=2 --set model.positions=alibi \
        --set model.n_encoder_layers=1 --set model.d_model=256 --set model.n_heads=8 --set model.d_ff=512 \
        --set model.dropout=0.4 --set training.batch_tokens=1024
    attendo evaluate "$out-$seed" "$data/test.tsv"
done
