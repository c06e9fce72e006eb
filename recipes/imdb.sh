#!/usr/bin/env bash
# Film reviews: train.tsv.gz and test.tsv.gz (label, stars, text) of the Large Movie Review Dataset in one folder.
#
#     recipes/imdb.sh DATA [OUT]
#
# The encoder first reads the training reviews without their labels, 12 CPU-minutes; then it learns the labels. Nothing
# else than the training reviews is used. The lesson then runs the lecture's model and a linear one on the same reviews.
set -euo pipefail
data=${1:?usage: recipes/imdb.sh DATA [OUT]}
out=${2:-runs/imdb}

attendo train masked-language-model --train "$data/train.tsv.gz" --column 3 --out "$out-start" --cpu-minutes 12 \
    --set tokenizer.vocab_size=16000 --set model.positions=alibi --set model.n_encoder_layers=1 --set model.d_model=128 \
    --set model.n_heads=8 --set model.d_ff=256 --set model.max_len=512 --set model.dropout=0.0 \
    --set masking.share=0.3 --set training.learning_rate=0.003
attendo train classification --train "$data/train.tsv.gz" --columns label=1,text=3 --init-from "$out-start" \
    --out "$out" --epochs 2 --set data.valid_share=0.01 --set data.max_tokens=400 \
    --set data.token_dropout=0.3 --set model.dropout=0.4 --set training.learning_rate=0.0007
attendo evaluate "$out" "$data/test.tsv.gz"
attendo lesson imdb --train "$data/train.tsv.gz" --train "$data/test.tsv.gz"
