"""A decoder small enough to be run position by position."""

import torch

from attendo.models import DecoderLM, ModelConfig


def tiny_decoder(vocab_size: int = 20, max_len: int = 64, dropout: float = 0.0, seed: int = 0) -> DecoderLM:
    """One layer, 8 wide, with learned positions that matter."""
    torch.manual_seed(seed)
    config = ModelConfig(
        architecture="decoder",
        vocab_size=vocab_size,
        d_model=8,
        d_ff=16,
        n_heads=2,
        n_encoder_layers=0,
        n_decoder_layers=1,
        max_len=max_len,
        positions="learned",
        tie="none",
        dropout=dropout,
    )
    model = DecoderLM(config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.7)
    return model
