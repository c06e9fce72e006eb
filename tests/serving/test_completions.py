"""OpenAI's interface, asked by its own package unchanged: completions, streams, log-probabilities, errors."""

import asyncio
import contextlib
import http.client
import io
import itertools
import json
import threading
import time

import openai
import pytest
from asgi_client import ask, asked
from looked_models import looked_model
from served_models import TOKENIZER, client_of, live, serving
from tiny_translator import save_run, tiny_translator

from attendo.bundle import EXAMPLES
from attendo.inference import Embedder
from attendo.serving.app import create_app
from attendo.serving.completions import ModelFacts
from attendo.serving.engine import ForwardJob, Job
from attendo.serving.monitoring import Log
from attendo.serving.registry import ModelRegistry, Reloading
from attendo.serving.state import State

WRITER = looked_model("language-model", TOKENIZER, max_len=60).prepare()
USER = tiny_translator(TOKENIZER, max_len=60).prepare()
STATE, APP = serving(("writer", WRITER, None, None), ("enja", USER, "en", "ja"), max_requests=9)
KEYED = serving(("writer", WRITER, None, None), keys=["secret"])[1]


@pytest.fixture(scope="module")
def client():
    with live(APP) as address, openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as made:
        yield made


def completed(client, **options):
    return client.completions.create(**{"model": "writer", "prompt": "It will", "max_tokens": 12} | options)


def test_models_are_listed(client):
    assert [model.id for model in client.models.list()] == ["writer", "enja"]
    found = client.models.retrieve("enja")
    facts = (found.object, found.owned_by, found.family, found.source)
    assert facts == ("model", "attendo", "translation", "en")
    assert [model.examples for model in client.models.list()] == [[], []]


@pytest.mark.parametrize("shown", [True, False])
def test_examples_are_shown_only_where_they_are_allowed(tmp_path, shown):
    """By /v1/models and by the microscope alike; a change of the file is a change of the model."""
    texts = ["It will rain.", "雨"]
    folder = save_run(tmp_path / "enja", tiny_translator(TOKENIZER, max_len=24))
    state = State(ModelRegistry([folder], examples=shown), look=True, page=False, log=Log(stream=io.StringIO()))
    reloading = Reloading(state)
    reloading.load()
    app = create_app(state)
    for expected in ([], texts if shown else []):
        (listed,) = asyncio.run(asked(app, "GET", "/v1/models")).json["data"]
        alone = asyncio.run(asked(app, "GET", "/v1/models/enja")).json
        assert listed == alone == ModelFacts(**alone).model_dump()
        looked = asyncio.run(asked(app, "POST", "/look/enja/api/model", body={}))
        assert looked.status == 200, looked.body
        assert alone["examples"] == looked.json["examples"] == expected
        (folder / EXAMPLES).write_text(json.dumps(texts), encoding="utf-8")
        reloading.look_again()
    state.models.stop()


@pytest.mark.parametrize(
    "options",
    [
        {"seed": 3},
        {"seed": 3, "temperature": 0.5, "top_p": 0.9, "stop": ["th", "雨"]},
        {"temperature": 0, "stop": "t"},
        {"seed": 9, "extra_body": {"top_k": 5, "min_p": 0.01, "repetition_penalty": 1.3}},
        {"seed": 1, "prompt": ""},
        {"seed": 1, "prompt": "It will rain. " * 40, "max_tokens": 70},
    ],
)
def test_a_text_is_that_of_generate_with_the_seed(client, options):
    answer = completed(client, **options)
    own = {"max_tokens": 12} | {key: value for key, value in options.items() if key != "extra_body"}
    own |= options.get("extra_body", {})
    prompt = own.pop("prompt", "It will")
    if isinstance(own.get("stop"), str):
        own["stop"] = [own["stop"]]
    found = WRITER.generate(prompt, **own)
    assert answer.choices[0].text == found.text
    assert answer.choices[0].finish_reason == ("length" if found.finished_by == "length" else "stop")
    assert answer.usage.completion_tokens == len(found.log_probs)
    assert answer.usage.prompt_tokens == len(TOKENIZER.encode(prompt))


def test_n_texts_have_n_seeds_and_prompts_are_numbered_through(client):
    answer = completed(client, prompt=["It will", "Snow"], n=3, seed=5, best_of=3)
    seeds = [(prompt, 5 + i) for prompt in ("It will", "Snow") for i in range(3)]
    wanted = [WRITER.generate(prompt, max_tokens=12, seed=seed).text for prompt, seed in seeds]
    assert [choice.text for choice in answer.choices] == wanted
    assert [choice.index for choice in answer.choices] == list(range(6))
    assert len({completed(client, n=2).choices[i].text for i in (0, 1)}) == 2


def test_a_prompt_of_ids_is_read_as_it_is(client):
    ids = TOKENIZER.specials.prompt(TOKENIZER.encode("It will rain"))
    text = completed(client, prompt="It will rain", seed=2).choices[0].text
    both = completed(client, prompt=[ids, ids], seed=2, echo=True).choices
    assert completed(client, prompt=ids, seed=2).choices[0].text == text
    assert [choice.text for choice in both] == ["It will rain" + text] * 2
    told, of_text, rest = (
        completed(client, prompt=prompt, echo=True, logprobs=1, max_tokens=0).choices[0].logprobs
        for prompt in (ids, "It will rain", ids[1:])
    )
    assert told.token_logprobs == [None, *of_text.token_logprobs] and told.top_logprobs[0] is None
    assert rest.token_logprobs[0] is None


def test_log_probabilities_are_those_of_the_draw_and_of_the_likeliest(client):
    found = WRITER.generate("It will", max_tokens=12, seed=3)
    told = completed(client, seed=3, logprobs=5).choices[0]
    assert told.logprobs.token_logprobs == list(found.log_probs)
    assert len(told.logprobs.tokens) == 12
    logs = told.logprobs
    for token, value, top in zip(logs.tokens, logs.token_logprobs, logs.top_logprobs, strict=True):
        assert len(top) == 5 + (token not in list(top)[:5])  # the token that was drawn is always there
        assert top[token] == pytest.approx(value, abs=1e-4)
        assert all(value <= best + 1e-4 or best in list(top.values())[1:] for best in [max(top.values())])
    greedy = completed(client, temperature=0, logprobs=1).choices[0].logprobs
    tops = [next(iter(top.values())) for top in greedy.top_logprobs]
    assert greedy.token_logprobs == pytest.approx(tops, abs=1e-4)
    assert completed(client, seed=3, logprobs=0).choices[0].logprobs.top_logprobs is None


def test_offsets_say_where_tokens_begin(client):
    told = completed(client, temperature=0, prompt="It will rain", echo=True, logprobs=0).choices[0]
    begins = [*told.logprobs.text_offset, len(told.text)]
    for token, (start, end) in zip(told.logprobs.tokens, itertools.pairwise(begins), strict=True):
        piece = told.text[start:end]
        assert piece == token or piece == token.lstrip(" ") or token.startswith("<") or not piece


def test_a_stop_takes_its_tokens_back(client):
    whole = WRITER.generate("It will", max_tokens=12, seed=3).text
    stop = whole[3:5]
    told = completed(client, seed=3, stop=stop, logprobs=1).choices[0]
    assert told.text == whole[: whole.index(stop)]
    assert told.finish_reason == "stop"
    assert all(offset < len(told.text) for offset in told.logprobs.text_offset)
    assert len(told.logprobs.tokens) == len(told.logprobs.top_logprobs)


def test_echo_of_no_tokens_scores_a_prompt(client):
    prompt = "It will rain in Oslo tonight. " * 5  # longer than a context
    told = completed(client, prompt=prompt, max_tokens=0, echo=True, logprobs=2).choices[0]
    assert (told.text, told.finish_reason) == (prompt, "length")
    body = {"model": "writer", "text": prompt}
    (scored,) = asyncio.run(client_of(APP).post("/score", json=body)).json()["results"]
    values = [token["log_prob"] for token in scored["tokens"]][:-1]  # the end is scored there, too
    assert told.logprobs.token_logprobs == pytest.approx(values)


@pytest.mark.parametrize("options", [{"n": 2}, {"echo": True}, {"logprobs": 0}, {"stop": "t"}, {"max_tokens": 0}])
def test_a_stream_is_the_same_text_in_pieces(client, options):
    asked = {"seed": 4} | options
    whole = completed(client, **asked)
    texts, reasons, counts, tokens = {}, {}, None, {}
    for chunk in completed(client, stream=True, stream_options={"include_usage": True}, **asked):
        assert chunk.model == "writer"
        counts = chunk.usage or counts
        for choice in chunk.choices:
            texts[choice.index] = texts.get(choice.index, "") + choice.text
            reasons[choice.index] = choice.finish_reason or reasons.get(choice.index)
            if choice.logprobs:
                tokens.setdefault(choice.index, []).extend(choice.logprobs.tokens)
    assert texts == {choice.index: choice.text for choice in whole.choices}
    assert reasons == {choice.index: choice.finish_reason for choice in whole.choices}
    assert counts == whole.usage
    if "logprobs" in options:
        assert tokens[0] == whole.choices[0].logprobs.tokens[: len(tokens[0])]


def test_a_translator_completes_with_the_translation(client):
    prompts = ["It will rain.", "Snow"]
    answer = completed(client, model="enja", prompt=prompts, n=3, max_tokens=None, temperature=0)
    found = USER.translate(prompts, beam=3, n_best=3)
    assert [choice.text for choice in answer.choices] == [c.text for one in found for c in one.candidates]
    stream = completed(client, model="enja", prompt="It will rain.", stream=True, max_tokens=None)
    text = "".join(choice.text for chunk in stream for choice in chunk.choices)
    assert text == USER.translate(["It will rain."], beam=1, guard=False)[0].text
    short = completed(client, model="enja", prompt="It will rain.", max_tokens=3)
    assert short.usage.completion_tokens == 3
    assert short.choices[0].finish_reason == "length"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"presence_penalty": 0.5}, "presence_penalty"),
        ({"frequency_penalty": -1}, "frequency_penalty"),
        ({"best_of": 2}, "best_of"),
        ({"logit_bias": {"5": 3}}, "logit_bias"),
        ({"suffix": "."}, "suffix"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "echo": True, "logprobs": 1}, "logprobs"),
        ({"n": 17}, "n=17 must be at most 16"),
        ({"max_tokens": 5000}, "max_tokens=5,000 must be at most"),
        ({"prompt": [99999]}, "token id 99999"),
        ({"model": "enja", "temperature": 0.7}, "temperature"),
        ({"model": "enja", "stop": "x"}, "stop"),
        ({"model": "enja", "stream": True, "n": 2}, "a stream translates one prompt"),
        ({"model": "enja", "max_tokens": 0}, "max_tokens must be at least 1"),
    ],
)
def test_what_is_not_served_is_a_bad_request(client, options, said):
    with pytest.raises(openai.BadRequestError) as refused:
        completed(client, **options)
    assert said in refused.value.message


def test_errors_are_the_packages_own(client):
    with pytest.raises(openai.NotFoundError) as refused:
        completed(client, model="nobody")
    assert refused.value.code == "model_not_found"
    with pytest.raises(openai.UnprocessableEntityError, match="temperature: input should be") as refused:
        completed(client, temperature="hot")
    assert refused.value.param == "temperature"
    with pytest.raises(openai.UnprocessableEntityError, match=r"unknown field .*; did you mean max_tokens"):
        completed(client, extra_body={"max_token": 3})
    with pytest.raises(openai.APIStatusError, match="413"):
        completed(client, prompt=["a"] * 300)
    with live(KEYED) as address, openai.OpenAI(base_url=f"{address}/v1", api_key="secret") as other:
        assert completed(other).choices
        with pytest.raises(openai.AuthenticationError):
            completed(other.with_options(api_key="wrong"))


def test_a_full_server_is_a_rate_limit(client):
    with contextlib.ExitStack() as admitted:
        for _ in range(STATE.admission.max_requests):
            admitted.enter_context(STATE.admission.entered(1))
        with pytest.raises(openai.RateLimitError) as refused:
            completed(client)
    assert int(refused.value.response.headers["retry-after"]) >= 1


def test_a_deadline_is_a_timeout(client):
    for given, status in (("0.000001", 504), ("soon", 422), ("-1", 422), ("inf", 422)):
        with pytest.raises(openai.APIStatusError) as refused:
            completed(client, extra_headers={"X-Request-Timeout": given}, max_tokens=500)
        assert refused.value.status_code == status


def test_asynchronously_many_at_a_time():
    async def text(client, seed):
        options = {"model": "writer", "prompt": "It", "seed": seed, "max_tokens": 9}
        stream = await client.completions.create(**options, stream=True)
        return "".join([chunk.choices[0].text async for chunk in stream])

    async def main():
        with live(APP) as address:
            async with openai.AsyncOpenAI(base_url=f"{address}/v1", api_key="none") as client:
                return await asyncio.gather(*(text(client, seed) for seed in range(8)))

    texts = [WRITER.generate("It", seed=seed, max_tokens=9).text for seed in range(8)]
    assert asyncio.run(main()) == texts


def test_embeddings_are_those_of_embed(client):
    texts = ["It will rain.", "", "Snow in Oslo. " * 30]
    vectors = Embedder(WRITER.model, TOKENIZER).embed(texts)
    coded = client.embeddings.create(model="writer", input=texts)  # the package asks for base64
    plain = client.embeddings.create(model="writer", input=texts, encoding_format="float", dimensions=16)
    for vector, one, other in zip(vectors, coded.data, plain.data, strict=True):
        assert one.embedding == pytest.approx(vector.tolist(), abs=1e-5)
        assert other.embedding == pytest.approx(vector.tolist(), abs=1e-6)
    assert coded.usage.prompt_tokens == sum(len(TOKENIZER.encode(text)) for text in texts)
    ids = client.embeddings.create(model="writer", input=TOKENIZER.encode("It will rain."))
    assert ids.data[0].embedding == pytest.approx(coded.data[0].embedding)
    with pytest.raises(openai.BadRequestError, match="dimensions=8 must be 16"):
        client.embeddings.create(model="writer", input="x", dimensions=8)


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_goes_stops_the_computing(client, stream):
    """Long texts, of which the client waits for none: soon nothing is computed, and the slot is free."""
    engine = STATE.models.named("writer").engine
    before = engine.counts.steps
    body = {"model": "writer", "prompt": "It", "max_tokens": 2000, "stream": stream, "seed": 1}
    connection = http.client.HTTPConnection(client.base_url.host, client.base_url.port)
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    if stream:
        connection.getresponse().readline()
    while engine.counts.steps == before:
        time.sleep(0.001)
    connection.close()
    deadline = time.monotonic() + 10
    while (engine.going_on or STATE.admission.requests) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert engine.going_on == STATE.admission.requests == 0
    steps = engine.counts.steps
    assert steps - before < 1900
    time.sleep(0.05)
    assert engine.counts.steps == steps


def test_a_client_that_goes_before_the_first_piece_is_no_fault():
    body = json.dumps({"model": "writer", "prompt": "It", "max_tokens": 50, "stream": True}).encode()
    messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive():
        return messages.pop(0) if messages else {"type": "http.disconnect"}

    headers = {"Content-Type": "application/json", "Content-Length": str(len(body))}
    before = STATE.log.stream.getvalue().count("fault")
    assert ask(APP, "POST", "/v1/completions", headers, receive=receive).status == 499
    assert STATE.log.stream.getvalue().count("fault") == before


def test_silence_is_pinged(monkeypatch):
    monkeypatch.setattr("attendo.serving.completions.PING_SECONDS", 0.01)
    begun, release = threading.Event(), threading.Event()

    def wait(items):
        begun.set()
        return [release.wait(20) for _ in items]

    async def main():
        STATE.models.named("writer").engine.submit(Job(ForwardJob("wait", ["x"], wait), lambda news: None))
        assert begun.wait(20)
        body = {"model": "writer", "prompt": "It", "max_tokens": 3, "stream": True}
        asking = asyncio.ensure_future(client_of(APP).post("/v1/completions", json=body))
        await asyncio.sleep(0.1)
        release.set()
        return await asking

    lines = asyncio.run(main()).text.split("\n\n")
    assert lines[0] == ": ping"
    told = [line for line in lines if line != ": ping"]  # a ping may follow the last event
    assert told[-2] == "data: [DONE]"
    events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    assert events[-1]["choices"][0]["finish_reason"] == "length"
