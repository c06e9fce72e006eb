#!/usr/bin/env bash
# Sentiment of sentences: train.tsv, dev.tsv and test.tsv (label, sentence) of SST-2 in one folder, three seeds.
#
#     recipes/sst2.sh DATA [OUT]               from scratch, about 30 CPU-seconds a seed
#     recipes/sst2.sh DATA OUT REVIEWS.tsv.gz  after 58 CPU-minutes of reading film reviews (their last column, no labels)
#
# The sentences are tokenized already, so from scratch words between spaces are the tokens.
set -euo pipefail
data=${1:?usage: recipes/sst2.sh DATA [OUT [REVIEWS.tsv.gz]]}
out=${2:-runs/sst2}
reviews=${3:-}

if [ -n "$reviews" ]; then
    attendo train masked-language-model --train "$reviews" --column 3 --out "$out-start" --cpu-minutes 58 --threads 1 \
        --set model.d_model=192 --set model.n_heads=6 --set model.d_ff=512 --set model.n_encoder_layers=2 \
        --set model.positions=alibi --set model.max_len=320 --set model.dropout=0.0 --set masking.share=0.3 \
        --set training.batch_tokens=4096 --set training.learning_rate=0.002 --set training.evaluate_every=1000
    settings="--init-from $out-start --set model.dropout=0.4 --set training.learning_rate=0.001"
else
    settings="--set tokenizer.kind=word --set tokenizer.min_count=2 --set model.positions=alibi
        --set model.n_encoder_layers=1 --set model.d_model=256 --set model.n_heads=8 --set model.d_ff=512
        --set model.dropout=0.4 --set model.norm=layer --set model.activation=gelu --set model.attention_bias=true
        --set model.feed_forward_gated=false --set model.feed_forward_bias=true"
fi
for seed in 1 2 3; do
    # shellcheck disable=SC2086
    attendo train classification --train "$data/train.tsv" --valid "$data/dev.tsv" --out "$out-$seed" --seed "$seed" \
        --epochs 5 --set training.batch_tokens=1024 $settings
    attendo evaluate "$out-$seed" "$data/test.tsv"
done
