"""Attention as a lookup: recipes by title, four vectors by hand, strings by edit distance."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from jaxtyping import Float
from torch import Tensor

from attendo.display.i18n import Language, Localized
from attendo.nn.attention import attention, attention_weights, masked_softmax
from attendo_course.book import passage, translated


@dataclass(frozen=True)
class Recipe:
    """An entry of a key-value store: the title is the key, and the text is the value."""

    title: Localized
    text: Localized


RECIPES = (
    Recipe(translated("Meat sauce lasagne"), passage("lookup.meat_sauce")),
    Recipe(translated("Spinach and ricotta lasagne"), passage("lookup.spinach")),
    Recipe(translated("Seafood lasagne"), passage("lookup.seafood")),
    Recipe(translated("Vegan mushroom lasagne"), passage("lookup.mushrooms")),
    Recipe(translated("Pumpkin soup"), passage("lookup.pumpkin")),
)
"""A small original collection of recipes."""


def pair_vectors(texts: Sequence[str]) -> Float[Tensor, "texts pairs"]:
    """Return each text as the counts of its pairs of neighboring characters, divided by the norm √Σcount².

    The dot product of two rows is 1 if the texts have the same pairs in the same proportions, and 0 if they share no
    pair. These vectors also work for languages without spaces between words. Case is ignored. A text of fewer than
    two characters is a row of zeros.

    >>> vectors = pair_vectors(["rain", "train", "雨"])
    >>> vectors @ vectors[0]
    tensor([1.0000, 0.8660, 0.0000], dtype=torch.float64)
    """
    counts = [Counter(a + b for a, b in pairwise(text.casefold())) for text in texts]
    pairs = sorted(set().union(*counts))
    rows = torch.tensor([[count[pair] for pair in pairs] for count in counts], dtype=torch.float64)
    return torch.nn.functional.normalize(rows.reshape(len(texts), len(pairs)), dim=-1)


def recipe_weights(
    question: str, language: Language = "en", inverse_temperature: float = 8.0
) -> Float[Tensor, " recipes"]:
    """Return the weight of each recipe for a question: softmax(β Kᵀq) over the titles (NYU lecture 12-3).

    The query and the keys are the `pair_vectors` of the question and of the titles. `inverse_temperature` is β. At 0,
    all weights are equal. At `math.inf`, the best recipe has weight 1. Raises ValueError for a negative β.

    >>> recipe_weights("a lasagne with spinach", inverse_temperature=0.0)
    tensor([0.2000, 0.2000, 0.2000, 0.2000, 0.2000], dtype=torch.float64)
    >>> recipe_weights("a lasagne with spinach", inverse_temperature=math.inf)
    tensor([0., 1., 0., 0., 0.], dtype=torch.float64)
    """
    titles = [recipe.title.text(language) for recipe in RECIPES]
    vectors = pair_vectors([question, *titles])
    return attention_weights(vectors[:1], vectors[1:], scale=1.0, inverse_temperature=inverse_temperature).squeeze(0)


def find_recipe(question: str, language: Language = "en") -> Recipe:
    """Return the recipe that hard attention selects (β = ∞).

    >>> find_recipe("do you have a soup of pumpkins?").title.en
    'Pumpkin soup'
    >>> find_recipe("魚介でラザニアを作りたい", "ja").title.ja
    '魚介のラザニア'
    """
    return RECIPES[int(recipe_weights(question, language, math.inf).argmax())]


def rank_recipes(
    question: str, language: Language = "en", inverse_temperature: float = 8.0
) -> list[tuple[float, Recipe]]:
    """Return all recipes as pairs (weight, recipe), with the highest weight first. The weights sum to 1.

    >>> for weight, recipe in rank_recipes("mushroom lasagne")[:2]:
    ...     print(f"{weight:.2f} {recipe.title.en}")
    0.86 Vegan mushroom lasagne
    0.08 Seafood lasagne
    """
    weights = recipe_weights(question, language, inverse_temperature).tolist()
    return sorted(zip(weights, RECIPES, strict=True), key=lambda found: -found[0])


KEYS = torch.tensor([[10.0, 0, 0], [0, 10, 0], [0, 0, 10], [0, 0, 10]], dtype=torch.float64)
VALUES = torch.tensor([[1.0, 0, 0], [10, 0, 0], [100, 5, 0], [1000, 6, 0]], dtype=torch.float64)
"""The values of the test in the NYU notebook. The last two of its keys are equal."""
HEAD_DIM = 64
"""The head width in the notebook (d_model 512, 8 heads). The test scales by 1/√64, but its keys have width 3."""


def retrieve(query: Sequence[float]) -> tuple[Float[Tensor, " value_dim"], Float[Tensor, " keys"]]:
    """Return the output and the weights of one query for `KEYS` and `VALUES`, as in the NYU notebook 15-transformer.

    >>> output, weights = retrieve([0, 0, 10])
    >>> [f"{x:.6g}" for x in output.tolist()], [f"{a:.1e}" for a in weights.tolist()]
    (['549.998', '5.49998', '0'], ['1.9e-06', '1.9e-06', '5.0e-01', '5.0e-01'])
    """
    row = torch.tensor([query], dtype=torch.float64)
    scale = HEAD_DIM**-0.5
    return attention(row, KEYS, VALUES, scale=scale)[0], attention_weights(row, KEYS, scale=scale)[0]


def levenshtein(first: str, second: str) -> int:
    """Return the minimum number of character insertions, deletions and replacements between two texts.

    The source is Levenshtein 1966. The time is O(len(first) · len(second)). A character is a code point.

    >>> levenshtein("kitten", "sitting"), levenshtein("迷えば、敗れる", "迷えば敗れる")
    (3, 1)
    """
    above = list(range(len(second) + 1))
    for i, a in enumerate(first, 1):
        row = [i]
        for j, b in enumerate(second, 1):
            row.append(min(above[j] + 1, row[j - 1] + 1, above[j - 1] + (a != b)))
        above = row
    return above[-1]


def edit_weights(
    queries: Sequence[str], keys: Sequence[str], inverse_temperature: float = 1.0
) -> Float[Tensor, "queries keys"]:
    """Return softmax(-β · Levenshtein distance) over the keys for each query: attention that tolerates misspellings.

    Raises ValueError for a negative β.

    >>> edit_weights(["rian"], ["rain", "snow"], inverse_temperature=2.0)
    tensor([[0.9820, 0.0180]], dtype=torch.float64)
    """
    distances = [[levenshtein(query, key) for key in keys] for query in queries]
    scores = -torch.tensor(distances, dtype=torch.float64).reshape(len(queries), len(keys))
    return masked_softmax(scores, inverse_temperature=inverse_temperature)


def soft_get(dictionary: Mapping[str, float], query: str, inverse_temperature: float = 1.0) -> float:
    """Return the mean of a dictionary's values, weighted by `edit_weights` of a query that need not be a key.

    At β = ∞, the result is the value of the nearest key (the first key in a tie). If the query is a key, the result
    is `dictionary[query]`.

    >>> prices = {"apple": 3.0, "pear": 5.0}
    >>> soft_get(prices, "appel", math.inf), soft_get(prices, "appel", 0.0), round(soft_get(prices, "appel"), 3)
    (3.0, 4.0, 3.238)
    """
    values = torch.tensor(list(dictionary.values()), dtype=torch.float64)
    return float(edit_weights([query], list(dictionary), inverse_temperature)[0] @ values)
