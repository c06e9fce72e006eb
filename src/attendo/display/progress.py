"""The progress of long-running work on stderr: one line that is redrawn on a terminal, or plain lines in a pipe."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import IO, TYPE_CHECKING, cast

from attendo.display.width import shown

if TYPE_CHECKING:
    from rich.live import Live

LIVE_EVERY, PLAIN_EVERY = 0.2, 10.0
"""The number of seconds between progress lines on a terminal and in a pipe."""
WIDTH = 79


class ProgressLine:
    """The latest progress message. On a terminal (`is_live`), each message replaces the previous message."""

    def __init__(self):
        self.is_live = sys.stderr.isatty()
        self.every = LIVE_EVERY if self.is_live else PLAIN_EVERY
        self._live: Live | None = None

    def show(self, line: str) -> None:
        """Replace the displayed line on a terminal, or print a new line in a pipe."""
        if not self.is_live:
            sys.stderr.write(f"{line}\n")
            sys.stderr.flush()
            return
        from rich.text import Text

        if self._live is None:
            self._live = _begun()
        self._live.update(Text(shown(line), no_wrap=True, overflow="crop"), refresh=True)

    def clear(self) -> None:
        """Remove the line from the terminal."""
        if self._live is not None:
            self._live.stop()
            self._live = None


def _begun() -> Live:
    """Return a started live line of rich. It bypasses `escaping`, because it writes terminal control codes."""
    from rich.console import Console
    from rich.live import Live

    stderr = sys.stderr
    file = SimpleNamespace(write=lambda text: type(stderr).write(stderr, text), flush=stderr.flush)
    console = Console(file=cast(IO[str], file), force_terminal=True, color_system=None, width=WIDTH, _environ={})
    live = Live(console=console, auto_refresh=False, transient=True, redirect_stdout=False, redirect_stderr=False)
    live.start()
    console.show_cursor(True)  # otherwise a killed process would leave the cursor hidden
    return live
