"""The bridge of a host as a child of one of its processes: ``python -m mdispatch.cluster.beside``.

The URL is the first line of standard input, "ready" the answer once the registry is there. The
bridge ends when standard input does, which is when the parent has ended, however that was.
"""

from __future__ import annotations

import signal
import sys
import threading

from .bridge import Bridge
from .engine import parse_url

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType

__all__ = ["main"]


def main() -> None:
    bridge = Bridge(parse_url(sys.stdin.readline().strip()))

    def end(number: int, frame: FrameType | None) -> None:
        bridge.ended.set()

    def end_with_parent() -> None:
        sys.stdin.read()
        bridge.ended.set()

    signal.signal(signal.SIGTERM, end)
    # ^C reaches parent and child: the parent says when it ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=end_with_parent, daemon=True).start()
    print("ready", flush=True)
    bridge.run(lambda text: None)


if __name__ == "__main__":
    main()
