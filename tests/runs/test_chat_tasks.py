"""Assistants in the training loop: supervised fine-tuning and DPO, from a run or an imported model, with resuming."""

import json
import math
import random
import shutil

import numpy as np
import pytest
import torch
from chat_formats import FORMATS, tokenizer_folder
from command_line import attendo, refused
from cut_runs import finished, stopped_at, traces
from safetensors.torch import load_file
from tiny_talks import preferences_file, talks_file
from tiny_texts import text_file

from attendo.data.chat import Message
from attendo.data.chat_corpus import preference_batch
from attendo.errors import AttendoError
from attendo.inference.generator import Generator
from attendo.runs.chat_tasks import REFERENCE, answers_of
from attendo.runs.resume import joined_run, resumed_run, verify_resume
from attendo.runs.task_specs import family_of
from attendo.runs.training_run import new_run
from attendo.training.distributed import ALONE
from attendo.training.losses import batch_loss
from attendo.training.run import Clock, Interrupted

TINY = {"d_model": 16, "d_ff": 32, "n_heads": 2, "n_decoder_layers": 1, "max_len": 320, "dropout": 0.0}
LEARNING = {"learning_rate": 0.01, "warmup_steps": 2, "batch_tokens": 1024}


def tuned_run(folder, file, start, task="chat", **tables):
    training = {"steps": 6, "evaluate_every": 3, **LEARNING, **tables.pop("training", {})}
    tables = {
        "data": {"train": [str(file)]},
        "training": training,
        "checkpoint": {"every_steps": 3},
        **tables,
    }
    return new_run(family_of(task), tables, folder, init_from=start)


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A small language model without a chat template."""
    folder = tmp_path_factory.mktemp("base")
    data = {"train": [str(text_file(folder))], "documents": "line"}
    training = {"steps": 2, **LEARNING}
    tables = {"data": data, "training": training, "model": TINY, "tokenizer": {"kind": "byte"}}
    finished(new_run(family_of("language-model"), tables, folder / "run"))
    return folder / "run"


@pytest.fixture(scope="module")
def assistant(tmp_path_factory, base):
    folder = tmp_path_factory.mktemp("assistant")
    finished(tuned_run(folder / "run", talks_file(folder), base))
    return folder / "run"


def test_new_tokens_start_as_the_mean_of_the_others(tmp_path, base):
    run = tuned_run(tmp_path / "run", talks_file(tmp_path), base)
    before = load_file(base / "model.safetensors")["embedding.tokens.weight"]
    after = run.run.model.embedding.tokens.weight
    assert len(after) == len(before) + 3 == run.bundle.tokenizer.vocab_size
    assert torch.equal(after[:-3], before)
    torch.testing.assert_close(after[-3:], before.mean(0).expand(3, -1))
    assert run.run.model.output_proj.weight is after


def test_an_assistant_learns_and_resumes_exactly(tmp_path, base):
    file = talks_file(tmp_path)
    whole = tmp_path / "whole"
    reports = list(tuned_run(whole, file, base, lora={"rank": 2}).reports())
    measures = [report.evaluation.measures for report in reports if report.evaluation]
    assert measures[1]["loss"] < measures[0]["loss"]
    n_bytes_per_token = measures[0]["loss"] / math.log(2) / measures[0]["bits_per_byte"]
    assert 0.5 < n_bytes_per_token < 1  # of the byte tokenizer, with an end token per answer
    assert 0 <= measures[0]["ended"] <= 1
    found = verify_resume(whole)
    assert found.whole and not found.differing
    trained = load_file(whole / "adapter.safetensors")
    assert {name for name in trained if "lora" not in name} == {"embedding.tokens.weight"}  # has new tokens


def test_a_file_of_conversations_is_evaluated_as_in_training(tmp_path, base):
    file, run = talks_file(tmp_path), tmp_path / "run"
    finished(tuned_run(run, file, base, data={"train": [str(file)], "valid": [str(file)]}))
    found = attendo("evaluate", run, file, "--json")
    measures = json.loads((run / "card.json").read_text())["validation"]
    facts = json.loads(found.out)
    names = ("loss", "perplexity", "bits_per_byte")
    assert [facts[name] for name in names] == pytest.approx([measures[name] for name in names], rel=1e-5)
    assert "60 rows read, 60 used" in found.err
    assert "tokens of answers in 60 conversations" in attendo("evaluate", run, file).out
    pairs = tmp_path / "pairs.csv"
    pairs.write_text("question,answer\nIs it sunny?,It is sunny.\n")
    for command in (["evaluate", base, file], ["compare", run, base, file], ["compare", base, base, pairs]):
        said = f"{command[-1]} contains conversations, but the model has no chat template. Train the model with attendo"
        assert refused(*command).startswith(said)
    columns = ["--columns", "question=question,answer=answer"]
    assert "the model has no chat template" in refused("evaluate", base, pairs, *columns)
    assert "--columns does not apply" in refused("evaluate", base, pairs, "--columns", "text=answer")
    turns = tmp_path / "turns.jsonl"
    turns.write_text('{"messages": [{"role": "assistant", "content": "It is."}], "other": "It is."}\n')
    assert "the model has no chat template" in refused("evaluate", base, turns)  # although they are invalid
    assert "pairs.csv: 1 row read, 1 used" in attendo("evaluate", base, pairs, "--column", "answer").err
    compared = json.loads(attendo("compare", run, run, file, "--json").out)
    assert compared["rows"] == 60
    assert [score["a"] for score in compared["scores"]] == pytest.approx([facts[name] for name in names[::2]])
    table = tmp_path / "table.csv"
    table.write_text(f"q,a\nHow is it?,It is sunny.\nHow?,{'long ' * 80}\n")
    said = attendo("evaluate", run, table, "--columns", "question=q,answer=a").err
    assert "1 of 2 conversations have more than 320 tokens and are not used" in said
    table.write_text('messages\n"[{""role"": ""user"", ""content"": ""How?""}]"\n')
    assert "1 no answer: line 2" in refused("evaluate", run, table)
    renamed = tmp_path / "renamed.jsonl"
    renamed.write_text(file.read_text().replace('"messages"', '"talk"'))
    again = attendo("evaluate", run, renamed, "--columns", "talk", "--json")
    assert json.loads(again.out)["loss"] == facts["loss"]
    config = (run / "config.toml").read_text()
    for task, columns in (("chat", "talk"), ("preference", "prompt=p,chosen=c,rejected=r")):
        (run / "config.toml").write_text(config.replace("[data]", f"[data]\ncolumns = '{columns}'"))
        card = json.loads((run / "card.json").read_text()) | {"task": task}
        (run / "card.json").write_text(json.dumps(card))
        assert json.loads(attendo("evaluate", run, file, "--json").out)["loss"] == facts["loss"]
    table.write_text("label,text\nA,It is sunny.\n")
    assert "perplexity" in attendo("evaluate", run, table).out  # no conversation
    assert refused("evaluate", run, file, "--context", "9").startswith("Invalid value: --context does not")


def test_an_imported_assistant_is_an_assistant_in_all_commands(tmp_path, assistant):
    pytest.importorskip("transformers")
    out, run, small = tmp_path / "hf", tmp_path / "new" / "a" / "run", tmp_path / "new" / "small" / "16"
    assert attendo("export", assistant, out, "--to", "huggingface", "--rows", "4").code == 0
    assert f"Use it with `attendo chat {run}`" in attendo("import", out, run).err
    assert f"use         attendo chat {run}" in attendo("info", run).out.replace("\n            ", " ")
    assert attendo("quantize", run, "--bits", "16", "--out", small).code == 0
    lines = attendo("runs", tmp_path / "new").out.splitlines()
    assert lines[3::2] == ["    chat; imported", "    chat; imported, quantized to 16 bits"]
    assert attendo("quantize", assistant, "--bits", "16", "--out", small.with_name("copy")).code == 0
    assert "so far" not in attendo("info", small.with_name("copy")).out
    said = attendo("export", run, tmp_path / "a" / "again", "--to", "huggingface", "--rows", "4")
    assert "comparing both models on 4 built-in English sentences, without references" in said.err


@pytest.mark.full
def test_loss_equals_a_plain_loop(tmp_path):
    """A model in the shape of SmolLM, trained by attendo and by PyTorch alone, one conversation after the other."""
    transformers = pytest.importorskip("transformers")
    from attendo.interop.huggingface.importing import import_model

    n = 50
    source = tmp_path / "source"
    template, kind, special = FORMATS["chatml"]
    config = tokenizer_folder(source, kind, special, template)
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    shape |= {"num_key_value_heads": 2, "max_position_embeddings": 384, "tie_word_embeddings": True}
    torch.manual_seed(0)
    ids = {"bos_token_id": 0, "eos_token_id": 4, "pad_token_id": 2}
    made = transformers.LlamaConfig(vocab_size=config["vocab_size"], **shape, **ids)
    model = transformers.LlamaForCausalLM(made)
    model.save_pretrained(source)
    import_model(source, tmp_path / "run")
    run = tuned_run(
        tmp_path / "tuned",
        talks_file(tmp_path),
        tmp_path / "run",
        training={"steps": n, "evaluate_every": n, "batch_tokens": 384},
        model={"dropout": 0.0},
    )
    settings = run.run.training
    batches = [batch for epoch in range(n) for batch in run.run.task.batches(settings.seed, epoch, 0)][:n]
    steps = [report for report in run.reports() if report.kind == "step"]
    groups = [
        {"params": [p for p in model.parameters() if p.ndim > 1], "weight_decay": settings.weight_decay},
        {"params": [p for p in model.parameters() if p.ndim < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, betas=(settings.beta1, settings.beta2), eps=settings.epsilon)
    losses = []
    for step, batch in zip(steps, batches, strict=True):
        loss = torch.zeros(())
        for row, targets in enumerate(batch.targets):
            segments = batch.inputs.get("segments", batch.targets * 0)[row]
            for number in segments.unique():
                here = segments == number
                logits = model(batch.inputs["token_ids"][row][here][None]).logits[0]
                wanted = targets[here]
                loss = loss + torch.nn.functional.cross_entropy(
                    logits, wanted, ignore_index=batch.pad_id, reduction="sum"
                )
        loss = loss / batch.n_targets
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), settings.clip_norm)
        for group in optimizer.param_groups:
            group["lr"] = step.rate
        optimizer.step()
        losses.append(loss.item())
    np.testing.assert_allclose([step.loss for step in steps], losses, atol=1e-4)
    assert losses[-1] < 0.5 * losses[0]


def test_preferences_start_at_the_reference_and_resume_exactly(tmp_path, assistant):
    start = shutil.copytree(assistant, tmp_path / "start")
    file = preferences_file(tmp_path)
    run = tuned_run(tmp_path / "run", file, start, "preference", training={"learning_rate": 0.003})
    shutil.rmtree(start)  # its log-probabilities are stored
    reports = list(run.reports())
    first = next(report for report in reports if report.kind == "step")
    assert first.loss == pytest.approx(math.log(2), abs=1e-5)
    measures = [report.evaluation.measures for report in reports if report.evaluation]
    assert measures[-1]["loss"] < math.log(2) and measures[-1]["accuracy"] > 0.5
    reference = load_file(tmp_path / "run" / REFERENCE)
    assert len(reference["train"]) == run.run.task.material.n_rows and len(reference["valid"]) > 0
    found = verify_resume(tmp_path / "run")
    assert found.whole and not found.differing


def test_preference_loss_and_its_parts_equal_the_formula(assistant):
    generator = Generator.load(assistant)
    model, tokenizer = generator.model.double(), generator.tokenizer
    asked = Message("user", "How is it?")
    answers = ("It rains.", "No.", "Sunny and warm.", "Who knows?")
    encode = tokenizer.chat.encode
    turns = [encode(tokenizer, [asked, Message("assistant", answer)]) for answer in answers]
    reference = np.array([0.3, -0.2], np.float32)
    batch = preference_batch(turns, np.arange(2), tokenizer.specials, 0.5, reference)
    log_probs = []
    for ids, mask in turns:
        logits = model(torch.tensor([ids[:-1]]))[0].log_softmax(-1)
        log_probs.append(sum(logits[i, ids[i + 1]] for i in range(len(ids) - 1) if mask[i + 1]))
    margins = torch.stack([log_probs[0] - log_probs[1], log_probs[2] - log_probs[3]])
    expected = -torch.nn.functional.logsigmoid(0.5 * (margins - torch.from_numpy(reference))).mean()
    loss = batch_loss(model, batch, 0.0, 1 / batch.n_targets)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)  # float32
    parts = [batch.part(slice(i, i + 1)) for i in range(2)]
    assert [part.n_targets for part in parts] == [1, 1] and batch.n_targets == 2
    assert sum(batch_loss(model, part, 0.0, 0.5).item() for part in parts) == pytest.approx(loss.item())


def numbers(folder, n=60):
    """Questions for a number, which random numbers answer."""
    digits = random.Random(1)
    talks = [
        [
            {"role": "user", "content": f"Number {i}?"},
            {"role": "assistant", "content": str(digits.randrange(100, 1000))},
        ]
        for i in range(100, 100 + n)
    ]
    return talks_file(folder, talks, "numbers.jsonl")


def function_file(folder, body, name="score.py"):
    path = folder / name
    path.write_text(f"import math\n\n\ndef score(messages, answer, reference):\n    {body}\n")
    return path


def rewarded_run(folder, file, start, function, **tables):
    tables["reward"] = {"function": f"{function}:score", "max_tokens": 6, **tables.get("reward", {})}
    return tuned_run(folder, file, start, "reward", **tables)


@pytest.mark.full
def test_rewards_rise_and_a_stopped_run_resumes_exactly(tmp_path, base):
    file = numbers(tmp_path)
    finished(tuned_run(tmp_path / "chat", file, base, training={"steps": 40, "evaluate_every": 40}))
    function = function_file(tmp_path, "return '7' in answer")
    training = {"steps": 16, "batch_tokens": 2048, "learning_rate": 0.05, "products": "torch"}
    tables = {"training": training, "lora": {"rank": 4}}
    start = tmp_path / "chat"
    reports = list(rewarded_run(tmp_path / "whole", file, start, function, **tables).reports())
    losses = [report.loss for report in reports if report.kind == "step"]
    measures = [report.evaluation.measures for report in reports if report.evaluation]
    assert losses[0] > -0.3 and losses[-1] < -0.45  # the loss is minus the mean reward of the samples
    assert measures[0]["reward"] < 0.5 and measures[-1]["reward"] > 0.8 and measures[-1]["ended"] > 0.9
    assert stopped_at(rewarded_run(tmp_path / "cut", file, start, function, **tables), 8)
    finished(resumed_run(tmp_path / "cut"))
    whole, cut = traces(tmp_path / "whole"), traces(tmp_path / "cut")
    assert (whole["files"], whole["best"]) == (cut["files"], cut["best"])
    function.write_text(function.read_text().replace("7", "8"))
    with pytest.raises(AttendoError, match=r"score\.py has changed since the run started"):
        resumed_run(tmp_path / "cut")


def test_the_gradient_of_rewards_equals_the_formula(tmp_path, assistant):
    function = function_file(tmp_path, "return 1.0")
    reward = {"answers": 3, "max_tokens": 4}
    task = rewarded_run(tmp_path / "run", numbers(tmp_path), assistant, function, reward=reward).run.task
    model = task.generator.model.double()
    rewards = np.array([0.5, 2.0, -1.0, 0.7, 0.7, 0.7], np.float32)
    answers = [[60, 61, 262], [62, 262], [63, 64, 65, 66], [60, 262], [61], [262]]
    batch = task.material.answered(np.array([0, 0, 0, 1, 1, 1]), answers, rewards)
    assert batch.n_targets == 6 and batch.part(slice(0, 2)).n_targets == 2
    expected = torch.zeros(())
    for i, baseline in enumerate([0.5, -0.25, 1.25]):  # mean rewards of the other two answers to the first prompt
        ids = [*task.material.store.texts[0].tolist(), *answers[i]]
        log_probs = model(torch.tensor([ids[:-1]]))[0].log_softmax(-1)
        start = len(ids) - len(answers[i])
        log_prob = sum(log_probs[at - 1, ids[at]] for at in range(start, len(ids)))
        expected = expected + (rewards[i].item() - baseline) * log_prob / 6
    gradients = torch.autograd.grad(expected, model.output_proj.weight)
    loss = batch_loss(model, batch, 0.0, 1 / batch.n_targets)
    assert loss.item() == pytest.approx(-rewards.mean(), rel=1e-6)
    torch.testing.assert_close(torch.autograd.grad(loss, model.output_proj.weight)[0], -gradients[0])
    equal = batch_loss(model, batch.part(slice(3, 6)), 0.0, 1.0)  # answers with equal rewards
    assert not torch.autograd.grad(equal, model.output_proj.weight)[0].any()


def test_a_failing_reward_function_is_named_with_its_row(tmp_path, assistant):
    file = numbers(tmp_path)
    run = rewarded_run(tmp_path / "run", file, assistant, function_file(tmp_path, "return math.exp(answer)"))
    task, row = run.run.task, run.run.task.material.rows[0]
    other = joined_run(tmp_path / "run", lambda line: None, "cpu", Clock(), ALONE)  # of another process
    assert other.run.progress.evaluation_due and run.run.progress.evaluation_due
    with pytest.raises(AttendoError) as found:
        task.reward(row, "5", True)
    assert str(found.value).startswith(f"the reward function failed for row {row.number} (TypeError: must be real")
    assert task.reward(row, "5", False) == 0.0  # it is not called for an unfinished answer
    given = {"None": None, "nan": math.nan, "'1'": "1"}
    for shown, value in given.items():
        vars(task)["function"] = lambda *_, value=value: value
        with pytest.raises(AttendoError, match=rf"returned {shown}, expected a finite number"):
            task.reward(row, "5", True)
    vars(task)["function"] = lambda messages, answer, reference: int(reference) + len(messages)
    assert task.reward(row, "5", True) == int(row.text.split()[-1]) + 1

    def stop(*_):
        raise Interrupted

    vars(task)["function"] = stop
    with pytest.raises(Interrupted):
        task.reward(row, "5", True)
    command = ("train", "reward", "--train", file, "--init-from", assistant, "--out", tmp_path / "out")
    for name, code in {"score.py:other": 2, "none.py:score": 1}.items():
        said = refused(*command, "--reward", tmp_path / name, code=code)
        assert f"{name} cannot be loaded" in said and "set reward.function to FILE.py:NAME" in said


def test_greedy_answers_end_with_the_end_mark(assistant):
    loaded = Generator.load(assistant)
    generator = Generator(loaded.model, loaded.tokenizer)  # not prepared, because the weights change
    end = generator.tokenizer.chat.end_id
    generator.model.output_proj.weight.requires_grad_(False).zero_()
    bias = torch.zeros(generator.tokenizer.vocab_size)
    generator.model.output_proj.bias = torch.nn.Parameter(bias, requires_grad=False)
    generator.model.output_proj.bias[generator.tokenizer.encode("A")[0]] = 5.0
    a = generator.tokenizer.encode("A")[0]
    assert answers_of(generator, [[2, 5]], 3) == [("AAA", False, [a] * 3)]
    generator.model.output_proj.bias[end] = 9.0
    assert answers_of(generator, [[2, 5], [2]], 3) == [("", True, [end])] * 2


def test_the_command_shows_the_mask_and_names_errors(tmp_path, base):
    file = talks_file(tmp_path)
    shown = attendo("train", "chat", "--train", file, "--init-from", base, "--show-loss-mask", "1")
    first, asked, answer, *_ = shown.out.splitlines()
    assert (shown.code, first) == (0, f"{file}:1")
    assert asked.startswith("  <s> <|user|> B e") and asked.endswith("<|end|> <|assistant|>")
    assert answer == "> I t ▁ i s ▁ s u n n y . <|end|>"
    out = tmp_path / "out"
    said = refused("train", "preference", "--train", preferences_file(tmp_path), "--init-from", base, "--out", out)
    assert "the model has no chat template. Train it with the task chat" in said
