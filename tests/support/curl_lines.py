"""What the curl lines of the pages send."""

import shlex


def request_of(command):
    """What curl sends: (method, path, headers, body)."""
    program, *words = shlex.split(command, comments=True)
    assert program == "curl"
    path, headers, fields, body = "", {}, [], None
    while words:
        match words.pop(0):
            case "-d":
                fields.append(words.pop(0))
            case "--json":
                body, headers["content-type"] = words.pop(0), "application/json"
            case "-H":
                name, _, value = words.pop(0).partition(": ")
                headers[name] = value
            case "-N":
                pass
            case address:
                assert address.startswith("localhost:8000/"), address
                path = address.removeprefix("localhost:8000")
    if fields:
        headers["content-type"] = "application/x-www-form-urlencoded"
        body = "&".join(fields)
    return "GET" if body is None else "POST", path, headers, body
