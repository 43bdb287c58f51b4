"""The JSON that the commands print with ``--json``: one class for each kind of object.

The code that makes an answer names its class here, so that mypy compares the two. The comment above
a field is its documentation: ``docs/keys.py`` writes all of them into docs/command-line.md, and the
tests compare that page, and what the commands print, with these classes.

Only annotations need this module, so no command loads it. The classes of all commands are in one
file, although it is long: answers share objects, and one page is made from all of them.
"""

from typing import NotRequired, TypedDict

# --- what several answers hold --------------------------------------------------------------------


class Location(TypedDict):
    """Where something was registered, and by whom."""

    #: file and line, as "ops.py:12"
    where: str
    #: process
    pid: int
    #: id of the interpreter; -1 is the program that embeds interpreters, -2 a bridge
    interpreter: int


class Kernel(TypedDict):
    """A kernel of an operator."""

    #: dispatch key, or an alias key
    key: str
    #: whether the key is an alias key
    alias: bool
    #: whether it is in effect: the newest kernel at its key for its types, or an available provider
    active: bool
    #: label
    kernel: str
    #: whether a call goes on to the next key
    falls_through: bool
    #: C signature; null for a kernel that has none
    signature: str | None
    #: the classes that it is for: one for all tensors, or one for each argument; empty for any
    types: list[str]
    #: its name among the providers of its key; null without one
    provider: str | None
    #: its `order` among them, the highest first; null without a provider
    order: int | None
    #: where it was registered
    location: Location


class Fallback(TypedDict):
    """A backend fallback, which serves all operators."""

    #: dispatch key
    key: str
    #: label
    kernel: str
    #: whether a call goes on to the next key
    falls_through: bool
    #: where it was registered
    location: Location


# --- verify ---------------------------------------------------------------------------------------


class Verified(TypedDict):
    """The main interpreter."""

    #: process; 0 for that of a team, which has none
    pid: int
    #: operators that the modules registered; with --against all that are there
    operators: int
    #: kernels that the modules registered; with --against all that are there
    kernels: int
    #: seconds in which the modules were imported
    import_seconds: float


class VerifyWorker(TypedDict):
    """A worker; null is a figure that it did not live to report."""

    #: "interpreter" or "process"
    kind: str
    #: process
    pid: int | None
    #: id of the interpreter
    interpreter: int | None
    #: whether it agrees with the main interpreter
    agrees: bool
    #: operators verified
    operators: int | None
    #: kernels verified
    kernels: int | None
    #: seconds in which the interpreter or the process was created
    create_seconds: float | None
    #: seconds in which it imported mdispatch and joined the registry
    mdispatch_seconds: float | None
    #: seconds in which it imported the modules
    import_seconds: float | None
    #: seconds of its longest wait
    longest_wait_seconds: float | None
    #: indices of its differences in `differences`
    differences: list[int]


class VerifyDifference(TypedDict):
    """A difference from the main interpreter. Equal ones of several workers are one object."""

    #: what differs: "schema", "key", "name", "late", "missing", "type" or "plug-ins"; or how the
    #: worker ended: "failed", "killed" or "silent"
    category: str
    #: a class of mdispatch.errors; what a failed worker raised; the signal that killed it
    error: str
    #: "library", "def", "impl", "fallback", "type" or "torch"; "" for a worker that ended
    kind: str
    #: operator, namespace, or type
    name: str
    #: dispatch key
    key: str
    #: location in the worker
    here: str
    #: location in the main interpreter
    there: str
    #: schema in the worker
    schema_here: str
    #: schema in the main interpreter
    schema_there: str
    #: keys of the type in the worker
    keys_here: list[str]
    #: keys at which the main interpreter has kernels; keys of the type in the member that was first
    keys_there: list[str]
    #: nearest names in the main interpreter
    nearest: list[str]
    #: the explanation that people get
    text: str
    #: indices in `workers` of the workers that have it
    workers: list[int]


class Verify(TypedDict):
    """What `mdispatch verify` answers."""

    #: 1
    format: int
    #: version of mdispatch
    mdispatch: str
    #: version of Python
    python: str
    #: whether each sub-interpreter has a GIL of its own
    own_gil: bool
    #: names, as given
    modules: list[str]
    #: seconds, as given
    timeout: float
    #: the registry of a running process, as given
    against: str | None
    #: whether what the modules register with torch.library was verified, too
    torch: bool
    #: whether all workers agree, and on something: exit status 0
    agree: bool
    #: whether the modules register nothing, so that nothing was verified: exit status 5
    empty: bool
    #: the main interpreter
    main: Verified
    #: the workers, interpreters first
    workers: list[VerifyWorker]
    #: the differences
    differences: list[VerifyDifference]


# --- diff -----------------------------------------------------------------------------------------


class DiffSide(TypedDict):
    """One of the two that were compared."""

    #: "registry", "modules" or "file"
    kind: str
    #: name, as given
    name: str
    #: how many operators are defined
    operators: int


class DiffDifference(TypedDict):
    """A difference of the two."""

    #: "compatible" or "breaking"
    verdict: str
    #: name of its rule: docs/diff.md has the table
    rule: str
    #: "operator", "kernel", "fallback", "class", "priority", "type" or another kind of registration
    kind: str
    #: operator, key of the fallback, or name of the registration
    name: str
    #: the explanation that people get
    text: str
    #: location in the old one; null where it has none
    old: str | None
    #: location in the new one; null where it has none
    new: str | None


class Diff(TypedDict):
    """The answer of `mdispatch diff`."""

    #: 2
    format: int
    #: version of mdispatch
    mdispatch: str
    #: the version that is there
    old: DiffSide
    #: the version that is to take its place
    new: DiffSide
    #: "same", "compatible" or "breaking": that of the worst difference
    verdict: str
    #: as given to `--fail`
    fail: str
    #: whether there is a difference of that kind or a worse one: exit status 1
    fails: bool
    #: the differences, breaking ones first
    differences: list[DiffDifference]


# --- ls -------------------------------------------------------------------------------------------


class Operator(TypedDict):
    """An operator, or a name with kernels and no definition."""

    #: ns::name or ns::name.overload
    operator: str
    #: namespace
    namespace: str
    #: name of the overload; "" for the one without a name
    overload: str
    #: its position among the overloads of its name, from 0, in the order in which calls try them;
    #: null when it is not defined
    position: int | None
    #: schema in canonical form; null when the operator is not defined
    schema: str | None
    #: where it was defined
    defined: Location | None
    #: "FROM_SCHEMA", "CONSERVATIVE" or "PURE_FUNCTION"; null when it is not defined
    alias_analysis: str | None
    #: tags
    tags: list[str]
    #: module that has its fake kernels
    python_module: str | None
    #: whether there are kernels and no definition
    dangling: bool
    #: kernels in table order, alias keys last, the newest of each key first
    kernels: list[Kernel]
    #: where the name is held without a definition
    names: list[Location]


class Other(TypedDict):
    """A registration that is about no operator, as a class or a priority."""

    #: "class", "priority", "type", "choice"
    kind: str
    #: name of the class, pattern of the priority, ...
    name: str
    #: text of the registration
    text: str
    #: location of the registration
    location: Location


class Ls(TypedDict):
    """What `mdispatch ls` answers."""

    #: 1
    format: int
    #: version of mdispatch
    mdispatch: str
    #: address of the registry
    registry: str
    #: whether the operators are all that there are
    complete: bool
    #: the operators that were asked for, by name
    operators: list[Operator]
    #: the backend fallbacks
    fallbacks: list[Fallback]
    #: registrations beside those of operators; none where you select operators
    others: list[Other]


# --- agree ----------------------------------------------------------------------------------------


class Asked(TypedDict):
    """A member that has asked for an agreement."""

    #: whether it agrees; false for one that was refused
    agrees: bool
    #: its value as Python writes it, cut
    value: str
    #: when it has asked, in seconds since 1970
    since: float
    #: its rank; null where no launcher tells it
    rank: int | None
    #: the member, and the line that asked
    location: Location


class Agreement(TypedDict):
    """A value on which members agree."""

    #: its name
    name: str
    #: the value as Python writes it, cut; "" where nobody that agrees is there any more
    value: str
    #: whether it stays as long as the registry
    kept: bool
    #: the patterns of paths: ignore, only, secret, as far as they were given
    patterns: dict[str, object]
    #: whether members take the value of the first one
    follow: bool
    #: the highest number of members that one of them waits for, or has waited for
    among: int
    #: the members that have asked, oldest first
    members: list[Asked]


class Agreements(TypedDict):
    """The answer of `mdispatch agree`."""

    #: 2
    format: int
    #: version of mdispatch
    mdispatch: str
    #: address of the registry
    registry: str
    #: the agreements of the names given, in order
    agreements: list[Agreement]


# --- roll calls -----------------------------------------------------------------------------------


class CalledMember(TypedDict):
    """A member that a roll call counts."""

    #: its process
    pid: int
    #: its interpreter
    interpreter: int
    #: its rank; null where no launcher tells it
    rank: int | None
    #: the name of its host
    host: str
    #: the location that called, `file:line`
    where: str


class DifferingField(TypedDict):
    """A part in which two members differ."""

    #: the path that leads to it
    path: str
    #: its value in this group, in words
    here: str
    #: its value in the right group, or the first one
    there: str


class CalledGroup(TypedDict):
    """Members of a roll call that have the same."""

    #: whether their version is right
    is_right: bool
    #: the difference in words; empty for the right group
    differs: str
    #: how many parts differ
    number: int
    #: the first parts that differ
    fields: list[DifferingField]
    #: the members
    members: list[CalledMember]


class RollCall(TypedDict):
    """The verdict of a roll call."""

    #: its name
    name: str
    #: its round
    round: str
    #: the verdict in words
    verdict: str
    #: whether all have the same, and all came
    agrees: bool
    #: how many members were expected
    expected: int
    #: the rank whose version is right; null where it is that of the majority
    leader: int | None
    #: when, in seconds since 1970
    at: float
    #: the ranks that did not come, as far as a launcher tells them
    absent: list[int]
    #: how many did not come
    lacking: int
    #: the groups of members that have the same
    groups: list[CalledGroup]


class Job(TypedDict):
    """The answer of `mdispatch verify --job`."""

    #: 1
    format: int
    #: version of mdispatch
    mdispatch: str
    #: address of the registry
    registry: str
    #: whether the last roll call is over, and all agree: exit status 0
    agree: bool
    #: how many members have called so far, where there is no verdict yet; else 0
    called: int
    #: how many of these are expected
    expected: int
    #: the verdict; null where there is none yet
    verdict: RollCall | None


# --- choices --------------------------------------------------------------------------------------


class Choice(TypedDict):
    """What the members have chosen."""

    #: operator, or another name
    operator: str
    #: what the choice depends on
    profile: object
    #: what it depends on beside the profile; null for nothing
    environment: object
    #: the candidate that was chosen
    choice: object
    #: what it was chosen from
    candidates: list[object]
    #: when, in seconds since 1970
    made: float
    #: how long the decision took, in seconds; 0 for one that was loaded from a file
    seconds: float
    #: other members that waited for it when it was made
    waited: int
    #: whether this command has withdrawn it
    withdrawn: bool
    #: the member that decided, and where it asked, or the file that was loaded
    location: Location


class Choices(TypedDict):
    """What `mdispatch choices` answers."""

    #: 1
    format: int
    #: version of mdispatch
    mdispatch: str
    #: address of the registry
    registry: str
    #: the choices for the operators that were asked for, oldest first
    choices: list[Choice]


# --- show, table, why -----------------------------------------------------------------------------


class Offer(TypedDict):
    """A kernel that a member serves to other interpreters and processes."""

    #: operator
    operator: str
    #: dispatch key, or an alias key
    key: str
    #: label
    kernel: str
    #: what carries calls of other processes, as "host"; null where only its own process may call
    transport: str | None
    #: since when, in seconds since 1970
    since: int
    #: who serves it, and the line that says so
    location: Location


class Subject(TypedDict):
    """What `show`, `table` and `why` have in common."""

    #: 1
    format: int
    #: version of mdispatch
    mdispatch: str
    #: address of the registry
    registry: str
    #: ns::name or ns::name.overload
    operator: str
    #: schema in canonical form; null when the operator is not defined
    schema: str | None


class PythonModule(TypedDict):
    """The Python module that has an operator's fake kernels."""

    #: name of the module
    module: str
    #: what the registration says beside it
    context: str
    #: where that was registered
    location: Location


class Show(Subject):
    """What `mdispatch show` answers."""

    #: where it was defined
    defined: Location | None
    #: "FROM_SCHEMA", "CONSERVATIVE" or "PURE_FUNCTION"; null when it is not defined
    alias_analysis: str | None
    #: tags
    tags: list[str]
    #: module that has its fake kernels
    python_module: PythonModule | None
    #: names of all operators that differ in the overload only, this one's too
    overloads: list[str]
    #: whether there are kernels and no definition
    dangling: bool
    #: kernels in table order, alias keys last, the newest of each key first
    kernels: list[Kernel]
    #: where the name is held without a definition
    names: list[Location]


class Slot(TypedDict):
    """One slot of a dispatch table."""

    #: dispatch key
    key: str
    #: rule that decides
    reason: str
    #: label; null where none runs
    kernel: str | None
    #: whether a call goes on to the next key
    falls_through: bool
    #: where the kernel was registered; null for a fallback that is built in, and for none
    location: Location | None


class Table(Subject):
    """What `mdispatch table` answers."""

    #: how many keys have a slot in a table
    keys: int
    #: the slots that are shown, in table order
    slots: list[Slot]


class Rule(TypedDict):
    """A rule that was tried."""

    #: its name
    rule: str
    #: what it found, in words
    found: str
    #: whether it decides
    decides: bool


class Runs(TypedDict):
    """The kernel that runs."""

    #: label
    kernel: str
    #: where it was registered; null for a fallback that is built in
    location: Location | None


# No class statement takes the key ``class``.
Raised = TypedDict(
    "Raised",
    {
        #: a class of mdispatch.errors
        "class": str,
        #: its message
        "text": str,
    },
)
Raised.__doc__ = "What a call raises."


class ProviderVerdict(TypedDict):
    """What becomes of a provider."""

    #: its name
    provider: str
    #: whether it is accepted, skipped, or asked for each call, and because of what
    verdict: str


class Why(Subject):
    """What `mdispatch why` answers."""

    #: keys that were asked about
    asked: list[str]
    #: keys that the arguments carry
    carried: list[str]
    #: keys that a thread adds by default
    added: list[str]
    #: keys that a thread excludes by default
    excluded: list[str]
    #: keys that fall through
    fall_through: list[str]
    #: keys that are left
    left: list[str]
    #: the key of these with the highest priority
    highest: str
    #: the rules that were tried, in order
    rules: list[Rule]
    #: the providers of the key, in their order
    providers: list[ProviderVerdict]
    #: what runs; null where nothing does
    runs: Runs | None
    #: what a call raises; null where something runs
    error: Raised | None
    #: who serves that kernel to others, the newest first: the newest of its process is called, else
    #: the newest with a transport
    offers: list[Offer]


# --- stubs ----------------------------------------------------------------------------------------


class Stubs(TypedDict):
    """What `mdispatch stubs` answers."""

    #: 1
    format: int
    #: version of mdispatch
    mdispatch: str
    #: address of the registry
    registry: str
    #: names, as given
    modules: list[str]
    #: names, sorted
    operators: list[str]
    #: as given to `--output`
    file: str | None
    #: text of the stub
    stub: str


# --- doctor, top ----------------------------------------------------------------------------------


class Wait(TypedDict):
    """The newest wait of a member."""

    #: threads of the member that wait
    threads: int
    #: what is awaited ("library", "def", "impl", ...; a number for a kind that this version does
    #: not know); null for any change
    kind: str | int | None
    #: name that is awaited
    name: str
    #: dispatch key that is awaited
    key: str | None
    #: how long it has waited
    seconds: float


class Member(TypedDict):
    """An interpreter that joined a registry."""

    #: process
    pid: int
    #: id of the interpreter; -1 is the program that embeds interpreters, -2 a bridge
    interpreter: int
    #: "main", "worker" or "peer"
    role: str
    #: whether it is alive
    alive: bool
    #: its newest wait; null when it does not wait
    waits: Wait | None


class Registrar(TypedDict):
    """The registrar of a registry."""

    #: process
    pid: int
    #: "not joined", "alive", "left" or "died"
    state: str
    #: whether the process is stopped
    stopped: bool


class Processes(TypedDict):
    """The processes that joined a registry."""

    #: how many are alive
    alive: int
    #: how many died without leaving
    dead: int


class Lock(TypedDict):
    """The thread that holds a registry's lock."""

    #: thread
    thread: int
    #: process; null when that is not known any more
    pid: int | None
    #: whether the process is stopped
    stopped: bool
    #: whether the thread died
    died: bool


class Outside(TypedDict):
    """A registry, as far as it can be told without reading it."""

    #: what attaches to it
    address: str
    #: null for an anonymous registry
    name: str | None
    #: "open", "closed", "registrar died", "damaged" or "refused"
    state: str
    #: class of mdispatch.errors that attaching to it raises
    error: str | None
    #: message of that error
    text: str | None
    #: whether its file was taken away
    deleted: bool
    #: processes that have it open, where it has no file
    held_by: list[int]
    #: what needs attention, one sentence each
    problems: list[str]


class Stands(TypedDict):
    """How a host of a cluster stands."""

    #: address of the engine, without a password, and the run
    engine: str
    #: "open", "sealed", "cut off", "without a leader", "astray" or "held"
    state: str
    #: when it began to stand so, UTC
    since: str
    #: host and process of the leader, as "node-0[4711]"; null before there is one
    leader: str | None
    #: epoch that the host has applied
    epoch: int
    #: sequence that it has applied
    sequence: int
    #: why, where something is wrong
    why: str | None


class Standing(Stands):
    """How a host of a cluster stands, and its bridges."""

    #: the leader's process or that of the bridge that serves the host; null where it is gone
    pid: int | None
    #: processes of the bridges that wait to take over
    waiting: list[int]


class Edition(TypedDict):
    """Which edition of a name a registry is."""

    #: the name that all editions have
    of: str
    #: the edition; null for the registry that has the name alone
    edition: str | None
    #: since it was made
    seconds: float
    #: the names of the others that are alive, the newest first
    beside: list[str]


class Serving(TypedDict):
    """A member that serves kernels to others."""

    #: process
    pid: int
    #: id of the interpreter
    interpreter: int
    #: whether the process is stopped
    stopped: bool
    #: what it serves, oldest first
    offers: list[Offer]


class Differs(TypedDict):
    """A member that differs from what is registered, and goes on: somebody caught the error, or a
    warm-up is to tell it. It ends when the same is registered well, or a
    [warm-up](pools.md) finds it mended.
    """

    #: process
    pid: int
    #: id of the interpreter
    interpreter: int
    #: what differs: the error's text
    text: str
    #: where it was registered otherwise; "" where nothing was
    where: str


class Inside(TypedDict):
    """What a registry says of itself; all null when it cannot be read."""

    #: "main", "elect" or, for a host of a cluster, "bridge"
    policy: str | None
    #: the registrar; null with another policy than "main"
    registrar: Registrar | None
    #: which edition of its name it is; null where its name has one alone, without "@"
    edition: Edition | None
    #: how it stands, where it is of a cluster
    cluster: Standing | None
    #: the processes that joined
    processes: Processes | None
    #: the members
    members: list[Member] | None
    #: the members that serve kernels to others
    serving: list[Serving] | None
    #: the last verdict of each roll call
    roll_calls: list[RollCall] | None
    #: the members that differ and go on, at most 20 differences of each
    differing: list[Differs] | None
    #: how many operators are defined
    operators: int | None
    #: how many kernels are registered
    kernels: int | None
    #: how many registrations there are
    registrations: int | None
    #: how many names there are
    names: int | None
    #: how many places of names that have ended are kept for others
    idle: int | None
    #: bytes that it may use
    capacity: int | None
    #: bytes that the system has given it
    committed: int | None
    #: bytes in use
    used: int | None
    #: bytes left
    free: int | None
    #: how many registrations and removals there were
    sequence: int | None
    #: how often a dead holder of the lock was cleaned up after
    recoveries: int | None
    #: who holds its lock; null when nobody does
    lock: Lock | None


class Registry(Outside, Inside):
    """A registry, seen from outside. Where it cannot be read, `policy` and all below it is null."""


class Check(TypedDict):
    """What `--check` found in one registry."""

    #: address of the registry
    address: str
    #: whether all invariants hold
    well: bool
    #: the invariants that do not hold
    broken: list[str]
    #: why they could not be recomputed
    error: str | None


class Reaped(TypedDict):
    """A file that `--reap` removed, or left alone."""

    #: name of the registry
    name: str
    #: whether the file was removed
    removed: bool
    #: why
    why: str


class Apart(TypedDict):
    """Processes of one program that have a registry each, and share nothing."""

    #: command line of one of them
    program: str
    #: processes
    pids: list[int]


class Leftover(TypedDict):
    """A file that `--reap` would remove."""

    #: name of the registry
    name: str
    #: why
    why: str


class Doctor(TypedDict):
    """What `mdispatch doctor` answers."""

    #: 1
    format: int
    #: version of mdispatch
    mdispatch: str
    #: how many registries need attention: exit status 0 for none
    problems: int
    #: why the folder of named registries cannot be looked into, or who keeps it locked
    folder_problem: str | None
    #: the registries, named ones first
    registries: list[Registry]
    #: programs whose processes have an anonymous registry each; that may be meant
    apart: list[Apart]
    #: with `--check`: one object for each registry that is live
    checks: NotRequired[list[Check]]
    #: with `--reap`: one object for each registry that might have been removed
    reaped: NotRequired[list[Reaped]]
    #: with `--reap --dry-run`: one object for each registry that would be removed
    would_reap: NotRequired[list[Leftover]]


class RegistryNow(Registry):
    """A registry, and what changed since the look before."""

    #: registrations and removals; null when the registry was not seen before
    changes_per_second: float | None
    #: how often a dead holder of the lock was cleaned up after; null when it was not seen before
    recovered: int | None


class Top(TypedDict):
    """What `mdispatch top` answers, on one line for each look."""

    #: 1
    format: int
    #: seconds since 1970
    time: float
    #: seconds since the look before; null for the first
    seconds: float | None
    #: the registries
    registries: list[RegistryNow]


# --- report ---------------------------------------------------------------------------------------


class Slots(TypedDict):
    """Keys at which the same runs, by the same rule."""

    #: dispatch keys
    keys: list[str]
    #: rule that decides
    reason: str
    #: label; null where none runs
    kernel: str | None
    #: whether a call goes on to the next key
    falls_through: bool
    #: where the kernel was registered; null for a fallback that is built in, and for none
    location: Location | None


class OperatorWithTable(Operator):
    """An operator, and its dispatch table."""

    #: the slots in groups, in table order
    table: list[Slots]


class Library(TypedDict):
    """A library, or the claim of a namespace."""

    #: namespace
    namespace: str
    #: "library" or "claim"
    kind: str
    #: where it was registered
    location: Location


class Registered(TypedDict):
    """What one interpreter has registered from one file."""

    #: process
    pid: int
    #: id of the interpreter; -1 is the program that embeds interpreters, -2 a bridge
    interpreter: int
    #: file
    file: str
    #: how many definitions
    definitions: int
    #: how many kernels
    kernels: int
    #: how many fallbacks
    fallbacks: int


class Report(TypedDict):
    """What `mdispatch report` tells."""

    #: 1
    format: int
    #: version of mdispatch
    mdispatch: str
    #: address of the registry
    registry: str
    #: when it was made, UTC
    made: str
    #: names, as given to `--import`
    modules: list[str]
    #: file that was written
    page: str | None
    #: how many keys have a slot in a table
    keys: int
    #: "open", "closed", "registrar died", ...; null when it could not be looked at
    state: str | None
    #: one sentence for each thing that needs attention, as in `mdispatch doctor`
    problems: list[str]
    #: "main", "elect" or "bridge"; null when it could not be looked at
    policy: str | None
    #: the members
    members: list[Member]
    #: bytes that the registry may use
    capacity: int | None
    #: bytes in use
    used: int | None
    #: bytes left
    free: int | None
    #: all operators, by name
    operators: list[OperatorWithTable]
    #: the backend fallbacks
    fallbacks: list[Fallback]
    #: registrations beside those of operators; none where you select operators
    others: list[Other]
    #: the libraries and claims of namespaces
    libraries: list[Library]
    #: who registered what
    registrars: list[Registered]


# --- stress ---------------------------------------------------------------------------------------


class Latency(TypedDict):
    """How long something took."""

    #: what
    what: str
    #: how often it was measured
    count: int
    #: median, in nanoseconds
    p50_ns: float
    #: nine of ten took at most so long, in nanoseconds
    p90_ns: float
    #: 99 of 100 took at most so long, in nanoseconds
    p99_ns: float
    #: the longest, in nanoseconds
    max_ns: float


class Failure(TypedDict):
    """A failure of a scenario."""

    #: process that played it
    worker: str
    #: command that makes the same choices again
    again: str


class Title(TypedDict):
    """A scenario that there is."""

    #: title
    scenario: str
    #: the test
    location: str


class Scenario(Title):
    """A scenario that was played."""

    #: "ok", "failed" or "skipped"
    result: str
    #: how many rounds
    rounds: int
    #: how many operations
    operations: int
    #: how many definitions
    definitions: int
    #: how many processes were killed
    kills: int
    #: how many forks
    forks: int
    #: how many interpreters
    interpreters: int
    #: operations of one process in a second
    per_second: float
    #: how long things took
    latencies: list[Latency]
    #: why rounds were skipped
    skipped: list[str]
    #: what failed
    failures: list[Failure]


class Stress(TypedDict):
    """What `mdispatch stress` answers."""

    #: 1
    format: int
    #: version of mdispatch
    mdispatch: str
    #: folder of the suite
    suite: str
    #: whether every scenario held: exit status 0
    passed: bool
    #: seed, seconds, workers, Python, mdispatch and system
    about: dict[str, str]
    #: the scenarios that were played
    scenarios: list[Scenario]


class StressList(TypedDict):
    """What `mdispatch stress --list` answers."""

    #: 1
    format: int
    #: version of mdispatch
    mdispatch: str
    #: folder of the suite
    suite: str
    #: the scenarios that there are, by title
    scenarios: list[Title]


# --- several hosts --------------------------------------------------------------------------------


class Bridge(TypedDict):
    """What `mdispatch bridge` prints on a line each time that something changes."""

    #: 1
    format: int
    #: name of the host's registry
    registry: str
    #: whether it serves the host; else it waits to take over
    serves: bool
    #: how the host stands; null before that is known
    cluster: Stands | None
    #: the same in words
    text: str


class Difference(TypedDict):
    """In what a worker differs from the leader."""

    #: process
    pid: int
    #: error
    text: str


class Host(TypedDict):
    """A host, as it has told of itself."""

    #: "leader" or "bridge"
    role: str
    #: name of the host
    host: str
    #: process of the leader or bridge
    pid: int
    #: name of its registry
    registry: str
    #: "open", "sealed", "without a leader", "astray" or "held"
    state: str
    #: epoch that it has applied
    epoch: int
    #: sequence that it has applied
    sequence: int
    #: whether the log is further on
    behind: bool
    #: why it is astray or held
    why: str | None
    #: how many registrations it has
    registrations: int
    #: how many processes are workers there
    workers: int
    #: version of mdispatch
    mdispatch: str
    #: version of Python
    python: str
    #: distributions of which it has another version than the leader; "" where it has none
    versions: dict[str, str]
    #: workers that differ
    differences: list[Difference]


class Cluster(TypedDict):
    """What `mdispatch cluster` answers."""

    #: 1
    format: int
    #: version of mdispatch
    mdispatch: str
    #: address of the engine, without a password, and the run
    engine: str
    #: whether somebody leads
    led: bool
    #: epoch of the log
    epoch: int
    #: sequence of the log
    sequence: int
    #: what needs attention: exit status 0 for none
    problems: list[str]
    #: the hosts, the leader's first
    hosts: list[Host]


class Accepted(TypedDict):
    """What `mdispatch cluster accept` answers."""

    #: 1
    format: int
    #: version of mdispatch
    mdispatch: str
    #: address of the engine, without a password, and the run
    engine: str
    #: leader that was accepted, as host[pid]
    leader: str
    #: epoch in which it leads
    epoch: int


#: The answers of each command.
ANSWERS: dict[str, list[type]] = {
    "verify": [Verify],
    "diff": [Diff],
    "ls": [Ls],
    "show": [Show],
    "table": [Table],
    "why": [Why],
    "stubs": [Stubs],
    "agree": [Agreements],
    "choices": [Choices],
    "report": [Report],
    "doctor": [Doctor],
    "top": [Top],
    "bridge": [Bridge],
    "cluster": [Cluster, Accepted],
    "stress": [Stress, StressList],
}
