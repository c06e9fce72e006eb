"""The one error that attendo raises for its users, and the command that installs an extra."""

import errno
from collections.abc import Sequence
from pathlib import Path

NOT_NUMBERS = (
    "the model output is non-finite (NaN or infinity): training diverged, the weights are damaged, or a "
    "custom module returns NaN or +inf"
)


class AttendoError(Exception):
    """An error that the user can fix.

    The message is one line: what failed, what was found, and what to do. The command line prints it as `error: …` on
    stderr, without a traceback, and exits with code 2.
    """


def diverged(message: str) -> AttendoError:
    """Return an error caused by a FloatingPointError, for a loss, gradient, weight or output that is non-finite."""
    error = AttendoError(message)
    error.__cause__ = FloatingPointError(message)
    return error


def install_command(extra: str) -> str:
    """Return the pip command that installs an extra of attendo, for example "serve", in the current folder.

    The command names the source from which attendo itself was installed: a checkout, a repository URL or the package.

    Args:
        extra: The name of the extra in pyproject.toml.
    """
    import json
    from importlib.metadata import PackageNotFoundError, distribution
    from urllib.parse import urlsplit
    from urllib.request import url2pathname

    folder = Path(__file__).resolve().parents[2]  # a checkout that is imported in place
    if not (folder / "pyproject.toml").is_file():
        try:
            origin = json.loads(distribution("attendo").read_text("direct_url.json") or "{}")
        except (PackageNotFoundError, ValueError):
            origin = {}
        if "vcs_info" in origin:
            return f'pip install "attendo[{extra}] @ {origin["vcs_info"]["vcs"]}+{origin["url"]}"'
        folder = Path(url2pathname(urlsplit(origin.get("url", "")).path))
    if not folder.name or not folder.exists():
        return f'pip install "attendo[{extra}]"'
    return f'pip install "{"." if folder == Path.cwd() else folder}[{extra}]"'


def nearest(name: str, known: Sequence[str], others: str = "available") -> str:
    """Return a hint for an unknown name: the most similar known name, or the known names without a dot.

    >>> nearest("q_porj", ["q_proj", "v_proj"]), nearest("x", ["q_proj", "v_proj"])
    ('did you mean q_proj?', 'available: q_proj, v_proj')
    """
    from difflib import get_close_matches

    like = get_close_matches(name, known, n=1)
    shortest = [place for place in known if "." not in place]
    return f"did you mean {like[0]}?" if like else f"{others}: {', '.join(shortest)}"


def is_failure(error: BaseException) -> bool:
    """Return whether an exception is an error in code. A panic of a Rust library is one, but Ctrl-C and exits are not.

    >>> is_failure(ValueError()), is_failure(KeyboardInterrupt())
    (True, False)
    """
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"


def port_refused(error: OSError, port: int, host: str = "") -> AttendoError:
    """Return the error for a port that cannot be opened. If `host` is given, the message also suggests another address.

    >>> print(port_refused(OSError(errno.EADDRINUSE, "Address already in use"), 8000))
    port 8000 is in use. Choose another with `port` (0: any free port)
    """
    if error.errno == errno.EADDRINUSE:
        return AttendoError(f"port {port} is in use. Choose another with `port` (0: any free port)")
    # socket.create_server appends the address that it tried to the error text
    why = (error.strerror or str(error)).partition(" (while attempting")[0]
    if host:
        return AttendoError(f"cannot listen on {host}, port {port} ({why}). Choose others with `host` and `port`")
    return AttendoError(f"cannot listen on port {port} ({why}). Choose another with `port`")
