"""Connections: slow, silent, large and odd ones are closed, and hurt nobody."""

import contextlib
import json
import time
from types import SimpleNamespace

import pytest
from served_process import Server, until, until_closed

from attendo.serving import middleware, run, sockets


def test_a_head_that_does_not_come_is_not_waited_for(tmp_path):
    def prepare():
        run.Connections = lambda most: sockets.Connections(most, head_seconds=0.2)

    with Server(tmp_path, prepare=prepare) as server:
        silent, begun = server.raw(), server.raw(b"GET /livez HTTP/1.1\r\nHost: loc")
        kept = server.raw(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
        got = b""
        while not got.endswith(b"}"):
            got += kept.recv(1000)
        assert got.startswith(b"HTTP/1.1 200")
        kept.sendall(b"GET /li")  # the head of a second request on the same connection
        for connection in (silent, begun, kept):
            assert until_closed(connection).startswith(b"HTTP/1.1 408")
        working = server.raw(b"GET /test/slow?seconds=0.4 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert until_closed(working).endswith(b"done")


def test_heads_have_a_size_and_nonsense_is_refused(tmp_path):
    with Server(tmp_path) as server:
        large = server.raw(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n")
        with contextlib.suppress(ConnectionError):
            for _ in range(40):
                large.sendall(b"X-Large: " + b"x" * 4000 + b"\r\n")
        assert until_closed(large)[:12] in (b"HTTP/1.1 431", b"")  # or the reset came first
        for data in (
            b"\x16\x03\x01\x02\x00",
            b"GET \xff\xfe HTTP/1.1\r\n\r\n",
            b"\0\0\0\0",
            b"GET /livez HTTP/9\r\n\r\n",
            b"CONNECT localhost:80 HTTP/1.1\r\nHost: localhost\r\n\r\n",
            b"GET /livez HTTP/1.1\r\nHost: localhost\r\nX: \0\r\n\r\n",
            b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n",
        ):
            answer = until_closed(server.raw(data))
            assert answer.startswith(b"HTTP/1.1 400")
            assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]
        upgrade = b"Connection: upgrade\r\nUpgrade: "
        for data in (upgrade + b"websocket", upgrade + b"h2c", b"X: \xff"):
            plain = server.raw(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n" + data + b"\r\n\r\n")
            assert plain.recv(100).startswith(b"HTTP/1.1 200")
        options = b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        answer = until_closed(server.raw(options))
        assert answer.startswith(b"HTTP/1.1 404")


def test_where_there_are_too_many_connections_the_one_that_waited_longest_goes(tmp_path):
    def prepare():
        run.Connections = lambda most: sockets.Connections(4)

    with Server(tmp_path, prepare=prepare) as server:
        idle = [server.raw(b"GET /") for _ in range(3)]
        working = server.raw(b"GET /test/slow?seconds=0.5 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        time.sleep(0.1)
        assert server.get("/livez")[0] == 200
        assert until_closed(idle[0]) == b""
        idle[1].settimeout(0.05)
        with pytest.raises(TimeoutError):
            idle[1].recv(1)
        assert until_closed(working).endswith(b"done")


def test_with_every_connection_at_work_one_more_is_refused():
    connections = sockets.Connections(1)
    connections.open = 2
    assert not connections.make_room()
    aborted = []

    class Waiting:
        transport = SimpleNamespace(abort=lambda: aborted.append(1))

    connections.waiting[Waiting()] = None
    assert connections.make_room()
    assert (aborted, connections.waiting) == ([1], {})


def test_a_refused_body_does_not_break_the_pipe(tmp_path):
    with Server(tmp_path) as server:
        server.until_ready()
        for _ in range(3):
            connection = server.connection()
            connection.request("POST", "/test/slow", b"x" * 3_000_000)
            response = connection.getresponse()
            assert (response.status, "1,048,576" in json.loads(response.read())["error"]) == (413, True)


def test_a_client_that_does_not_read_is_let_go(tmp_path):
    def prepare():
        middleware.SENT_SECONDS = 0.2

    def files():
        told = server.get("/metrics")[1].decode().splitlines()
        return [line for line in told if line.startswith("process_open_fds ")]

    with Server(tmp_path, prepare=prepare) as server:
        server.until_ready()
        before = files()
        server.raw(b"GET /test/flood HTTP/1.1\r\nHost: localhost\r\n\r\n")
        until(lambda: [line["status"] for line in server.events("request")].count(499) == 1)
        until(lambda: files() == before)


HEAD = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n"
SLOW = b"GET /test/slow?seconds=30 HTTP/1.1\r\nHost: localhost\r\n\r\n"
CHUNKED = b"POST /test/slow HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("first", "endless"),
    [
        (HEAD + b"\r\n" + SLOW + HEAD, b"a: b\r\n"),  # while an earlier request is answered
        (SLOW + HEAD + b"a: ", b"b"),
        (CHUNKED + b"1\r\nx\r\n0\r\n", b"a: b\r\n"),  # trailers
        (CHUNKED + b"1\r\nx\r\n0\r\na: ", b"b"),
        (CHUNKED + b"1;", b"e"),  # a chunk's extension
        (SLOW, HEAD + b"\r\n"),  # requests that wait
    ],
)
def test_nothing_that_comes_without_end_is_held(bounded, first, endless):
    connection = bounded.raw(first)
    with pytest.raises(ConnectionError):
        for _ in range(100):
            connection.sendall(endless * (60_000 // len(endless)))


@pytest.fixture(scope="module")
def bounded(tmp_path_factory):
    with Server(tmp_path_factory.mktemp("bounded")) as server:
        server.until_ready()
        yield server
        assert not server.events("fault")


def test_a_head_has_a_hundred_headers_and_a_hundred_requests_may_wait(bounded):
    last = b"Connection: close\r\n\r\n"
    for n, status in ((98, b"200"), (99, b"431")):
        answer = until_closed(bounded.raw(HEAD + b"a: b\r\n" * n + last))
        assert answer.startswith(b"HTTP/1.1 " + status)
    answers = until_closed(bounded.raw((HEAD + b"\r\n") * 100 + HEAD + last))
    assert answers.count(b"HTTP/1.1 200") == 101


def test_a_body_is_not_lost_to_an_upgrade(bounded):
    """Java's HttpClient asks so for HTTP/2; httptools takes the body for the other protocol's."""
    upgrade = b"Connection: Upgrade\r\nUpgrade: h2c\r\n"
    for kind in (b"Content-Length: 2\r\n\r\n{}", b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"):
        head = b"POST /classify HTTP/1.1\r\nHost: localhost\r\n"
        answer = until_closed(bounded.raw(head + upgrade + kind))
        assert answer.startswith(b"HTTP/1.1 400")
        assert "without Upgrade" in json.loads(answer.partition(b"\r\n\r\n")[2])["error"]


def test_a_client_that_leaves_with_a_request_waiting_is_missed(tmp_path):
    with Server(tmp_path) as server:
        stream = b"GET /test/stream?seconds=0.5 HTTP/1.1\r\nHost: localhost\r\n\r\n"
        connection = server.raw(stream * 2)
        assert connection.recv(100)
        connection.close()
        server.until_event("request")
        assert [line["status"] for line in server.events("request")] == [499]
        assert not server.events("fault")
