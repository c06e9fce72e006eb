"""Words in context: what a hidden state knows of a word that the word alone does not tell."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from jaxtyping import Float

from attendo.data.tokenizers import Tokenizer
from attendo.display.charts import Picture
from attendo.display.i18n import Localized
from attendo.inference.translator import Translator
from attendo.inspecting.recording import recording
from attendo.models import EncoderDecoder, MaskedLM
from attendo_course.lessons.arrays import Training, curve, mean_and_deviation
from attendo_course.lessons.contexts_measures import (
    NEIGHBORS,
    Material,
    Measures,
    masked_measures,
    neighbors,
    shown_sentence,
    translator_measures,
)
from attendo_course.lessons.contexts_models import (
    N_LAYERS,
    STATIC,
    english,
    masked_model,
    new_masked_model,
    new_translator,
    translator,
)
from attendo_course.lessons.contexts_words import AMBIGUOUS, KINDS, Noun, Sentence
from attendo_course.lessons.lesson import Cell, Conclusion, Lesson, Options, Piece, Table

SEEDS = 3
MASKED_STEPS, TRANSLATOR_STEPS = 1500, 500
LAYER = Localized("layer", "層")
KIND = Localized("kind", "種類")
ENCODER_END, DECODER_END = f"encoder {N_LAYERS}", f"decoder {N_LAYERS}"


def teach(options: Options) -> Iterator[Piece]:
    """A masked model's vectors of ambiguous nouns; then a translator's, in encoder and decoder."""
    material, seeds = Material.drawn(), range(1, 1 + (options.seeds or SEEDS))
    tokens = material.tokens
    yield Localized(
        f"The corpus: {len(AMBIGUOUS)} nouns are an animal or a thing (a bat is コウモリ or バット), and other words"
        " of the sentence, the cues, tell which. A probe is a linear map from a vector to a label, fitted to sentences"
        " with some of the cues and tested on sentences with others, in clauses that no model was trained on. By"
        " chance it is right about the kind half of the time.",
        f"コーパスでは {len(AMBIGUOUS)} 個の名詞が動物と物のどちらにもなり（bat はコウモリかバット）、どちらであるかは"
        "文中の別の語（手掛かり）からわかる。プローブはベクトルからラベルへの線形写像で、一部の手掛かりをもつ文に当て"
        "はめ、別の手掛かりをもつ文で試す。試験の節は、どのモデルの学習にも使っていない。種類を当て推量で答えれば、"
        "正答率は半分である。",
    )
    masked = [masked_model(tokens, material.held_out, options.steps(MASKED_STEPS), seed) for seed in seeds]
    yield from in_context(masked, [new_masked_model(tokens, seed) for seed in seeds], material)
    translators = [
        translator(tokens, material.held_out, options.steps(TRANSLATOR_STEPS), seed) for seed in seeds
    ]
    yield from in_translation(translators, [new_translator(tokens, seed) for seed in seeds], material)


def in_context(
    runs: Sequence[Training], untrained: Sequence[MaskedLM], material: Material
) -> Iterator[Piece]:
    """What a model of hidden words, which has never seen a translation, makes of an ambiguous noun."""
    models = [run.model for run in runs if isinstance(run.model, MaskedLM)]
    yield _curve("masked", Localized("Masked model: training loss", "マスク言語モデル：学習時の損失"), runs)
    columns = (
        LAYER,
        Localized("one meaning", "同じ意味"),
        Localized("two", "別の意味"),
        KIND,
        Localized("new noun", "未知の名詞"),
        Localized("neighbors", "近傍"),
    )
    yield Localized(
        "The table has the cosine of an ambiguous noun's vectors in two sentences, of one meaning and of two (the mean"
        " of all vectors is subtracted first); how often a probe reads from them the kind, animal or thing, also of a"
        f' noun that it was not fitted to ("new noun"); and the share of the {NEIGHBORS} nearest nouns that are of this'
        " kind.",
        "次の表に示すのは、多義の名詞の、二つの文でのベクトルのコサイン（同じ意味どうしと、別の意味どうし。全ベクトル"
        "の平均を引いてから計算）、プローブが種類（動物か物か）を読む正答率、プローブの当てはめに使わなかった「未知の"
        f"名詞」での正答率、最も近い {NEIGHBORS} 個の名詞のうち同じ種類の割合である。",
    )
    title = Localized("A model of hidden English words", "隠した英単語を当てるモデル")
    found = [masked_measures(model, material) for model in models]
    control = [masked_measures(model, material) for model in untrained]
    yield Table("words-in-context", title, columns, _rows(found))
    yield Table("words-in-context-untrained", _UNTRAINED, columns, _rows(control))
    yield from _bat(models[0], material.tokens)
    _, _, static, _, _ = _mean(found, STATIC)
    same, other, kind, new, _ = _mean(found, ENCODER_END)
    guessed = _mean(control, ENCODER_END)[2]
    said = Localized(
        "The embedding is one vector whatever the sentence, so a probe reads the kind from it"
        f" {static:.0%} of the time. Behind layer {N_LAYERS} vectors of one meaning have a cosine of {same:.2f}, of two"
        f" {other:.2f}, and the probe is right {kind:.0%} of the time, {new:.0%} on a noun that it was not fitted to;"
        f" without training it is right {guessed:.0%} of the time.",
        f"埋め込みは文によらず同じベクトルなので、プローブが種類を読む正答率は {static:.0%} である。第 {N_LAYERS} 層の"
        f"後では、ベクトルのコサインは同じ意味なら {same:.2f}、別の意味なら {other:.2f} であり、プローブの正答率は"
        f" {kind:.0%}、当てはめに使わなかった名詞では {new:.0%}、学習していないモデルでは {guessed:.0%} である。",
    )
    yield Conclusion(said)


def _bat(model: MaskedLM, tokens: Tokenizer) -> Iterator[Piece]:
    """One word in two sentences: the nearest nouns, and where the word looks."""
    static = next(iter(neighbors(model, tokens, "bat", STATIC).values()))
    rows: list[tuple[Cell, ...]] = [("bat", STATIC, _listed(static))]
    for kind, found in neighbors(model, tokens, "bat", ENCODER_END).items():
        rows.append((shown_sentence("bat", kind).english, ENCODER_END, _listed(found)))
    columns = (
        Localized("bat in", "bat の現れる文"),
        LAYER,
        Localized("nearest nouns (cosine)", "最も近い名詞（コサイン）"),
    )
    yield Table("bat", Localized('What is near "bat"', "bat の近くにある名詞"), columns, tuple(rows))
    sentence = shown_sentence("bat", "animal")
    title = Localized(
        'Where "bat" looks, by layer and head (rows: layer.head)', "bat が注目する語（行は層.ヘッド）"
    )
    weights = gaze(model, tokens, sentence)
    n_heads = len(weights) // N_LAYERS
    names = tuple(f"{layer + 1}.{head + 1}" for layer in range(N_LAYERS) for head in range(n_heads))
    yield Picture("matrix", title, weights, names, (*sentence.english.split(), "$"))


def gaze(model: MaskedLM, tokens: Tokenizer, sentence: Sentence) -> Float[np.ndarray, "heads places"]:
    """Attention of the first clause's noun to each word and the end, of all heads of the first layer, then the next."""
    paths = [f"encoder.blocks.{layer}.self_attention" for layer in range(N_LAYERS)]
    with torch.no_grad(), recording(model, "*.self_attention.weights") as record:
        record.model.hidden(**english([sentence], tokens))
    weights = [record[path].weights[0, :, sentence.source_place(0)] for path in paths]
    return np.concatenate([part.double().numpy() for part in weights])


def in_translation(
    runs: Sequence[Training], untrained: Sequence[EncoderDecoder], material: Material
) -> Iterator[Piece]:
    """Where in a translator the meaning of the source word and that of the target word can be read."""
    models = [run.model for run in runs if isinstance(run.model, EncoderDecoder)]
    yield _curve("translator", Localized("Translator: training loss", "翻訳モデル：学習時の損失"), runs)
    exact = mean_and_deviation([100 * run.measures["exact"] for run in runs], ".1f")
    columns = (
        LAYER,
        KIND,
        Localized("target word", "訳語"),
        Localized("source word", "原語"),
        Localized("bat, bat", "bat, bat"),
        Localized("dog, hound", "dog, hound"),
    )
    n_targets, n_sources = (
        len({sentence.clauses[0].noun for sentence in part})
        for part in (material.test, material.synonyms_test)
    )
    yield Localized(
        "The next table has, at the noun in the encoder and where its translation comes next in the decoder, how often"
        f" a probe reads an ambiguous noun's kind and its translation (one of {n_targets}) and, of nouns that share a"
        f" translation in pairs, as dog and hound do 犬, the source word (one of {n_sources}); then the cosines of one"
        " source word with two translations, as bat, and of two source words with one, as dog and hound.",
        "次の表では、エンコーダは名詞の位置、デコーダはその訳語を次に出す位置のベクトルを使う。示すのは、プローブが多義"
        f"の名詞の種類と訳語（{n_targets} 語のうち一つ）を読む正答率、dog と hound（どちらも犬）のように訳語を共有する"
        f"名詞の原語（{n_sources} 語のうち一つ）を読む正答率、bat のように訳語が二つある一つの原語のコサイン、dog と"
        " hound のように訳語が同じ二つの原語のコサインである。",
    )
    title = Localized(
        f"A translator; {exact} % of unseen sentences right to the letter",
        f"翻訳モデル（未見の文の {exact} % を一字一句正しく訳す）",
    )
    found = [translator_measures(model, material) for model in models]
    control = [translator_measures(model, material) for model in untrained]
    yield Table("translator", title, columns, _rows(found))
    yield Table("translator-untrained", _UNTRAINED, columns, _rows(control))
    yield _translations(models[0], material.tokens)
    yield Conclusion(_where_kind(found, control))
    yield Conclusion(_where_words(found, control))


def _where_kind(found: Sequence[Measures], control: Sequence[Measures]) -> Localized:
    """In which half of the translator the kind of an ambiguous noun is settled."""
    encoder, decoder = (_mean(found, layer)[0] for layer in (ENCODER_END, DECODER_END))
    guessed = [_mean(control, layer)[0] for layer in (ENCODER_END, DECODER_END)]
    if decoder < 0.75:
        said = Localized(
            "This translator has not learned to settle it.", "この翻訳モデルはまだ意味を決められない。"
        )
    elif encoder - 0.5 < (decoder - 0.5) / 2:
        said = Localized(
            "This translator settles most of it in the decoder, whose attention reaches the cue as well as the noun.",
            "この翻訳モデルは意味の大半をデコーダで決めている。デコーダのアテンションは名詞にも手掛かりにも届くからである。",
        )
    else:
        said = Localized(
            "This translator settles most of it in the encoder.",
            "この翻訳モデルは意味の大半をエンコーダで決めている。",
        )
    return Localized(
        f"The kind of an ambiguous noun is read from the encoder's output {encoder:.0%} of the time, from the decoder's"
        f" {decoder:.0%} (without training {guessed[0]:.0%} and {guessed[1]:.0%}). {said.en} At the decoder's input"
        " stands the word before the noun, which may be an adjective that tells the kind.",
        f"多義の名詞の種類は、エンコーダの出力から {encoder:.0%}、デコーダの出力から {decoder:.0%} 読める（学習して"
        f"いないモデルでは {guessed[0]:.0%} と {guessed[1]:.0%}）。{said.ja}デコーダの入力にあるのは名詞の直前の語で"
        "あり、それが種類を表す形容詞であることもある。",
    )


def _where_words(found: Sequence[Measures], control: Sequence[Measures]) -> Localized:
    """Whose word the vectors of encoder and decoder stand for: the source's or the target's."""
    (_, _, source, bats, dogs), (_, target, kept, late_bats, late_dogs) = (
        _mean(found, layer) for layer in (ENCODER_END, DECODER_END)
    )
    first, last = (_mean(control, layer)[3:] for layer in (ENCODER_END, DECODER_END))
    if min(bats - dogs, late_dogs - late_bats) > 0.1:
        said = Localized(
            "The encoder's vectors go by the source word, the decoder's by its translation.",
            "エンコーダのベクトルは主に原語で、デコーダのベクトルは主に訳語で決まる。",
        )
    else:
        said = Localized(
            "So it is not clear that the encoder's vectors go by the source word and the decoder's by its translation.",
            "エンコーダのベクトルは原語で、デコーダのベクトルは訳語で決まるとは、はっきりとは言えない。",
        )
    return Localized(
        f"In the encoder's output the two meanings of a word like bat have a cosine of {bats:.2f}, two words like dog"
        f" and hound one of {dogs:.2f} (without training {first[0]:.2f} and {first[1]:.2f}); in the decoder's it is"
        f" {late_bats:.2f} and {late_dogs:.2f} ({last[0]:.2f} and {last[1]:.2f}). {said.en} A probe reads the source"
        f" word from the encoder's output {source:.0%} of the time, the translation from the decoder's {target:.0%},"
        f" and from there the source word, too, {kept:.0%}.",
        f"エンコーダの出力でのコサインは、bat のような語の二つの意味では {bats:.2f}、dog と hound のような二つの語では"
        f" {dogs:.2f} である（学習していないモデルでは {first[0]:.2f} と {first[1]:.2f}）。デコーダの出力では"
        f" {late_bats:.2f} と {late_dogs:.2f} である（{last[0]:.2f} と {last[1]:.2f}）。{said.ja}プローブは原語を"
        f"エンコーダの出力から {source:.0%}、訳語をデコーダの出力から {target:.0%} 読み、原語もデコーダの出力から"
        f" {kept:.0%} 読む。",
    )


def _translations(model: EncoderDecoder, tokens: Tokenizer) -> Localized:
    texts = [shown_sentence("bat", kind).english for kind in KINDS]
    found = [
        translation.text for translation in Translator(model, tokens, segment="none").translate(texts, beam=1)
    ]
    lines = "\n".join(f"{text} → {target}" for text, target in zip(texts, found, strict=True))
    return Localized(lines, lines)


_UNTRAINED = Localized(
    "The same of models that are not trained", "学習していないモデルで同じものを測った結果"
)


def _mean(found: Sequence[Measures], layer: str) -> tuple[float, ...]:
    return tuple(np.mean([measures[layer] for measures in found], axis=0).tolist())


def _rows(found: Sequence[Measures]) -> tuple[tuple[Cell, ...], ...]:
    """A row for each layer: each measure's mean and deviation over the models."""
    return tuple(
        (
            layer,
            *(mean_and_deviation(column, ".2f") for column in zip(*(m[layer] for m in found), strict=True)),
        )
        for layer in found[0]
    )


def _listed(found: Sequence[tuple[float, Noun]]) -> str:
    return ", ".join(f"{noun.source} {cosine:.2f}" for cosine, noun in found)


def _curve(name: str, title: Localized, runs: Sequence[Training]) -> Picture:
    values = np.stack([curve(run.losses) for run in runs]).mean(axis=0, keepdims=True)
    return Picture("curves", title, values, (name,), ("1", str(len(runs[0].losses))))


LESSON = Lesson(
    "words-in-context",
    "NYU Deep Learning 12-3: hidden states as the meaning of a word",
    Localized("One word in two contexts", "一つの語と二つの文脈"),
    Localized(
        "What does a hidden state know of a word that its embedding does not? Where does a model settle whether a bat"
        " is an animal?",
        "隠れ状態は、埋め込みにはない、語の何を知っているのか。bat が動物かどうかを、モデルはどこで決めるのか。",
    ),
    3.0,
    teach,
    seeds=(SEEDS,),
)
LESSONS = (LESSON,)
