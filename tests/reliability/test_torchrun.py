"""The command under torchrun itself: ranks that are killed, stopped, or hang."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
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
products = "torch"
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
    """`torchrun … attendo train translation` with two ranks, in a folder of its own. before: what runs the command."""

    def __init__(
        self,
        folder: Path,
        name: str,
        parallel: str,
        *options: str,
        before: Sequence[str] = (),
        **variables: str,
    ):
        self.out, self.log = folder / name, folder / f"{name}{variables.get('GLOO_SOCKET_IFNAME', '')}.log"
        config = folder / "small.toml"
        config.write_text(SETTINGS)
        command = [*before, sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", *options]
        command += [
            "--monitor-interval",
            "0.1",
            "--no-python",
            str(Path(sys.executable).with_name("attendo")),
        ]
        command += ["train", "translation", "--train", str(folder / "pairs.tsv"), "--out", str(self.out)]
        command += ["--config", str(config), "--set", f"training.parallel={parallel}"]
        with self.log.open("a") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=os.environ | variables)

    def ranks(self) -> list[int]:
        """The ids of its ranks, when there are any."""
        pid = self.process.pid
        return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    def wait_for(self, step: int) -> None:
        """Returns when a checkpoint of that step or a later one is there."""
        self.wait_until(lambda: any(int(p.name[5:]) >= step for p in checkpoints(self.out / "checkpoints")))

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Returns when it is true; the job must not end before."""
        while not condition():
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


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The run that nothing happened to, by how it is spread."""

    @cache
    def made(parallel):
        folder = tmp_path_factory.mktemp("undisturbed")
        pairs_file(folder)
        whole = Job(folder, "whole", parallel)
        assert whole.end() == 0, whole.log.read_text()
        return whole

    return made


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_killed_ranks_leave_no_trace(folder, undisturbed, parallel):
    whole = undisturbed(parallel)
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


RENDEZVOUS = "10.213.7.1"


class Machine:
    """A network namespace with one end of a cable: all that processes on two machines share is the files."""

    def __init__(self, number: int):
        self.name, self.address = f"attendo{os.getpid()}-{number}", f"10.213.7.{number}"
        self.end = f"at{os.getpid()}-{number}"

    def inside(self, *command: str) -> None:
        """Runs `ip` with its network."""
        subprocess.run(["ip", "-n", self.name, *command], check=True)

    def start(self, folder: Path, parallel: str) -> Job:
        """Its part of the training, as in docs/en/several-machines.md."""
        options = ["--nnodes", "2", "--nproc-per-node", "1", "--rdzv-backend", "c10d", "--rdzv-id", "mine"]
        options += ["--rdzv-endpoint", f"{RENDEZVOUS}:29500", "--local-addr", self.address]
        options += ["--rdzv-conf", f"is_host={self.address == RENDEZVOUS}"]  # both have this machine's name
        options += ["--max-restarts", "3"]
        before = ["ip", "netns", "exec", self.name]
        variables = {"GLOO_SOCKET_IFNAME": self.end, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
        return Job(folder, "two", parallel, *options, before=before, **variables)

    def kill(self) -> None:
        """All its processes at once."""
        found = subprocess.run(["ip", "netns", "pids", self.name], capture_output=True, text=True, check=True)
        for pid in found.stdout.split():
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)


@pytest.fixture
def machines():
    if sys.platform != "linux" or not shutil.which("ip"):
        pytest.skip("two machines on one require Linux with iproute2 (apt-get install iproute2)")
    both = Machine(1), Machine(2)
    try:
        for machine in both:
            if subprocess.run(["ip", "netns", "add", machine.name], capture_output=True).returncode:
                pytest.skip("two machines on one require the right to add network namespaces: run as root")
        cable = ["ip", "link", "add", both[0].end, "netns", both[0].name, "type", "veth"]
        subprocess.run([*cable, "peer", "name", both[1].end, "netns", both[1].name], check=True)
        for machine in both:
            machine.inside("addr", "add", f"{machine.address}/24", "dev", machine.end)
            for end in ("lo", machine.end):
                machine.inside("link", "set", end, "up")
        yield both
    finally:
        for machine in both:
            if Path("/run/netns", machine.name).exists():
                machine.kill()
                subprocess.run(["ip", "netns", "delete", machine.name], check=True)


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_one_of_two_machines_is_lost_and_replaced(folder, undisturbed, machines, parallel):
    whole = undisturbed(parallel)
    lost = machines[1]
    first, other = (machine.start(folder, parallel) for machine in machines)
    first.wait_for(20)
    lost.inside("link", "set", lost.end, "down")  # without a word to the first
    lost.kill()
    assert other.end() == -signal.SIGKILL
    first.wait_until(lambda: "another rank was lost or did not answer" in first.log.read_text())
    lost.inside("link", "set", lost.end, "up")
    instead = lost.start(folder, parallel)
    assert first.end() == instead.end() == 0, first.log.read_text() + instead.log.read_text()
    assert first.log.read_text().count("resumed step-") == 1
    path, wanted = first.newest(), whole.newest()
    assert path.name == wanted.name == "step-60" and state(path) == state(wanted)
