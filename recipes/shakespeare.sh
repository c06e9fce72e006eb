#!/usr/bin/env bash
# Tiny Shakespeare by characters: train.txt and val.txt in one folder (the first 90 % of the text, and the rest).
#
#     recipes/shakespeare.sh DATA [OUT]
#     recipes/shakespeare.sh DATA OUT best    the best we found in 40 CPU-minutes: 4 layers of width 256
#
# nanoGPT's CPU setting: 4 layers, 4 heads, width 128, 64 characters of context, 12 windows a step, 2,000 steps, no
# dropout. Ends with nats a character over the whole validation text, in windows of 64 side by side.
set -euo pipefail
data=${1:?usage: recipes/shakespeare.sh DATA [OUT]}
out=${2:-runs/shakespeare}

if [ "${3:-}" = best ]; then
    attendo train language-model --train "$data/train.txt" --valid "$data/val.txt" --out "$out" --cpu-minutes 40 \
        --threads 1 --set tokenizer.kind=character --set model.max_len=128 --set model.d_model=256 \
        --set model.n_heads=8 --set model.n_decoder_layers=4 --set model.dropout=0.15 \
        --set training.batch_tokens=4096 --set training.learning_rate=0.002 --set training.evaluate_every=250
    attendo evaluate "$out" "$data/val.txt" --context 128 --stride 32
    exit
fi

attendo train language-model --train "$data/train.txt" --valid "$data/val.txt" --out "$out" --steps 2000 \
    --set tokenizer.kind=character --set model.max_len=64 --set model.d_model=128 --set model.n_heads=4 \
    --set model.n_decoder_layers=4 --set model.dropout=0.0 --set training.batch_tokens=768 \
    --set training.learning_rate=0.002 --set training.evaluate_every=500
attendo evaluate "$out" "$data/val.txt" --context 64 --stride 64
attendo generate "$out" "ROMEO:" --max-tokens 300 --seed 1
