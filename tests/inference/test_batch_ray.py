"""Files through a model on a Ray cluster: each line once and in order, whatever dies, and as one process has them."""

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from command_line import attendo, refused
from tiny_translator import save_run, tiny_tokenizer, tiny_translator

from attendo.cli import options
from attendo.data import forecasts
from attendo.errors import AttendoError, install_command
from attendo.inference import batch_files, batch_ray
from attendo.inference.batch_files import through_file
from attendo.inference.batch_ray import Cluster, on_ray

MAIN = "import sys; from attendo.cli import main; sys.exit(main())"
IN_SMALL_CHUNKS = f"from attendo.inference import batch_files; batch_files.CHUNK_LINES = 50; {MAIN}"
TWO = Cluster(workers=2)


@pytest.fixture(scope="module")
def ray():
    """Two processors of this machine as a cluster, for all tests of this file."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ray = pytest.importorskip("ray", reason='Ray is not installed: pip install "attendo[ray]"')
    ray.init("local", num_cpus=2, include_dashboard=False, logging_level="error", log_to_driver=False)
    yield ray
    ray.shutdown()


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    return save_run(tmp_path_factory.mktemp("ray") / "run", tiny_translator(tiny_tokenizer(), max_len=64))


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "in.txt"
    path.write_text("".join(f"line {n}\n" for n in range(1, 2001)))
    return path


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch):
    monkeypatch.setattr(batch_files, "CHUNK_LINES", 50)


def shout(first, lines):
    return [f"{n}: {line.upper()}" for n, line in enumerate(lines, first)], {"ones": sum("1" in x for x in lines)}


def shouting(notes, dies=None, times=0, fails=None):
    """What makes the work of a worker: it notes chunks in a folder, and dies over one of them so many times.

    All of it is made within a function, so that Ray sends it whole: the workers know nothing of the tests.
    """
    notes = str(notes)

    def make(folder):
        import os
        import random
        import signal
        from pathlib import Path
        from time import sleep

        from attendo.errors import AttendoError

        [mark] = Path(folder).iterdir()
        loud = mark.read_bytes() == b"loud"

        def work(first, lines):
            with open(f"{notes}/{first}", "a") as note:  # noqa: PTH123
                note.write(f"{os.getpid()}\n")
            if first == dies and len(Path(notes, str(first)).read_text().splitlines()) <= times:
                os.kill(os.getpid(), signal.SIGKILL)
            if first == fails:
                raise AttendoError(f"line {first} is not for this model; leave it out")
            sleep(0.02 * random.random())  # so that they do not end in order
            counts = {"ones": sum("1" in line for line in lines)}
            return [f"{n}: {line.upper() if loud else line}" for n, line in enumerate(lines, first)], counts

        return work

    return make


def on_workers(source, out, make, cluster=TWO):
    with on_ray(make, {"how": b"loud"}, cluster) as ahead:
        *_, last = through_file(source, out, ahead, {})
    return last


def alone(source, out):
    *_, last = through_file(source, out, shout, {})
    return out.read_bytes(), last.counts


def notes_in(folder):
    return {int(note.name): note.read_text().splitlines() for note in folder.iterdir()}


@pytest.fixture
def notes(tmp_path):
    folder = tmp_path / "notes"
    folder.mkdir()
    return folder


# ---- the library


def test_a_worker_that_dies_midway_loses_and_repeats_nothing(ray, source, notes, tmp_path):
    wanted, counts = alone(source, tmp_path / "alone")
    out = tmp_path / "out.txt"
    last = on_workers(source, out, shouting(notes, dies=1001, times=1))
    assert (out.read_bytes(), last.counts, last.done) == (wanted, counts, 2000)
    done = notes_in(notes)
    assert sorted(done) == list(range(1, 2001, 50))
    assert {first: len(pids) for first, pids in done.items() if len(pids) > 1} == {1001: 2}
    assert len(set(done[1001])) == 2


@pytest.mark.full
def test_lines_that_workers_die_over_are_named_and_what_was_done_stays(ray, source, notes, tmp_path, monkeypatch):
    monkeypatch.setattr(batch_ray, "TRIES", 2)
    out = tmp_path / "out.txt"
    with pytest.raises(
        AttendoError,
        match=r"^lines 301 to 350: 2 workers died while processing them .*Earlier results are kept",
    ):
        on_workers(source, out, shouting(notes, dies=301, times=9))
    assert not out.exists()
    wanted, counts = alone(source, tmp_path / "alone")
    *_, last = through_file(source, out, shout, {})  # without a cluster, too
    assert last.resumed in range(0, 301, 50)
    assert (out.read_bytes(), last.counts) == (wanted, counts)


@pytest.mark.full
def test_a_stopped_file_is_gone_on_with(ray, source, notes, tmp_path):
    out, make = tmp_path / "out.txt", shouting(notes)
    with on_ray(make, {"how": b"loud"}, TWO) as ahead:
        for progress in through_file(source, out, ahead, {}):
            if progress.done == 400:
                break
    before = notes_in(notes)
    assert max(before) <= 400 + 50 * 2 * batch_ray.AHEAD  # no more is read ahead than is said
    for note in notes.iterdir():
        note.unlink()
    last = on_workers(source, out, make)
    assert last.resumed == 400
    assert min(notes_in(notes)) == 401
    assert out.read_bytes() == alone(source, tmp_path / "alone")[0]


@pytest.mark.full
def test_what_the_work_refuses_is_said_as_it_is(ray, source, notes, tmp_path):
    with pytest.raises(AttendoError) as caught:
        on_workers(source, tmp_path / "out.txt", shouting(notes, fails=701))
    assert str(caught.value) == "line 701 is not for this model; leave it out"


@pytest.mark.full
def test_an_empty_file(ray, notes, tmp_path):
    (tmp_path / "in").touch()
    assert on_workers(tmp_path / "in", tmp_path / "out", shouting(notes)).total == 0
    assert (tmp_path / "out").read_bytes() == b""


@pytest.mark.full
def test_workers_that_die_before_they_begin(ray, source, tmp_path, monkeypatch):
    monkeypatch.setattr(batch_ray, "TRIES", 3)

    def make(folder):
        import os

        os._exit(1)

    with pytest.raises(AttendoError, match=r"^3 workers died before they loaded the model .*Use fewer per machine"):
        on_workers(source, tmp_path / "out", make)


@pytest.mark.full
def test_a_worker_of_another_version_is_refused(ray, source, notes, tmp_path, monkeypatch):
    monkeypatch.setattr(batch_ray, "version", lambda name: "0.0.0")
    with pytest.raises(AttendoError, match=r"worker .* has attendo .* \(expected 0\.0\.0\)\. Install the same"):
        on_workers(source, tmp_path / "out", shouting(notes))


def test_a_cluster_without_room(ray, source, notes, tmp_path, monkeypatch):
    with pytest.raises(AttendoError, match=r"no machine of the Ray cluster has 64 CPU for a worker\. Use fewer"):
        on_workers(source, tmp_path / "out", shouting(notes), Cluster(threads=64))
    with pytest.raises(AttendoError, match="has 1 CPU and 1 GPU for a worker"):
        on_workers(source, tmp_path / "out", shouting(notes), Cluster(gpus=1))
    monkeypatch.setattr(batch_ray, "PATIENCE", 0.2)
    with pytest.raises(AttendoError, match=r"no worker of the Ray cluster started within 0 s\. Check its resources"):
        on_workers(source, tmp_path / "out", shouting(notes), Cluster(workers=1, threads=64))


def test_an_address_where_nobody_listens_is_refused_at_once():
    ray = pytest.importorskip("ray", reason='Ray is not installed: pip install "attendo[ray]"')
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
    with pytest.raises(AttendoError, match=f"^no Ray cluster at {address} .*Check it with: ray status"):
        batch_ray._connect(ray, Cluster(address))


def test_without_ray_one_line_says_what_to_install(monkeypatch, source, tmp_path):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(AttendoError) as caught:
        on_workers(source, tmp_path / "out", shouting(tmp_path))
    assert str(caught.value) == f"a cluster requires Ray. Run: {install_command('ray')}"


# ---- the command


def workers_of(pid, named="ray::Worker"):
    """The processes that Ray's actors run in, or others by their names, among the descendants of a process."""
    parents, names = {}, {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                names[int(folder.name)] = (folder / "cmdline").read_text()
                stat = (folder / "stat").read_text()
            except OSError:
                continue
            parents[int(folder.name)] = int(stat.rpartition(")")[2].split()[1])
    found = []
    for child, name in names.items():
        above = child
        while above in parents and above != pid:
            above = parents[above]
        if above == pid and name.startswith(named):
            found.append(child)
    return found


def many_lines(n):
    lines = [source for source, _ in forecasts.pairs(min(n, 5000), "train")]
    lines = [lines[i % len(lines)] + f" {i}" * (i % 5 == 0) for i in range(n)]
    lines[3], lines[7] = "", " "
    return "".join(f"{line}\n" for line in lines)


@pytest.mark.full
def test_the_command_gives_what_it_gives_alone(ray, run_folder, tmp_path, monkeypatch):
    source, killed = tmp_path / "in.txt", []
    source.write_text(many_lines(600), encoding="utf-8")
    show = options.FileScreen.show

    def shown(self, progress):
        if progress.done >= 100 and not killed:
            killed.append(workers_of(os.getpid())[0])
            os.kill(killed[0], signal.SIGKILL)
        show(self, progress)

    options = ["--n-best", "2", "--alignments", "--longest", "40", "--bits", "8"]
    options += ["--set", "decoding.min_length=3", "--threads", "1"]
    command = ["translate", run_folder, "--input", source, *options, "--output"]
    assert attendo(*command, tmp_path / "alone").code == 0
    monkeypatch.setattr(options.FileScreen, "show", shown)
    outcome = attendo(*command, tmp_path / "out.txt", "--ray", "--ray-workers", "2")
    assert (outcome.code, len(killed)) == (0, 1)
    assert (tmp_path / "out.txt").read_bytes() == (tmp_path / "alone").read_bytes()
    assert "of 600 texts were longer than 40 tokens" in outcome.err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--ray", "rain"], "--ray requires --input and --output"),
        (["--ray-workers", "2", "rain"], "--ray-address and --ray-workers require --ray"),
        (["--ray-address", "auto", "rain"], "--ray-address and --ray-workers require --ray"),
        (
            ["--ray", "--bits", "8", "--device", "cuda", "--input", "F", "--output", "G"],
            "--bits is for the CPU",
        ),
    ],
    ids=str,
)
def test_wrong_usage(run_folder, options, said):
    assert said in refused("translate", run_folder, *options)


def progress_of(out):
    """Lines of the output that are whole, by its journal."""
    try:
        return json.loads(out.with_name(out.name + ".part.json").read_bytes())["lines"]
    except FileNotFoundError:
        return 0


def until(condition, process, patience=600):
    """Waits until it gives something true, and gives that; the process must not end before."""
    for _ in range(patience * 20):
        if found := condition():
            return found
        assert process.poll() is None
        time.sleep(0.05)
    raise AssertionError("it took too long")


def translation(run_folder, folder, n_lines, main=MAIN):
    """A file's translation over two workers as a command, where it goes, and what one process has written."""
    source, out, alone = folder / "in.txt", folder / "out.txt", folder / "alone.txt"
    source.write_text(many_lines(n_lines), encoding="utf-8")
    command = [sys.executable, "-c", main, "translate", str(run_folder)]
    command += ["--threads", "1", "--input", str(source)]
    subprocess.run([*command, "--output", str(alone)], stderr=subprocess.DEVNULL, check=True)
    return [*command, "--output", str(out), "--ray", "--ray-workers", "2"], out, alone


@pytest.mark.full
@pytest.mark.parametrize("n_lines", [100_000])
def test_a_large_file_over_two_workers_one_killed_and_then_the_driver(run_folder, tmp_path, n_lines):
    """The driver's end takes its own Ray cluster with it; the same command, over Ray, then ends the file."""
    pytest.importorskip("ray", reason='Ray is not installed: pip install "attendo[ray]"')
    ray, out, alone = translation(run_folder, tmp_path, n_lines)
    with subprocess.Popen(ray, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as driver:
        until(lambda: progress_of(out) >= n_lines // 5, driver)
        first = workers_of(driver.pid)
        assert len(first) == 2
        os.kill(first[0], signal.SIGKILL)
        until(lambda: len(set(workers_of(driver.pid)) - {first[0]}) == 2, driver)
        until(lambda: progress_of(out) >= n_lines // 2, driver)
        left = workers_of(driver.pid)
        driver.kill()
    done = progress_of(out)
    assert n_lines // 2 <= done < n_lines
    ended = subprocess.run(ray, capture_output=True, text=True, check=True)
    assert f"resuming: {done:,} of {n_lines:,} lines are done" in ended.stderr
    assert out.read_bytes() == alone.read_bytes()
    assert out.read_bytes().count(b"\n") == n_lines
    assert not [pid for pid in left if Path(f"/proc/{pid}").exists()]


def listens(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture
def node(monkeypatch):
    """Begins nodes of a Ray cluster with one processor, each in a process group of its own; all are killed at last."""
    pytest.importorskip("ray", reason='Ray is not installed: pip install "attendo[ray]"')
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))
    begun = []

    def begin(*options):
        ray = str(Path(sys.executable).with_name("ray"))
        command = [ray, "start", "--num-cpus", "1", "--block", "--disable-usage-stats", *options]
        begun.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True))
        return begun[-1]

    yield begin
    for process in begun:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.mark.full
@pytest.mark.parametrize("n_lines", [8_000])
def test_a_node_of_the_cluster_is_killed_midway(run_folder, tmp_path, node, n_lines):
    command, out, alone = translation(run_folder, tmp_path, n_lines, IN_SMALL_CHUNKS)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    address = f"127.0.0.1:{port}"
    head = node("--head", "--port", str(port), "--include-dashboard", "false")
    until(lambda: listens(port), head)
    second = node("--address", address)
    until(lambda: workers_of(second.pid, "ray::"), second)
    with subprocess.Popen([*command, "--ray-address", address]) as driver:
        until(lambda: workers_of(second.pid) and progress_of(out) >= n_lines // 5, driver)
        assert len(workers_of(head.pid)) == 1
        killed = workers_of(second.pid)
        os.killpg(second.pid, signal.SIGKILL)
        with suppress(ProcessLookupError):  # in a group of its own, it may have seen its node's end already
            os.kill(killed[0], signal.SIGKILL)
        assert len(killed) == 1 and progress_of(out) < n_lines
        assert driver.wait(timeout=600) == 0
    assert out.read_bytes() == alone.read_bytes()
    assert out.read_bytes().count(b"\n") == n_lines
