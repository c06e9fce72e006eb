"""The command under torchrun itself: ranks that are killed, stopped, or hang."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cut_runs import state
from safetensors.torch import load_file
from tiny_corpus import pairs_file

from attendo.training.checkpoints import checkpoints, newest_checkpoint

pytestmark = pytest.mark.full

SETTINGS = """
[model]
d_model = 16
d_ff = 32
n_heads = 2
n_encoder_layers = 1
n_decoder_layers = 1
[tokenizer]
vocab_size = 600
[training]
steps = 60
batch_tokens = 512
evaluate_every = 20
evaluate_rows = 6
precision = "float32"
warmup_steps = 2
rank_timeout = 5.0
[checkpoint]
every_steps = 5
[decoding]
max_length_ratio = 0.0
max_length_extra = 8
"""


class Job:
    """`torchrun … attendo train translation` with two ranks, in a folder of its own."""

    def __init__(self, folder: Path, name: str, parallel: str, *options: str):
        self.out, self.log = folder / name, folder / f"{name}.log"
        config = folder / "small.toml"
        config.write_text(SETTINGS)
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", *options]
        command += [
            "--monitor-interval",
            "0.1",
            "--no-python",
            str(Path(sys.executable).with_name("attendo")),
        ]
        command += ["train", "translation", "--train", str(folder / "pairs.tsv"), "--out", str(self.out)]
        command += ["--config", str(config), "--set", f"training.parallel={parallel}"]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)

    def ranks(self) -> list[int]:
        """The ids of its ranks, when there are any."""
        pid = self.process.pid
        return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    def wait_for(self, step: int) -> None:
        """Returns when a checkpoint of that step or a later one is there."""
        while not any(int(path.name[5:]) >= step for path in checkpoints(self.out / "checkpoints")):
            assert self.process.poll() is None, self.log.read_text()
            time.sleep(0.05)

    def newest(self) -> Path:
        """Its newest checkpoint."""
        path, _ = newest_checkpoint(self.out / "checkpoints")
        assert path is not None
        return path

    def end(self) -> int:
        """Its exit code, once it has ended."""
        return self.process.wait(timeout=300)


@pytest.fixture
def folder(tmp_path):
    pairs_file(tmp_path)
    return tmp_path


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_killed_ranks_leave_no_trace(folder, parallel):
    whole = Job(folder, "whole", parallel)
    assert whole.end() == 0, whole.log.read_text()
    broken, draw = Job(folder, "broken", parallel, "--max-restarts", "2"), random.Random(1)
    for step in (5, 25):
        broken.wait_for(step)
        time.sleep(draw.uniform(0.0, 0.2))
        os.kill(draw.choice(broken.ranks()), signal.SIGKILL)
    assert broken.end() == 0, broken.log.read_text()
    assert broken.log.read_text().count("resumed step-") == 2
    path, wanted = broken.newest(), whole.newest()
    assert path.name == wanted.name == "step-60" and state(path) == state(wanted)
    tensors, others = (load_file(job.out / "model.safetensors") for job in (broken, whole))
    assert all(bool((tensors[name] == others[name]).all()) for name in tensors | others)


def test_a_stopped_job_is_saved_and_goes_on_with_one_process(folder):
    job = Job(folder, "run", "fsdp")
    job.wait_for(10)
    job.process.send_signal(signal.SIGTERM)
    assert job.end() != 0 and "stopped and saved at step" in job.log.read_text()
    stopped_at = int(job.newest().name[5:])
    assert 10 <= stopped_at < 60
    command = [str(Path(sys.executable).with_name("attendo")), "resume", str(job.out)]
    alone = subprocess.run(command, capture_output=True, text=True, check=True)
    assert f"resumed step-{stopped_at}" in alone.stderr and "all 60 steps done" in alone.stderr


def test_a_rank_that_hangs_ends_the_job(folder):
    """The others give it up after rank_timeout, and torchrun kills it another --shutdown-timeout later."""
    job = Job(folder, "run", "ddp", "--shutdown-timeout", "3")
    job.wait_for(10)
    ranks = job.ranks()
    os.kill(ranks[1], signal.SIGSTOP)
    assert job.end() != 0 and "did not answer within 5 s" in job.log.read_text()
    assert not any(Path(f"/proc/{pid}").exists() for pid in ranks)
