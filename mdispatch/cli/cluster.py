"""The command ``mdispatch cluster``: the hosts of a cluster, as they tell of themselves."""

from __future__ import annotations

import json

import click
from click.exceptions import Exit

from .. import __version__
from ..cluster import ClusterURL, Unreachable, connect
from ..cluster.following import MANIFEST
from ..cluster.log import Garbled
from ..cluster.records import Record, accepted_bytes, read_record
from ..cluster.state import Manifest
from ..errors import MdispatchError
from .bridge import url_argument
from .columns import plain
from .console import complain, json_option, standard_output, write_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..cluster import Engine
    from . import answers


def _word(context: click.Context, parameter: click.Parameter, words: tuple[str, ...]) -> bool:
    if words not in ((), ("accept",)):
        raise click.BadParameter("before the URL comes accept, or nothing")
    return bool(words)


@click.command
@click.argument(
    "accepts",
    metavar="[accept]",
    nargs=-1,
    callback=_word,
    help="Accept the leader of now, which hosts hold for its other code, but those with "
    "policy=follow in their URL.",
)
@url_argument
@json_option("cluster")
def cluster(accepts: bool, url: ClusterURL, as_json: bool) -> None:
    """Show the hosts of a cluster, how far each is, and who differs. Each host has told that of
    itself.

    \b
    Exit status:
      0    no host differs, and all have what the leader has; accepted
      1    one differs, is behind or held, or nobody leads
      2    unusable arguments; no answer from the engine; no leader to accept
    """
    output = standard_output()
    try:
        engine = connect(url)
        try:
            if accepts:
                write_text(_accept(url, engine, as_json) + "\n", output)
                return
            status = engine.status()
            found = engine.hosts()
        finally:
            engine.close()
    except (Unreachable, MdispatchError, OSError, ImportError) as error:
        complain(f"{url.shown}: {error}")
        raise Exit(2) from None
    records, garbled = [], 0
    for _, data in sorted(found.items()):
        try:
            records.append(read_record(data))
        except Garbled:
            garbled += 1
    lines = [f"{url.shown}: epoch {status.epoch}, sequence {status.tail[1]}"]
    problems = [] if status.leader else ["nobody leads"]
    if garbled:
        problems.append(f"{garbled} records of hosts cannot be read")
    records.sort(key=lambda each: (each.role != "leader", each.host))
    for record in records:
        lines += ["", *_host(record, problems, status.tail)]
    lines += ["", *(f"! {each}" for each in problems)] if problems else []
    if as_json:
        answer: answers.Cluster = {
            "format": 2,
            "mdispatch": __version__,
            "engine": url.shown,
            "led": bool(status.leader),
            "epoch": status.epoch,
            "sequence": status.tail[1],
            "problems": problems,
            "hosts": [_host_json(record, status.tail) for record in records],
        }
        write_text(json.dumps(answer, indent=2) + "\n", output)
    else:
        write_text("".join(plain(line) + "\n" for line in lines), output)
    raise Exit(1 if problems else 0)


def _accept(url: ClusterURL, engine: Engine, as_json: bool) -> str:
    """Accepts who leads, and what to say of that."""
    try:
        manifest, state = Manifest.read(engine.get(MANIFEST) or b"")
        leader = state.leaders[state.leader]
    except (Garbled, KeyError):
        complain(f"{url.shown}: nobody has led this run, so there is nothing to accept")
        raise Exit(2) from None
    engine.accept(accepted_bytes(leader.number))
    name = f"{leader.host}[{leader.pid}]"
    if not as_json:
        return plain(f"{url.shown}: accepted {name}, which leads since epoch {manifest.epoch}")
    answer: answers.Accepted = {
        "format": 2,
        "mdispatch": __version__,
        "engine": url.shown,
        "leader": name,
        "epoch": manifest.epoch,
    }
    return json.dumps(answer, indent=2)


def _host(record: Record, problems: list[str], tail: Sequence[int]) -> list[str]:
    """One host's lines; adds to the problems."""
    name = f"{record.host}[{record.pid}]"
    at = f"epoch {record.epoch}, sequence {record.seq}, chain {record.chain.hex()[:8]}"
    lines = [
        f"{record.role} {name}: {record.phase}, {at}",
        f"  {record.registrations} registrations, {record.workers} workers at {record.registry}; "
        f"mdispatch {record.mdispatch}, Python {record.python}",
    ]
    if _is_behind(record, tail):
        lines.append(f"  behind: the log is at epoch {tail[0]}, sequence {tail[1]}")
        problems.append(f"{name} is behind")
    if record.why:
        lines.append(f"  {record.why}")
        problems.append(f"{name} is {record.phase}")
    for distribution, version in sorted(record.versions.items()):
        lines.append(f"  {distribution} {version or 'is not installed'}: the leader has another")
        problems.append(f"{name} has another version of {distribution} than the leader")
    for pid, text in record.differences:
        first, *rest = text.split("\n")
        lines += [f"  worker {pid} differs: {first}", *(f"    {each}" for each in rest)]
        problems.append(f"worker {pid} of {name} differs")
    return lines


def _is_behind(record: Record, tail: Sequence[int]) -> bool:
    return (record.epoch, record.seq) < tuple(tail)


def _host_json(record: Record, tail: Sequence[int]) -> answers.Host:
    return {
        "role": record.role,
        "host": record.host,
        "pid": record.pid,
        "registry": record.registry,
        "state": record.phase,
        "epoch": record.epoch,
        "sequence": record.seq,
        "behind": _is_behind(record, tail),
        "why": record.why or None,
        "registrations": record.registrations,
        "workers": record.workers,
        "mdispatch": record.mdispatch,
        "python": record.python,
        "versions": record.versions,
        "differences": [{"pid": pid, "text": text} for pid, text in record.differences],
    }
