#!/usr/bin/env bash
# Every lesson that needs no data, one after the other; what each prints is kept in OUT.
#
#     recipes/lessons.sh [OUT]
#
# Ends in about 27 CPU-minutes. The figures are in the tables: the weather's losses and accuracies beside their limits, exact matches of
# the ladder and the toys, perplexities of the words, differences of the ablations.
set -euo pipefail
out=${1:-runs/lessons}

mkdir -p "$out"
for name in weather ladder copy reverse sort add words word2vec words-in-context ablate chat; do
    attendo lesson "$name" | tee "$out/$name.txt"
done
