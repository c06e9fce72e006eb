"""The formulas of the Transformer, each once: attention, masks, positions, norms, feed-forward, blocks."""
