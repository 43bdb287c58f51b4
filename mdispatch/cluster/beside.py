"""The bridge of a host as a child of one of its workers: ``python -m mdispatch.cluster.beside``.

The URL is the first line of standard input, where no list of processes shows a password. The answer
is a line as well, once the registry is there. The bridge ends when standard input does, which is
when the parent has ended, however that was.
"""

from __future__ import annotations

import signal
import sys
import threading

from ..errors import RegistryExistsError
from ..facts.logs import registry_log
from .bridge import Bridge
from .engine import parse_url

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType

IS_THERE = "ready"
#: The host has the leader, or bridges enough.
NOT_NEEDED = "not needed"
#: Bridges of a host at most that workers bring along: one serves, the others wait.
BRIDGES = 3


def main() -> None:
    try:
        bridge = Bridge(parse_url(sys.stdin.readline().strip()))
    except RegistryExistsError:
        print(NOT_NEEDED, flush=True)
        return
    # By their places in one queue, not by their number: of many that come at once the first stay.
    if bridge.registry.place() >= BRIDGES:
        bridge.close()
        print(NOT_NEEDED, flush=True)
        return

    def end(number: int, frame: FrameType | None) -> None:
        bridge.ended.set()

    def end_with_parent() -> None:
        sys.stdin.read()
        bridge.ended.set()

    signal.signal(signal.SIGTERM, end)
    # ^C reaches parent and child: the parent says when it ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=end_with_parent, daemon=True).start()
    print(IS_THERE, flush=True)
    bridge.run(lambda text: registry_log.tell("bridge: %s", text))


if __name__ == "__main__":
    main()
