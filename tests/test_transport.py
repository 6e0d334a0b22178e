"""The HTTP client against servers that send exactly these bytes."""

import asyncio
import json
import re
import shutil
import ssl
import subprocess
import time
from pathlib import Path

import pytest
from fake_server_fixture import ScriptedServer, always, chunked, plain, scripted_server

from spectune.errors import BadInput, TransportError
from spectune.transport import BadStatus, HttpClient, StreamEnd
from spectune.transport.sse import SseSplitter

RECORDED = Path(__file__).parent / "recorded"
EVENTS = (
    b': keep-alive\r\n\r\ndata: {"a": 1}\n\nevent: message\nid: 7\ndata: {"b": 2}\r\n\r\n'
    b"data:no blank\n\ndata: one\ndata: two\n\nretry: 10\n\ndata: \xc3\xa4\n\ndata: [DONE]\n\n"
)
PAYLOADS = [b'{"a": 1}', b'{"b": 2}', b"no blank", b"one\ntwo", b"\xc3\xa4"]
KEY = "sk-very-secret-4711"


async def stream(
    url: str, *, api_key: str | None = None, timeout_s: float = 20
) -> tuple[StreamEnd, list[bytes], list[float]]:
    payloads: list[bytes] = []
    times: list[float] = []

    def take(payload: bytes, arrived_s: float) -> None:
        payloads.append(payload)
        times.append(arrived_s)

    async with HttpClient(url, api_key=api_key) as http:
        end = await http.stream("/v1/completions", {"stream": True}, take, timeout_s=timeout_s)
    return end, payloads, times


def split_everywhere(splitter_input: bytes) -> list[list[bytes]]:
    results = []
    for position in range(len(splitter_input) + 1):
        splitter = SseSplitter()
        found = [*splitter.feed(splitter_input[:position]), *splitter.feed(splitter_input[position:])]
        results.append([*found, *splitter.end()])
    return results


def test_events_do_not_depend_on_where_the_stream_is_cut() -> None:
    assert all(found == [*PAYLOADS, b"[DONE]"] for found in split_everywhere(EVENTS))


def test_events_fed_byte_by_byte_are_whole() -> None:
    splitter = SseSplitter()
    found = [payload for byte in EVENTS for payload in splitter.feed(bytes([byte]))]
    assert found == [*PAYLOADS, b"[DONE]"]


def test_the_same_events_arrive_over_a_socket_however_segments_fall() -> None:
    answer = chunked(EVENTS[:40], EVENTS[40:41], EVENTS[41:])
    position = 0

    async def answer_cut(request: bytes, writer: asyncio.StreamWriter) -> bool:
        return await always(answer[:position], answer[position:])(request, writer)

    async def scenario() -> None:
        nonlocal position
        async with scripted_server(answer_cut) as server, HttpClient(server.url) as http:
            for position in range(1, len(answer)):
                payloads: list[bytes] = []
                take = payloads.append
                end = await http.stream("/s", {}, lambda payload, _, take=take: take(payload), timeout_s=20)
                assert payloads == PAYLOADS, position
                assert end.done_seen
            assert server.num_connections == 1

    asyncio.run(scenario())


@pytest.mark.parametrize("path", sorted(RECORDED.glob("*/*/chat-1.http")), ids=lambda p: f"{p.parent.name}")
def test_a_recorded_engine_answer_survives_every_cut(path: Path) -> None:
    raw = path.read_bytes()
    expected = [line[6:].strip() for line in raw.split(b"\n") if line.startswith(b"data: {")]
    cuts = range(1, len(raw), 97)

    async def scenario() -> None:
        left = iter(cuts)

        async def answer(request: bytes, writer: asyncio.StreamWriter) -> bool:
            cut = next(left)
            return await always(raw[:cut], raw[cut:], close=True)(request, writer)

        async with scripted_server(answer) as server:
            for _ in cuts:
                end, payloads, _ = await stream(server.url)
                assert payloads == expected
                assert end.done_seen

    asyncio.run(scenario())


def run_stream(*segments: bytes, close: bool = False) -> tuple[StreamEnd, list[bytes], list[float]]:
    async def scenario() -> tuple[StreamEnd, list[bytes], list[float]]:
        async with scripted_server(always(*segments, close=close)) as server:
            return await stream(server.url)

    return asyncio.run(scenario())


def test_events_of_one_segment_share_its_time_stamp_and_later_ones_are_later() -> None:
    before_s = time.perf_counter()
    whole = chunked(b"data: 1\n\ndata: 2\n\n", b"data: 3\n\n")
    end, payloads, times = run_stream(whole[:-20], whole[-20:])
    assert payloads == [b"1", b"2", b"3"]
    assert times[0] == times[1] < times[2]
    assert before_s <= end.sent_s <= times[0]


def test_a_last_event_without_blank_line_counts() -> None:
    assert run_stream(chunked(b"data: 1\n\ndata: 2"))[1] == [b"1", b"2"]
    until_close = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: 1\n\ndata: 2"
    assert run_stream(until_close, close=True)[1] == [b"1", b"2"]


def test_an_answer_that_said_done_is_whole_even_if_the_connection_then_breaks() -> None:
    end, payloads, _ = run_stream(chunked(b"data: 1\n\ndata: [DONE]\n\n", end=False), close=True)
    assert end.done_seen
    assert payloads == [b"1"]


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(chunked(b"data: 1\n\n", end=False), id="between chunks"),
        pytest.param(chunked(b"data: 1\n\n", end=False) + b"10\r\ndata: ", id="inside a chunk"),
        pytest.param(plain(b"data: 1\n\n", kind="text/event-stream")[:-2], id="before its length"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-", id="inside the head"),
    ],
)
def test_a_truncated_answer_is_an_error(answer: bytes) -> None:
    with pytest.raises(TransportError, match="before the end of the answer"):
        run_stream(answer, close=True)


def test_on_event_can_end_the_stream_which_closes_the_connection() -> None:
    async def scenario() -> None:
        never_ending = chunked(b"data: 1\n\n", b"data: 2\n\n", end=False)
        async with scripted_server(always(never_ending)) as server, HttpClient(server.url) as http:
            seen: list[bytes] = []

            def take(payload: bytes, arrived_s: float) -> bool:
                seen.append(payload)
                return True

            await http.stream("/s", {}, take, timeout_s=20)
            assert seen == [b"1"]
            await asyncio.wait_for(server.client_left.wait(), 2)

    asyncio.run(scenario())


def test_several_requests_use_one_connection() -> None:
    async def scenario() -> None:
        async with scripted_server(always(plain(b'{"x": 1}'))) as server, HttpClient(server.url) as http:
            for _ in range(3):
                response = await http.request("GET", "/v1/models")
                assert response.status == 200
                assert response.json() == {"x": 1}
                assert response.headers["content-type"] == "application/json"
            assert server.num_connections == 1

    asyncio.run(scenario())


def test_a_request_carries_prefix_host_length_and_key() -> None:
    async def scenario() -> ScriptedServer:
        async with scripted_server(always(plain(b"{}"))) as server:
            async with HttpClient(server.url + "/team/a/", api_key=KEY) as http:
                await http.request("POST", "/v1/completions", {"prompt": "ä"})
            return server

    server = asyncio.run(scenario())
    head, _, body = server.requests[0].partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    assert lines[0] == "POST /team/a/v1/completions HTTP/1.1"
    assert f"Host: {server.url.removeprefix('http://')}" in lines
    assert f"Authorization: Bearer {KEY}" in lines
    assert f"Content-Length: {len(body)}" in lines
    assert json.loads(body) == {"prompt": "ä"}


def test_a_connection_that_the_server_closed_while_idle_is_replaced() -> None:
    async def scenario() -> None:
        async with (
            scripted_server(always(plain(b"{}"), close=True)) as server,
            HttpClient(server.url) as http,
        ):
            for _ in range(3):
                assert (await http.request("GET", "/")).status == 200
            assert server.num_connections == 3

    asyncio.run(scenario())


def test_a_reused_connection_that_closes_before_any_byte_is_tried_once_more_and_a_fresh_one_is_not() -> None:
    async def answer_first_only(request: bytes, writer: asyncio.StreamWriter) -> bool:
        if b"GET /first" in request:
            return await always(plain(b"{}"))(request, writer)
        return False

    async def scenario() -> None:
        async with scripted_server(answer_first_only) as server, HttpClient(server.url) as http:
            await http.request("GET", "/first")
            with pytest.raises(TransportError, match="closed before any answer"):
                await http.request("GET", "/second")
            assert [r.split()[1] for r in server.requests] == [b"/first", b"/second", b"/second"]
            with pytest.raises(TransportError, match="closed before any answer"):
                await http.request("GET", "/third")
            assert server.requests[3:] == [server.requests[3]]

    asyncio.run(scenario())


def test_the_second_try_is_on_a_fresh_connection_not_on_another_idle_one() -> None:
    async def scenario() -> None:
        answered: set[asyncio.StreamWriter] = set()

        async def once_per_connection(request: bytes, writer: asyncio.StreamWriter) -> bool:
            is_first = writer not in answered
            answered.add(writer)
            return is_first and await always(plain(b"{}"))(request, writer)

        async with scripted_server(once_per_connection) as server, HttpClient(server.url) as http:
            await asyncio.gather(http.request("GET", "/a"), http.request("GET", "/b"))
            assert server.num_connections == 2
            assert (await http.request("GET", "/c")).status == 200
            assert server.num_connections == 3

    asyncio.run(scenario())


def test_a_connection_with_bytes_that_nobody_asked_for_is_not_used_again() -> None:
    async def scenario() -> None:
        two_answers = plain(b'{"mine": 1}') + plain(b'{"mine": 0}')
        async with scripted_server(always(two_answers)) as server, HttpClient(server.url) as http:
            for _ in range(2):
                assert (await http.request("GET", "/")).json() == {"mine": 1}
            assert server.num_connections == 2

    asyncio.run(scenario())


def test_redirects_are_answers_not_followed() -> None:
    async def scenario() -> None:
        redirect = plain(b"", status="302 Found", extra="Location: /elsewhere\r\n")
        async with scripted_server(always(redirect)) as server, HttpClient(server.url) as http:
            assert (await http.request("GET", "/")).status == 302
            with pytest.raises(BadStatus, match="HTTP 302"):
                await http.stream("/", {}, lambda *_: None, timeout_s=5)
            assert all(b"/elsewhere" not in request for request in server.requests)

    asyncio.run(scenario())


def test_an_interim_answer_is_passed_over() -> None:
    assert run_stream(b"HTTP/1.1 100 Continue\r\n\r\n" + chunked(b"data: 1\n\n"))[1] == [b"1"]


def test_ipv6_literals_work() -> None:
    async def scenario() -> None:
        try:
            async with scripted_server(always(plain(b"{}")), host="::1") as server:
                async with HttpClient(server.url) as http:
                    assert (await http.request("GET", "/")).status == 200
                assert f"Host: {server.url.removeprefix('http://')}".encode() in server.requests[0]
        except OSError:
            pytest.skip("no IPv6 here")

    asyncio.run(scenario())


def test_https_is_verified_against_the_given_authority(tmp_path: Path) -> None:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("no openssl program to make a certificate with")
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run(
        [
            *(openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"),
            *("-keyout", str(key), "-out", str(cert)),
        ],
        check=True,
        capture_output=True,
    )

    async def scenario() -> None:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(cert, key)

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(chunked(b"data: 1\n\n", b"data: [DONE]\n\n"))
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
        url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        payloads: list[bytes] = []
        trusting = ssl.create_default_context(cafile=str(cert))
        async with server:
            async with HttpClient(url, ssl_context=trusting) as http:
                await http.stream("/", {}, lambda payload, _: payloads.append(payload), timeout_s=10)
            assert payloads == [b"1"]
            async with HttpClient(url) as http:
                with pytest.raises(TransportError, match="CERTIFICATE_VERIFY_FAILED"):
                    await http.request("GET", "/")

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("127.0.0.1:8000", "expected http:// or https://"),
        ("ftp://host", "expected http:// or https://"),
        ("http://", "and a host"),
        ("http://host:99999", "not valid"),
        ("http://host/a?b=1", "without '?'"),
        ("http://user:hunter2@host", "user name or password"),
        ("http://host/a b", "visible ASCII"),
    ],
)
def test_a_url_that_is_no_server_address_is_refused(url: str, message: str) -> None:
    with pytest.raises(BadInput, match=re.escape(message)) as caught:
        HttpClient(url)
    assert "hunter2" not in str(caught.value)
