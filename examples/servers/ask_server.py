"""Starts web servers, asks two workers of each, ends them. Used by the examples with servers.

It does not import the operators: the examples show who registers them.
"""

import contextlib
import http.client
import json
import os
import select
import signal
import socket
import subprocess
import time

HERE = os.path.dirname(os.path.abspath(__file__))
LIMIT = 60  # seconds for a server to come up, to answer, and to end
#: With this in its environment all of a server is one registry, whoever registers first.
TEAM = {"MDISPATCH_REGISTRY": f"elect:example-{os.getpid()}"}


def expect(expected, command, environment=(), paths=("/", "/")):
    """Starts a server and asks for each of ``paths``, each time another worker. ``expected`` says
    what the workers do and how much they share, as "register, verify: 1 registry", or "error 500".

    ``command`` is to have the server listen at "{port}", or take the descriptor "{fd}", which
    listens already: then requests wait in its queue until the server is up.
    """
    with socket.create_server(("127.0.0.1", 0)) as listening:
        fd, port = listening.fileno(), listening.getsockname()[1]
        if not any("{fd}" in word for word in command):
            listening.close()
        server = subprocess.Popen(
            [word.format(fd=fd, port=port) for word in command],
            cwd=HERE,
            env={**os.environ, **dict(environment)},
            pass_fds=() if listening.fileno() < 0 else (fd,),
        )
    try:
        told = _summary(_answers(server, port, paths))
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(LIMIT)
    print(*command[-3:], *environment, "->", told, flush=True)
    assert told == expected, f"not {expected!r}"


def _answers(server, port, paths):
    """A worker is held, until all were asked, by its connection to the socket ``door``."""
    with contextlib.ExitStack() as held, socket.create_server(("127.0.0.1", 0)) as door:
        body = json.dumps(["The Ferry Leaves at Seven", door.getsockname()[1]])
        asked = []
        for path in paths:
            connection = _connect(server, port)
            connection.request("POST", path, body=body)
            asked.append(connection)
            ready, _, _ = select.select([door, connection.sock], [], [], LIMIT)
            assert ready, f"{path} was not answered within {LIMIT} s"
            if door in ready:
                held.enter_context(door.accept()[0])
        held.close()
        answers = [connection.getresponse() for connection in asked]
        return [(answer.status, answer.read()) for answer in answers]


def _connect(server, port):
    end = time.monotonic() + LIMIT
    while True:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT)
        try:
            connection.connect()
            return connection
        except ConnectionRefusedError:
            assert server.poll() is None, "the server has ended"
            assert time.monotonic() < end, f"the server did not come up within {LIMIT} s"
            time.sleep(0.05)


def _summary(answers):
    bad = sorted({f"error {status}" for status, _ in answers if status != 200})
    if bad:
        return ", ".join(bad)
    told = [json.loads(body) for _, body in answers]
    assert {each["slug"] for each in told} == {"the-ferry-leaves-at-seven"}
    count = len({each["registry"] for each in told})
    registries = "1 registry" if count == 1 else f"{count} registries"
    return f"{', '.join(sorted(each['role'] for each in told))}: {registries}"
