"""The command ``mdispatch bridge``: keeps this host's registry as a cluster's leader has it."""

from __future__ import annotations

import json
import signal
import sys

import click
from click.exceptions import Exit

from ..cluster import ClusterURL, parse_url
from ..errors import InvalidArgumentError, MdispatchError
from .columns import plain
from .console import complain, json_option, standard_output
from .standing import told_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType

    from . import answers


def _url(context: click.Context, parameter: click.Parameter, text: str) -> ClusterURL:
    if text == "-":
        text = sys.stdin.readline().strip()
    try:
        return parse_url(text)
    except InvalidArgumentError as error:
        raise click.BadParameter(str(error)) from None


url_argument = click.argument(
    "url",
    callback=_url,
    help="Engine and run: redis://host:6379/0?run=train-7; - reads it from standard input, where "
    "no list of processes shows a password.",
)


@click.command
@url_argument
@click.option("--name", metavar="NAME", help="Name of the registry; that of the run unless given.")
@json_option("bridge", "a line of JSON each time that something changes")
def bridge(url: ClusterURL, name: str | None, as_json: bool) -> None:
    """Keep this host's registry as its cluster's leader has it. Workers of the host find it by
    MDISPATCH_REGISTRY=NAME.

    It runs until it is ended, and tells on standard error how the host stands; with --json on
    standard output. Where the host has a bridge already, it waits to take over. The host's registry
    stays as long as a process of the host has it open: without a bridge calls go on, and what waits
    is told.

    \b
    Exit status:
      0    ended, by a signal
      2    unusable arguments; a registry of this name exists; the registry is
           full; no driver for the engine
    """
    from ..cluster.bridge import Bridge

    try:
        one = Bridge(url, name)

        def end(number: int, frame: FrameType | None) -> None:
            one.ended.set()

        for each in (signal.SIGTERM, signal.SIGINT):
            signal.signal(each, end)
        output = standard_output() if as_json else sys.stderr

        def say(text: str) -> None:
            if as_json:
                answer: answers.Bridge = {
                    "format": 2,
                    "registry": one.name,
                    "serves": one.serves,
                    "cluster": None if one.told is None else told_json(one.told),
                    "text": text,
                }
                text = json.dumps(answer)
            if output is not None:
                output.write((text if as_json else plain(text)) + "\n")
                output.flush()

        say(f"bridge of {url.shown}; for its workers: MDISPATCH_REGISTRY={one.name}")
        one.run(say)
    except (MdispatchError, OSError, ImportError) as error:
        complain(str(error))
        raise Exit(2) from None
