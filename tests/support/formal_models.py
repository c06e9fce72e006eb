"""Random models of the three Transformers of Phuong & Hutter 2022, and random texts for them."""

import torch

from attendo.models import DecoderLM, MaskedLM
from attendo_course.algorithms import build_formal_ed, formal_d_config, formal_e_config, formal_ed_config

SIZES = {"N_V": 7, "ell_max": 6, "H": 2, "d_e": 6, "d_mlp": 5}


def randomized(theta):
    """Every parameter random: biases that are zero and norms that are one would hide a wrong place."""
    for parameter in theta.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return theta


def formal(algorithm, seed=0, **changes):
    """A random θ of A8, A9 or A10 whose widths all differ."""
    torch.manual_seed(seed)
    sizes = SIZES | {"d_attn": 2, "d_mid": 4}
    match algorithm:
        case "A8":
            return randomized(build_formal_ed(formal_ed_config(**(sizes | {"L_enc": 1, "L_dec": 2} | changes))))
        case "A9":
            return randomized(MaskedLM(formal_e_config(**(sizes | {"L": 2, "d_f": 3} | changes))))
        case _:
            return randomized(DecoderLM(formal_d_config(**(sizes | {"L": 2} | changes))))


def random_text(ell, N_V=7):
    return torch.randint(1, N_V + 1, (ell,)).tolist()
