"""Several ranks in forks of this process, watched as torchrun watches them; nothing has to be imported again."""

import gc
import importlib
import json
import os
import signal
import sys
import tempfile
import time
import traceback
import warnings
from pathlib import Path

import torch
from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

from attendo.training.distributed import joined

for name in ("torch._dynamo", "torch.distributed.fsdp", "torch.distributed.tensor"):
    importlib.import_module(name)  # what optimizers and FSDP2 import at their first use, once for all ranks


class RanksFailed(Exception):
    """What the ranks of the last start wrote before the first of them failed."""


def in_ranks(world, action, timeout=30.0, max_restarts=0, watch=None):
    """What action(ranks), JSON, gives on each of `world` ranks, by rank; all are started anew when one fails.

    timeout: seconds until ranks give each other up. watch: called again and again with the process ids and the number
    of restarts, while they run; a test kills one there. Raises RanksFailed when there are no more restarts.
    """
    with tempfile.TemporaryDirectory() as folder:
        server, port = _store_server()
        try:
            for restart in range(max_restarts + 1):
                pids = [_rank(r, world, port, restart, action, timeout, Path(folder)) for r in range(world)]
                if _all_well(pids, restart, watch):
                    return [json.loads(Path(folder, f"{r}.json").read_text()) for r in range(world)]
            words = [Path(folder, f"{r}.txt").read_text() for r in range(world)]
            raise RanksFailed("\n".join(f"rank {r}: {text}" for r, text in enumerate(words)))
        finally:
            os.kill(server, signal.SIGKILL)
            os.waitpid(server, 0)


def _fork():
    with warnings.catch_warnings():
        for kind in (
            DeprecationWarning,
            RuntimeWarning,
        ):  # Python 3.12 and JAX on threads, which do no work now
            warnings.simplefilter("ignore", kind)
        pid = os.fork()
    if pid == 0:
        gc.freeze()  # what was there before is not looked through for garbage, and its memory stays shared
    return pid


def _store_server():
    """As torchrun, one store for all restarts, in a process of its own: its id, and its port."""
    reading, writing = os.pipe()
    if (pid := _fork()) == 0:
        try:
            store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
            os.write(writing, str(store.port).encode())
            while os.getppid() != 1:
                time.sleep(1)
        finally:
            os._exit(0)
    port = int(os.read(reading, 10))
    os.close(reading)
    os.close(writing)
    return pid, port


def _rank(rank, world, port, restart, action, timeout, folder):
    if (pid := _fork()) != 0:
        return pid
    code = 1
    try:
        sys.stdout = sys.stderr = (folder / f"{rank}.txt").open("w", buffering=1)
        os.dup2(sys.stderr.fileno(), 2)
        os.environ |= {
            "RANK": str(rank),
            "WORLD_SIZE": str(world),
            "LOCAL_RANK": str(rank),
            "GROUP_RANK": "0",
        }
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        os.environ |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": str(restart)}
        torch.set_num_threads(1)
        with joined("cpu", timeout) as ranks:
            (folder / f"{rank}.json").write_text(json.dumps(action(ranks)))
        code = 0
    except BaseException:  # noqa: BLE001 - whatever it was, the parent reads it
        traceback.print_exc()
    finally:
        os._exit(code)


def _all_well(pids, restart, watch):
    """Waits until all have ended, or kills the rest when one fails."""
    running = set(pids)
    while running:
        if watch is not None:
            watch(pids, restart)
        ended, status = os.waitpid(-1, os.WNOHANG)
        if ended in running:
            running.remove(ended)
            if status:
                for pid in running:
                    os.kill(pid, signal.SIGKILL)
                for pid in running:
                    os.waitpid(pid, 0)
                return False
        elif not ended:
            time.sleep(0.005)
    return True
