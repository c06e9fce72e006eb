"""The error class of attendo for its users."""

import errno

NOT_NUMBERS = (
    "the model computes what is no number (NaN): its training has diverged, its weights are damaged, or a part of your"
    " own gives NaN or +inf"
)


class AttendoError(Exception):
    """An error that the user can fix: its one line names what failed, what was found, and what to do.

    The command line prints it as `error: …` on stderr, without a traceback, and exits with code 2.
    """


def is_failure(error: BaseException) -> bool:
    """Return whether an exception is a failure of code: any but Ctrl-C and exits, including a panic of a Rust library.

    >>> is_failure(ValueError()), is_failure(KeyboardInterrupt())
    (True, False)
    """
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"


def port_refused(error: OSError, port: int, host: str = "") -> AttendoError:
    """The message if a port cannot be opened; `host` adds a hint about the address.

    >>> print(port_refused(OSError(errno.EADDRINUSE, "Address already in use"), 8000))
    port 8000 is in use; choose another by `port`, or `port` 0 for any free one
    """
    if error.errno == errno.EADDRINUSE:
        return AttendoError(f"port {port} is in use; choose another by `port`, or `port` 0 for any free one")
    # create_server adds to the words which address it tried
    why = (error.strerror or str(error)).partition(" (while attempting")[0]
    if host:
        return AttendoError(f"{host}, port {port} can't be had ({why}); choose others by `host` and `port`")
    return AttendoError(f"port {port} can't be had ({why}); choose another by `port`")
