"""Choose the package index of PyTorch: `python tools/torch_index.py URL` prints URL if the CPU build fits this machine.

The default build of PyTorch for Linux contains NVIDIA's libraries, several GB that a machine without an NVIDIA GPU
never uses. One line on stderr prints the choice and its reason. `make` adds the printed index to pip's indexes.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import urllib.request

SECONDS = 5.0
OWN_CHOICE = ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_NO_INDEX")
"""Environment variables with which the user has already chosen an index."""


def has_nvidia_gpu() -> bool:
    """Return whether nvidia-smi runs and lists a GPU."""
    try:
        found = subprocess.run(["nvidia-smi", "-L"], capture_output=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return found.returncode == 0 and b"GPU" in found.stdout


def answers(index: str) -> bool:
    """Return whether the index serves its page for torch within `SECONDS`, including the DNS lookup."""
    outcome: list[bool] = []

    def ask() -> None:
        try:
            with urllib.request.urlopen(f"{index.rstrip('/')}/torch/", timeout=SECONDS) as page:
                outcome.append(page.status == 200)
        except (OSError, ValueError):
            outcome.append(False)

    asking = threading.Thread(target=ask, daemon=True)  # a name lookup has no timeout of its own
    asking.start()
    asking.join(SECONDS)
    return outcome == [True]


def choice(index: str) -> tuple[bool, str]:
    """Return whether to use the CPU index, and the line that explains the choice."""
    if sys.platform != "linux":
        return False, "the default index (only the Linux build brings NVIDIA's libraries)"
    if chosen := next((name for name in OWN_CHOICE if os.environ.get(name)), None):
        return False, f"the index that {chosen} sets"
    if has_nvidia_gpu():
        return False, "the default index, with CUDA (nvidia-smi lists a GPU)"
    if not answers(index):
        return False, f"the default index ({index} did not answer within {SECONDS:.0f} seconds)"
    return True, f"the CPU build from {index} (nvidia-smi lists no GPU)"


def main(index: str) -> int:
    """Print the URL of the index if it fits, and print the reason on stderr."""
    use, reason = choice(index)
    print(f"torch: {reason}", file=sys.stderr)
    if use:
        print(index)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
