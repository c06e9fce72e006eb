#!/usr/bin/env bash
# English to German on Multi30k, with the reference configuration of Wu et al. 2021 (fairseq's transformer_tiny), which
# has 41.02 BLEU4 on the lower-cased tokenized test_2016.
#
#     recipes/multi30k.sh DATA [OUT [SEED...]]
#
# DATA: train.tsv, val.tsv, test_2016_flickr.tsv (en, de; raw), and the same lower-cased and Moses-tokenized in tok_lc/.
# OUT: runs/multi30k unless given; SEED: 1 2 3 unless given. Each seed gives two models: one of the lower-cased tokenized
# text, scored on it as it is (BLEU4, comparable with the reference), and one of the raw text, scored by sacreBLEU (which
# is not). Run it again and runs that were stopped go on; those that have ended are scored again.
#
# Where there is a GPU: 8,000 updates. Without one: 80 CPU-minutes a model on one thread, less far than the reference
# went, with the curve to look at. CPU_MINUTES=M asks for M in any case; TEXTS="tok_lc" leaves out the raw text.
set -euo pipefail
data=${1:?usage: recipes/multi30k.sh DATA [OUT [SEED...]]}
out=${2:-runs/multi30k}
shift $(($# < 2 ? $# : 2))
seeds=("${@:-1}")
[ $# -gt 0 ] || seeds=(1 2 3)

if [ -n "${CPU_MINUTES:-}" ]; then
    end=(--cpu-minutes "$CPU_MINUTES")
elif nvidia-smi -L >/dev/null 2>&1; then
    end=(--steps 8000)
else
    end=(--cpu-minutes 80)
fi

# The rate rises to 0.005 at update 2,000 and falls with the square root: noam, times 0.005 · √(128 · 2000) = 2.53.
# A checkpoint an epoch; the mean of the last ten counts if it is the best on val, as it mostly is.
settings=()
for setting in \
    tokenizer.kind=bpe tokenizer.vocab_size=10000 \
    model.n_encoder_layers=4 model.n_decoder_layers=4 model.d_model=128 model.d_ff=256 model.n_heads=4 \
    model.dropout=0.3 model.tie=all \
    training.schedule=noam training.learning_rate=2.53 training.warmup_steps=2000 \
    training.batch_tokens=4096 training.accumulation=2 training.label_smoothing=0.1 \
    training.clip_norm=25 training.weight_decay=0 training.precision=float32 \
    training.evaluate_every=240 training.evaluate_rows=1014 training.average_last=10 \
    checkpoint.every_steps=60 checkpoint.keep_last=10 \
    decoding.beam=5 decoding.length_penalty=1 decoding.length_norm=plain; do
    settings+=(--set "$setting")
done

# $1: the run's folder; $2: the folder of its texts; $3: the seed
trained() {
    if compgen -G "$1/checkpoints/step-*" >/dev/null; then
        attendo resume "$1" --threads "${THREADS:-1}"
    else
        attendo train translation --train "$2/train.tsv" --valid "$2/val.tsv" --from en --to de --out "$1" \
            --seed "$3" --threads "${THREADS:-1}" "${end[@]}" "${settings[@]}"
    fi
}

declare -A folder=([tok_lc]="$data/tok_lc" [raw]="$data") tokenize=([tok_lc]=none [raw]=13a)
for text in ${TEXTS:-tok_lc raw}; do
    for seed in "${seeds[@]}"; do
        run=$out/$text-$seed
        trained "$run" "${folder[$text]}" "$seed"
        attendo evaluate "$run" "${folder[$text]}/test_2016_flickr.tsv" --tokenize "${tokenize[$text]}" --json \
            >"$run/test_2016.json"
        echo "$run: the curve, chrF and BLEU on val by update"
        python3 - "$run/metrics.jsonl" <<'END'
import json, sys
for line in map(json.loads, open(sys.argv[1], encoding="utf-8")):
    if line["kind"] == "evaluation":
        print(f"{line['step']:>7,}  {line['cpu_seconds'] / 60:6.1f} CPU-min  chrF {line['chrf']:.2f}  BLEU {line['bleu']:.2f}  {line['note']}")
END
    done
    python3 - "$text" "$out/$text"-*/test_2016.json <<'END'
import json, statistics, sys
scores = [json.load(open(path))["bleu"] for path in sys.argv[2:]]
spread = f" ± {statistics.stdev(scores):.2f}" if len(scores) > 1 else ""
print(f"{sys.argv[1]}: BLEU {statistics.mean(scores):.2f}{spread} on test_2016, {len(scores)} seeds: {scores}")
END
done
