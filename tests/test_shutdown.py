"""Waits that begin when the end of their interpreter has begun."""

from __future__ import annotations

from kinds import run_main


def test_no_wait_begins_once_the_interpreter_shuts_down_however_often_it_is_tried() -> None:
    """The first wait of all finds that it cannot be ended any more; so do those after it."""
    got = run_main(
        """
        import threading
        md.default_registry()

        def wait():
            while not threading._SHUTTING_DOWN:
                time.sleep(0.001)
            for _ in range(3):
                try:
                    md.wait_for_def("never::comes", None)
                except md.MdispatchError as error:
                    heard.append(type(error).__name__)
            done(heard=heard)

        heard = []
        threading.Thread(target=wait).start()
        """,
        timeout=30,
    )
    assert got["heard"] == ["WaitCancelledError"] * 3
