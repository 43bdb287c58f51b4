"""The command line: the commands together. Each command is in a module of its own, which is loaded
only when that command runs: most commands answer faster than the others can be imported.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

import click
from click.exceptions import Exit
from click.shell_completion import get_completion_class

from .. import __version__

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: By group, in the order of the help, and by command: its module, and the first sentence of its own
#: help.
GROUPS = {
    "Check operators": {
        "verify": (
            "verify.command",
            "Import operator modules everywhere and tell all that differs.",
        ),
        "diff": (
            "diff.command",
            "Compare two versions: same, compatible or breaking.",
        ),
    },
    "Look at operators": {
        "ls": ("ls", "List operators, the keys of their kernels, and their locations."),
        "table": ("explain", "Print the dispatch table of an operator."),
        "show": ("explain", "Print what is registered for an operator."),
        "why": ("explain", "Print how a call with these keys comes to its kernel."),
        "stubs": ("stubs", "Print a stub for type checkers, with the types of operators."),
        "choices": ("choices", "List what the members of a registry have chosen."),
        "agree": ("agree", "Show the values on which the members of a registry agree."),
        "report": ("report.command", "Write a registry as one page of HTML."),
    },
    "Look at registries": {
        "doctor": ("doctor", "List the registries of this user, and what is wrong with them."),
        "top": ("top", "Show the registries of this user live."),
    },
    "Several hosts": {
        "bridge": ("bridge", "Keep this host's registry as its cluster's leader has it."),
        "cluster": (
            "cluster",
            "Show the hosts of a cluster, how far each is, and who differs.",
        ),
    },
    "Try": {
        "stress": ("stress", "Run the stress suite on this machine."),
    },
}
#: The commands of features, whose folder may have been left out.
_OF_FEATURES = {
    "agree": "choices",
    "bridge": "cluster",
    "choices": "choices",
    "cluster": "cluster",
    "diff": "editions",
}


def _is_here(name: str) -> bool:
    feature = _OF_FEATURES.get(name)
    package = __package__.partition(".")[0]
    return feature is None or find_spec(f"{package}.{feature}") is not None


for _group in GROUPS.values():
    for _name in [name for name in _group if not _is_here(name)]:
        del _group[_name]
GROUPS = {title: group for title, group in GROUPS.items() if group}
MODULES = {name: told for group in GROUPS.values() for name, told in group.items()}


def command(name: str) -> click.Command:
    """The command of this name, from its module."""
    found: click.Command = getattr(import_module(f".{MODULES[name][0]}", __package__), name)
    return found


class _Commands(click.Group):
    """Lists the commands of :data:`MODULES`, and loads the one that runs."""

    def list_commands(self, context: click.Context) -> list[str]:
        return list(self.commands)

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, MODULES))
        for title, group in GROUPS.items():
            with formatter.section(title):
                # Padded, so that the sentences of all groups begin in one column.
                formatter.write_dl([(f"{name:{width}}", told) for name, (_, told) in group.items()])

    def resolve_command(
        self, context: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, listed, rest = super().resolve_command(context, args)
        return name, command(name) if name in MODULES else listed, rest

    def invoke(self, context: click.Context) -> Any:
        try:
            return super().invoke(context)
        except KeyboardInterrupt:
            raise Exit(130) from None


def _show_completion(context: click.Context, parameter: click.Parameter, shell: str | None) -> None:
    completion = get_completion_class(shell) if shell else None
    if completion is not None:
        click.echo(completion(app, {}, "mdispatch", "_MDISPATCH_COMPLETE").source())
        raise Exit(0)


@click.group(
    cls=_Commands,
    context_settings={"show_default": True, "help_option_names": ["-h", "--help"]},
    epilog="mdispatch COMMAND -h tells all of a command.",
)
@click.version_option(__version__, message="mdispatch %(version)s", help="Print the version.")
@click.option(
    "--show-completion",
    metavar="SHELL",
    type=click.Choice(["bash", "zsh", "fish"]),
    is_eager=True,
    expose_value=False,
    callback=_show_completion,
    help="Print what sets up completion in bash, zsh or fish.",
)
def app() -> None:
    """An operator registry and dispatcher for threads, sub-interpreters and processes."""


for _name, (_, _help) in MODULES.items():
    app.add_command(click.Command(_name, help=_help))
