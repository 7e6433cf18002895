"""The local API as clients, strangers and broken programs meet it: a real server on a real socket."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest

from kvsync.config import Home
from kvsync.daemon import endpoint
from kvsync.daemon.api import LocalApi
from kvsync.daemon.board import JobBoard
from kvsync.daemon.client import DaemonClient
from kvsync.daemon.jobs import JobQueue
from kvsync.daemon.messages import API_VERSION, MAX_REQUEST_BYTES, JobKind, JobState, Status, Step, new_job_id
from kvsync.daemon.transfer_params import PullParams
from kvsync.errors import KvsyncError, UnavailableError
from kvsync_protocol.errors import CodedError, VersionError

PULL = PullParams("lab", "team/handbook")
NOBODY = 65534


class Api:
    """A running local API without workers behind it: the test is the worker."""

    def __init__(self, home: Home, board: JobBoard, queue: JobQueue) -> None:
        self.home = home
        self.board = board
        self.queue = queue
        self.client = DaemonClient(home)
        self.shutdowns = 0

    def status(self) -> Status:
        return Status(
            os.getpid(), "1", str(self.home.root), "127.0.0.1:1", "k", "absent", None, 0, self.queue.counts()
        )

    def shutdown(self) -> None:
        self.shutdowns += 1

    async def ask(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """A synchronous client call, beside the loop."""
        return await asyncio.to_thread(call, *arguments)

    async def raw(self, request: bytes) -> tuple[int, dict[str, str], Any]:
        """Send bytes as they are; status, headers and JSON body of the answer."""
        reader, writer = await asyncio.open_unix_connection(self.home.socket)
        try:
            writer.write(request)
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])}
            body = await reader.readexactly(int(headers.get("content-length", 0)))
            is_json = headers.get("content-type", "").startswith("application/json")
            return int(head[0].split()[1]), headers, json.loads(body) if is_json else body
        finally:
            writer.close()


@asynccontextmanager
async def serving(home: Home, *, owner: int) -> AsyncIterator[Api]:
    with closing(JobQueue.open(home.jobs_file)) as queue, closing(endpoint.listen(home.socket)) as server:
        board = JobBoard(queue)
        api = Api(home, board, queue)
        async with LocalApi(board, api.status, api.shutdown, owner=owner).serve(server):
            yield api
            board.close()


@pytest.fixture
async def api(home: Home) -> AsyncIterator[Api]:
    async with serving(home, owner=os.geteuid()) as api:
        yield api


def get(path: str, *headers: str, method: str = "GET") -> bytes:
    lines = [f"{method} {path} HTTP/1.1", *(headers or ["Host: kvsync"]), "", ""]
    return "\r\n".join(lines).encode()


def post(path: str, body: bytes) -> bytes:
    return get(path, "Host: kvsync", f"Content-Length: {len(body)}", method="POST") + body


async def test_status_answers_with_what_the_daemon_knows(api: Api) -> None:
    assert await api.ask(api.client.running)
    assert (await api.ask(api.client.status))["pid"] == os.getpid()


async def test_a_job_is_submitted_followed_and_its_result_returned(api: Api) -> None:
    job = await api.ask(api.client.submit, JobKind.PULL, PULL)
    seen: list[tuple[str, int, int, str]] = []
    waiting = asyncio.create_task(api.ask(api.client.wait, job, lambda *step: seen.append(step)))
    taken, params = await api.board.take([JobKind.PULL])
    assert (taken.id, params) == (job, PULL)
    with api.board.running(job, lambda: None):
        api.board.report(job, Step("pull", 5, 10, "bytes"))
        await asyncio.sleep(0.3)
        api.board.report(job, Step("pull", 10, 10, "bytes"))
        api.board.finish(job, JobState.DONE, result={"bytes": 10, "mb_per_s": 12.5})
    async with asyncio.timeout(20):
        assert await waiting == {"bytes": 10, "mb_per_s": 12.5}
    assert seen == [("pull", 5, 10, "bytes"), ("pull", 10, 10, "bytes")]
    assert await api.ask(api.client.wait, job) == {"bytes": 10, "mb_per_s": 12.5}  # again, after its end
    assert [found.id for found in await api.ask(api.client.jobs)] == [job]


async def test_a_job_s_error_is_raised_where_it_is_waited_for(api: Api) -> None:
    from kvsync.failure import Failure

    job = await api.ask(api.client.submit, "pull", PULL.as_json())
    await api.board.take([JobKind.PULL])
    error = UnavailableError("peer.unreachable", "no answer", hint="start it", peer="lab")
    api.board.finish(job, JobState.FAILED, failure=Failure.of(error))
    with pytest.raises(UnavailableError) as caught:
        await api.ask(api.client.wait, job)
    assert (caught.value.code, caught.value.hint, caught.value.fields) == (error.code, "start it", {"peer": "lab"})


async def test_a_cancelled_job_says_so_to_whoever_waits(api: Api) -> None:
    job = await api.ask(api.client.submit, JobKind.PULL, PULL)
    waiting = asyncio.create_task(api.ask(api.client.wait, job))
    await asyncio.sleep(0.1)
    assert (await api.ask(api.client.cancel, job)).state is JobState.CANCELLED
    with pytest.raises(KvsyncError) as caught:
        await waiting
    assert caught.value.code == "job.cancelled"


async def test_events_are_complete_lines_and_can_be_taken_up_again(api: Api) -> None:
    job = await api.ask(api.client.submit, JobKind.PULL, PULL)
    first = api.client.events(job)
    assert (await api.ask(next, first)).state is JobState.QUEUED
    first.close()
    await api.board.take([JobKind.PULL])
    again = api.client.events(job)
    assert (await api.ask(next, again)).state is JobState.RUNNING
    api.board.finish(job, JobState.DONE, result={})
    assert [state.state for state in await api.ask(list, again)] == [JobState.DONE]


async def test_a_client_that_leaves_in_the_middle_of_a_stream_harms_nobody(api: Api) -> None:
    job = await api.ask(api.client.submit, JobKind.PULL, PULL)
    for _ in range(5):
        events = api.client.events(job)
        await api.ask(next, events)
        events.close()
    await api.board.take([JobKind.PULL])
    api.board.finish(job, JobState.DONE, result={})
    assert await api.ask(api.client.wait, job) == {}


async def test_shutdown_is_passed_on_and_answered(api: Api) -> None:
    assert await api.ask(api.client.shutdown) == os.getpid()
    assert api.shutdowns == 1


@pytest.mark.parametrize(
    ("request_", "status", "code"),
    [
        (get("/jobs/0123456789abcdef"), 404, "job.unknown_id"),
        (get("/jobs/0123456789abcdef/events"), 404, "job.unknown_id"),
        (post("/jobs/0123456789abcdef/cancel", b""), 404, "job.unknown_id"),
        (get("/jobs/..%2f..%2fetc"), 400, "job.id"),
        (get("/nothing"), 404, "api.route"),
        (get("/"), 404, "api.route"),
        (get("/status", method="POST"), 405, "api.route"),
        (get("/shutdown"), 405, "api.route"),
        (get("/status", method="OPTIONS"), 405, "api.route"),
        (post("/jobs", b""), 400, "json.syntax"),
        (post("/jobs", b"[]"), 400, "json.not_object"),
        (post("/jobs", b'{"id":1,"id":2}'), 400, "json.duplicate_key"),
        (post("/jobs", b'{"id":"0123456789abcdef","kind":"guess","params":{}}'), 400, "job.kind"),
        (post("/jobs", b'{"id":"0123456789abcdef","kind":"pull","params":{}}'), 400, "job.missing"),
        (post("/jobs", b'{"id":"x","kind":"pull","params":{}}'), 400, "job.id"),
        (post("/jobs", b'{"id":"0123456789abcdef","kind":"pull","params":{},"more":1}'), 400, "job.unknown"),
        (get("/status", "Host: localhost"), 403, "api.host"),
        (get("/status", "Host: kvsync.example"), 403, "api.host"),
        (get("/status", "Host: kvsync:80"), 403, "api.host"),
        (get("/nothing", "Host: evil"), 403, "api.host"),
        (get("/status", "Host:"), 403, "api.host"),
        (get("/status", "Host: kvsync", "Origin: http://evil.example"), 403, "api.origin"),
        (get("/status", "Host: kvsync", "Origin: null"), 403, "api.origin"),
        (get("/shutdown", "Host: kvsync", "Sec-Fetch-Site: cross-site", method="POST"), 403, "api.origin"),
        (get("/jobs", "Host: kvsync", "Referer: http://kvsync/"), 403, "api.origin"),
        (get("/shutdown", "Host: kvsync", "Origin: http://kvsync", method="OPTIONS"), 403, "api.origin"),
        (get("/status", "Host: kvsync", f"Content-Length: {MAX_REQUEST_BYTES + 1}"), 200, None),
    ],
)
async def test_what_is_not_served_has_a_code_and_no_cors(
    api: Api, request_: bytes, status: int, code: str | None
) -> None:
    found, headers, body = await api.raw(request_)
    assert found == status
    assert not [name for name in headers if name.startswith("access-control")]
    assert headers["x-kvsync-api"] == str(API_VERSION)
    if code is not None:
        assert body["error"]["code"] == code
        assert body["error"]["message"]
    assert api.queue.recent(9) == []


async def test_an_oversized_body_is_refused_while_it_arrives(api: Api) -> None:
    head = get("/jobs", "Host: kvsync", f"Content-Length: {10**12}", method="POST")
    status, _, body = await api.raw(head + b"x" * (MAX_REQUEST_BYTES + 1024 * 1024))
    assert (status, body["error"]["code"]) == (413, "api.too_large")
    chunk = b"%x\r\n" % (MAX_REQUEST_BYTES + 1) + b"x" * (MAX_REQUEST_BYTES + 1) + b"\r\n0\r\n\r\n"
    head = get("/jobs", "Host: kvsync", "Transfer-Encoding: chunked", method="POST")
    status, _, body = await api.raw(head + chunk)
    assert (status, body["error"]["code"]) == (413, "api.too_large")
    assert await api.ask(api.client.running)


@pytest.mark.parametrize(
    "noise",
    [
        b"\x16\x03\x01\x02\x00\x01",
        b"GET\r\n\r\n",
        b"GET /status HTTP/9.9\r\n\r\n",
        b"GET /" + b"a" * 20_000 + b"\r\n",
    ],
)
async def test_noise_is_answered_or_cut_off_and_the_next_client_served(api: Api, noise: bytes) -> None:
    reader, writer = await asyncio.open_unix_connection(api.home.socket)
    writer.write(noise + b"\r\n\r\n")
    writer.write_eof()
    async with asyncio.timeout(20):
        answer = await reader.read()
    writer.close()
    assert not answer.startswith(b"HTTP/1.1 2")
    assert await api.ask(api.client.running)


async def test_the_largest_document_fits_and_a_larger_one_is_refused_before_it_is_sent(api: Api) -> None:
    from kvsync.daemon.params import MAX_DOCUMENT_BYTES, ComputeParams

    text = ("a line of sixty-three characters, as a document may have them, \n" * 65536)[:MAX_DOCUMENT_BYTES]
    assert len(text) == MAX_DOCUMENT_BYTES
    job = await api.ask(api.client.submit, JobKind.COMPUTE, ComputeParams(Path("/m"), text))
    _, params = await api.board.take([JobKind.COMPUTE])
    assert isinstance(params, ComputeParams)
    assert params.text == text
    assert (await api.ask(api.client.job, job)).params["text_bytes"] == MAX_DOCUMENT_BYTES
    with pytest.raises(CodedError) as caught:
        ComputeParams(Path("/m"), text + "x")
    assert caught.value.code == "job.document_size"


@pytest.mark.parametrize("hosts", [["Accept: */*"], ["Host: kvsync", "Host: evil"], ["Host: kvsync", "Host: kvsync"]])
async def test_a_request_without_exactly_one_host_gets_no_further_than_the_parser(api: Api, hosts: list[str]) -> None:
    found, _, _ = await api.raw(get("/shutdown", *hosts, method="POST"))
    assert found == 400
    assert api.shutdowns == 0


async def test_a_user_who_is_not_the_owner_is_refused(home: Home) -> None:
    async with serving(home, owner=os.geteuid() + 1) as api:
        for call in (api.client.status, api.client.jobs, api.client.shutdown):
            with pytest.raises(CodedError) as caught:
                await api.ask(call)
            assert caught.value.code == "api.other_user"
        assert api.shutdowns == 0


STRANGER = """
import os, socket, sys
folder = os.open(sys.argv[1], os.O_PATH)
os.fchdir(folder)
if os.geteuid() == 0:
    os.setgid(int(sys.argv[2]))
    os.setuid(int(sys.argv[2]))
client = socket.socket(socket.AF_UNIX)
client.connect("api.sock")
client.sendall(b"POST /shutdown HTTP/1.1\\r\\nHost: kvsync\\r\\nConnection: close\\r\\n\\r\\n")
while data := client.recv(4096):
    sys.stdout.buffer.write(data)
"""


async def test_another_user_s_process_is_refused_even_where_directory_and_socket_are_open(home: Home) -> None:
    """As root the process really changes its user; others cannot, so there the daemon's owner is another."""
    owner = 0 if os.geteuid() == 0 else os.geteuid() + 1
    async with serving(home, owner=owner) as api:
        home.daemon_dir.chmod(0o711)
        home.socket.chmod(0o666)
        answer = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-c", STRANGER, str(home.daemon_dir), str(NOBODY)],
            check=True,
            capture_output=True,
        )
        assert b" 403 " in answer.stdout.splitlines()[0]
        assert b"api.other_user" in answer.stdout
        assert api.shutdowns == 0


async def test_a_daemon_of_another_version_is_named(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    from kvsync.daemon import client

    monkeypatch.setattr(client, "API_VERSION", client.API_VERSION + 1)
    with pytest.raises(VersionError) as caught:
        await api.ask(api.client.status)
    assert caught.value.code == "version.api"
    assert "kvsync daemon stop" in caught.value.hint


async def test_a_silent_daemon_is_told_from_one_that_does_not_run(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kvsync.daemon import client

    monkeypatch.setattr(client, "REQUEST_TIMEOUT_S", 0.1)
    assert not DaemonClient(home).running()
    with closing(endpoint.listen(home.socket)), pytest.raises(UnavailableError) as caught:
        await asyncio.to_thread(DaemonClient(home).status)
    assert caught.value.code == "daemon.silent"


async def test_waiting_ends_when_the_daemon_goes_and_does_not_come_back(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kvsync.daemon import client

    monkeypatch.setattr(client, "PATIENCE_S", 0.3)
    async with serving(home, owner=os.geteuid()) as api:
        job = await api.ask(api.client.submit, JobKind.PULL, PULL)
        waiting = asyncio.create_task(api.ask(api.client.wait, job))
        await asyncio.sleep(0.1)
    with pytest.raises(UnavailableError) as caught:
        await waiting
    assert caught.value.code == "daemon.not_running"
    assert "the job goes on" in caught.value.hint


async def test_waiting_goes_on_with_the_daemon_that_comes_next(home: Home) -> None:
    async with serving(home, owner=os.geteuid()) as api:
        job = await api.ask(api.client.submit, JobKind.PULL, PULL)
        waiting = asyncio.create_task(api.ask(api.client.wait, job))
        await asyncio.sleep(0.1)
    async with serving(home, owner=os.geteuid()) as api:
        await api.board.take([JobKind.PULL])
        api.board.finish(job, JobState.DONE, result={"bytes": 3})
        async with asyncio.timeout(20):
            assert await waiting == {"bytes": 3}


async def test_an_unknown_job_is_not_waited_for(api: Api) -> None:
    with pytest.raises(CodedError) as caught:
        await api.ask(api.client.wait, new_job_id())
    assert caught.value.code == "job.unknown_id"


def test_the_client_starts_without_heavy_imports() -> None:
    program = (
        "import sys\n"
        "import kvsync.daemon.client, kvsync.daemon.lifecycle, kvsync.daemon.params\n"
        "print(sorted({'aiohttp', 'torch', 'transformers', 'asyncio'} & set(sys.modules)))\n"
    )
    found = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert found.stdout == "[]\n"
