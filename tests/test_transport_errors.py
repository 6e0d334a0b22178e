"""What the HTTP client says when an exchange fails, and what it leaves behind."""

import asyncio
import socket
import time

import pytest
from fake_server_fixture import Answer, always, chunked, plain, scripted_server

from spectune.engines.json_bodies import first_model_id
from spectune.errors import BadInput, TransportError
from spectune.transport import BadStatus, HttpClient
from spectune.transport.exchange import MAX_BODY_BYTES

KEY = "sk-very-secret-4711"


def failure_of_stream(answer: Answer, *, api_key: str | None = None, timeout_s: float = 20) -> TransportError:
    async def scenario() -> TransportError:
        async with scripted_server(answer) as server, HttpClient(server.url, api_key=api_key) as http:
            with pytest.raises(TransportError) as caught:
                await http.stream("/v1/completions", {}, lambda *_: None, timeout_s=timeout_s)
            assert server.url in str(caught.value)
            return caught.value

    return asyncio.run(scenario())


async def silence(request: bytes, writer: asyncio.StreamWriter) -> bool:
    return True


def test_a_status_is_reported_with_the_first_500_bytes_of_the_body() -> None:
    error = failure_of_stream(always(plain(b"model not found " + b"x" * 2000, status="404 Not Found")))
    assert isinstance(error, BadStatus)
    assert error.status == 404
    assert "HTTP 404: model not found xxx" in str(error)
    assert str(error).count("x") == 500 - len("model not found ")


def test_an_answer_that_is_no_event_stream_is_shown() -> None:
    error = failure_of_stream(always(plain(b'{"object": "chat.completion"}')))
    assert "not an event stream" in str(error)
    assert "chat.completion" in str(error)


@pytest.mark.parametrize("status", ["401 Unauthorized", "200 OK"])
def test_the_api_key_is_in_no_error_even_if_the_server_repeats_it(status: str) -> None:
    for padding in range(450, 520):  # the cut at 500 bytes must not leave half a key either
        body = b"y" * padding + KEY.encode() + b" is wrong"
        error = failure_of_stream(always(plain(body, status=status)), api_key=KEY)
        assert "sk-" not in str(error)
        assert "4711" not in str(error).partition("/v1/")[2]  # the port before it may hold these digits


def test_the_api_key_is_in_no_repr_and_no_message_about_itself() -> None:
    assert KEY not in repr(HttpClient("http://h", api_key=KEY))
    for bad in (KEY + "\r\nX: y", KEY + " ", KEY + "ä"):
        with pytest.raises(BadInput) as caught:
            HttpClient("http://h", api_key=bad)
        assert KEY not in str(caught.value)


def test_a_refused_connection_names_the_address() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"

        async def scenario() -> None:
            async with HttpClient(url, api_key=KEY) as http:
                await http.request("GET", "/health")

        with pytest.raises(TransportError, match=f"GET {url}/health: cannot connect") as caught:
            asyncio.run(scenario())
    assert KEY not in str(caught.value)


def test_a_silent_server_times_out_and_is_hung_up_on() -> None:
    async def scenario() -> None:
        async with scripted_server(silence) as server, HttpClient(server.url) as http:
            start_s = time.monotonic()
            with pytest.raises(
                TransportError, match=r"no complete answer within 0\.2 s \(0 bytes received\)"
            ):
                await http.request("GET", "/", timeout_s=0.2)
            assert time.monotonic() - start_s < 2
            await asyncio.wait_for(hung_up(server.requests), 2)

    async def hung_up(requests: list[bytes]) -> None:
        while not requests:
            await asyncio.sleep(0)

    asyncio.run(scenario())


def test_a_stream_that_stalls_times_out_with_what_had_come() -> None:
    stalled = chunked(b"data: 1\n\n", end=False)
    error = failure_of_stream(always(stalled), timeout_s=0.2)
    assert f"({len(stalled)} bytes received)" in str(error)


def test_cancelling_a_stream_closes_its_connection_at_once() -> None:
    async def scenario() -> None:
        arrived = asyncio.Event()
        stalling = always(chunked(b"data: 1\n\n", end=False))
        async with scripted_server(stalling) as server, HttpClient(server.url) as http:
            task = asyncio.create_task(http.stream("/", {}, lambda *_: arrived.set(), timeout_s=60))
            await arrived.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.wait_for(server.client_left.wait(), 2)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "answer",
    [b"220 smtp.example.org ESMTP\r\n", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"],
    ids=["another protocol", "a bad chunk length"],
)
def test_bytes_that_are_no_http_are_named(answer: bytes) -> None:
    assert "malformed HTTP answer" in str(failure_of_stream(always(answer)))


def test_a_compressed_answer_is_refused() -> None:
    answer = plain(b"\x1f\x8b", kind="text/event-stream", extra="Content-Encoding: gzip\r\n")
    assert "'gzip'" in str(failure_of_stream(always(answer)))


def test_an_endless_head_is_refused() -> None:
    endless = b"HTTP/1.1 200 OK\r\n" + b"".join(b"X-%d: y\r\n" % n for n in range(40_000))
    assert "head of the answer" in str(failure_of_stream(always(endless)))


def test_an_endless_event_is_refused() -> None:
    piece = b"z" * (1 << 20)
    answer = chunked(b"data: ", *[piece] * 17, end=False)
    assert "event of the stream is longer" in str(failure_of_stream(always(answer)))


def test_a_body_over_the_limit_is_refused() -> None:
    async def scenario() -> None:
        body = bytes(MAX_BODY_BYTES + 1)
        async with scripted_server(always(plain(body))) as server, HttpClient(server.url) as http:
            with pytest.raises(TransportError, match="longer than"):
                await http.request("GET", "/")

    asyncio.run(scenario())


def test_a_body_that_is_no_json_is_an_error_only_when_json_is_asked_for() -> None:
    async def scenario() -> None:
        async with scripted_server(always(plain(b"<html>"))) as server, HttpClient(server.url) as http:
            response = await http.request("GET", "/")
            assert response.text == "<html>"
            with pytest.raises(TransportError, match="is not JSON"):
                response.json()

    asyncio.run(scenario())


def test_a_mistake_in_on_event_is_raised_not_swallowed() -> None:
    async def scenario() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)  # the loop reports it as well
        async with scripted_server(always(chunked(b"data: 1\n\n"))) as server, HttpClient(server.url) as http:
            with pytest.raises(ZeroDivisionError):
                await http.stream("/", {}, lambda *_: bool(1 / 0), timeout_s=5)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n\x81\x05hello",
        b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
    ],
)
def test_a_server_that_switches_protocols_is_an_error_at_once(answer: bytes) -> None:
    async def switch(request: bytes, writer: asyncio.StreamWriter) -> bool:
        writer.write(answer)
        return True

    started = time.perf_counter()
    error = failure_of_stream(switch)
    assert time.perf_counter() - started < 10
    assert "another protocol" in str(error)


def test_a_model_id_with_escapes_is_an_answer_like_any_other() -> None:
    body = b'{"data": [{"id": "m\\u001b[31m\\u009b2J\\ud800"}]}'

    async def scenario() -> object:
        async with scripted_server(always(plain(body))) as server, HttpClient(server.url) as http:
            return (await http.request("GET", "/v1/models")).json()

    assert first_model_id(asyncio.run(scenario())) == "m\x1b[31m\x9b2J\ud800"
