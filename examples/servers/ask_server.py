"""Starts a web server, sends it some lines, ends it. Used by the examples with servers.

It does not import the operators: the server's main process is to be the one that registers.
"""

import http.client
import json
import signal
import socket
import subprocess

LINES = ["the ferry leaves at seven", "and the gulls know it", "nobody else is up", "but the cook"]


def ask(command):
    """``command`` gets the number of a descriptor of a socket that listens: whoever asks before the
    server is up waits in its queue.
    """
    with socket.create_server(("127.0.0.1", 0)) as listening:
        number, port = listening.fileno(), listening.getsockname()[1]
        server = subprocess.Popen([word.format(fd=number) for word in command], pass_fds=(number,))
    try:
        answers = []
        for line in LINES:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            connection.request("POST", "/", body=line.encode())
            answers.append(tuple(json.loads(connection.getresponse().read())))
            connection.close()
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(30)
    return answers
