"""The one error that attendo raises for its users."""


class AttendoError(Exception):
    """What went wrong and what to do about it, in one line.

    The line names the file, row or field, the value found there and the remedy. The command line prints it as
    `error: …` on stderr, without a traceback, and ends with exit code 2.
    """
