"""One suite of steps for every registry, seen from everywhere.

The same sequences run on the local registry, on the shared one through either binding, and on the
shared one with peers, which take turns with the main interpreter. A peer is an interpreter of its
process or another process, and repeats every step, or some, or none. After every step all have to
see what the model says; that is the same for those that have imported the same.

The main part runs in a process of its own. Peers of every kind run one loop (``PEER``), with a pipe
for questions and a pipe for answers.
"""

from __future__ import annotations

import ast
import gzip
import json
import os
import random
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kinds import INTERPRETERS, run_main
from model import ALIASES, FUNCTIONALITIES, RUNTIME, Model, WorkerModel
from patience import limit
from steps import Player, left_over, observe

import mdispatch as md
from mdispatch.facts import native
from mdispatch.facts.local import LocalRegistry
from mdispatch.pool import interpreters as host

pytestmark = [pytest.mark.either_binding, pytest.mark.shared]

Steps = list[tuple]

NAMES = ("s::f", "s::f.out", "t::g")

# --- sequences ------------------------------------------------------------------------------------

F, F_WITH_N, F_OUT = "f(Tensor x) -> str", "f(Tensor x, int n=1) -> str", "f.out(Tensor x) -> str"
G = "g(Tensor x) -> str"

WRITTEN: dict[str, Steps] = {
    "a module": [
        ("open", 0, "DEF", "s"),
        ("define", 0, F),
        ("define", 0, F_OUT),
        ("impl", 0, "f", "CPU", "cpu"),
        ("impl", 0, "f.out", "", "out"),
        ("close", 0),
    ],
    "kernels before the definition, and after it": [
        ("open", 0, "IMPL", "s"),
        ("impl", 0, "f", "CPU", "early"),
        ("open", 1, "FRAGMENT", "s"),
        ("define", 1, F),
        ("close", 1),
        ("close", 0),
    ],
    "the newest kernel serves, whichever goes": [
        ("open", 0, "FRAGMENT", "s"),
        ("define", 0, F),
        *(("open", i, "IMPL", "s") for i in (1, 2, 3)),
        *(("impl", i, "f", "CPU", f"cpu{i}") for i in (1, 2, 3)),
        ("close", 2),
        ("close", 3),
        ("open", 2, "IMPL", "s"),
        ("impl", 2, "f", "CPU", "cpu again"),
        ("close", 1),
        ("close", 2),
    ],
    "a composite kernel, then one that blocks it": [
        ("open", 0, "FRAGMENT", "s"),
        ("define", 0, F),
        ("impl", 0, "f", "", "any"),
        ("open", 1, "IMPL", "s"),
        ("impl", 1, "f", "CompositeExplicitAutograd", "explicit"),
        ("close", 1),
        ("open", 1, "IMPL", "s"),
        ("impl", 1, "f", "CPU", "cpu"),
        ("close", 1),
    ],
    "a kernel behind AutogradOther comes and goes": [
        ("open", 0, "FRAGMENT", "s"),
        ("define", 0, F),
        ("impl", 0, "f", "", "any"),
        ("open", 1, "IMPL", "s", "SparseCUDA"),
        ("impl", 1, "f", "", "sparse"),
        ("open", 2, "IMPL", "s"),
        ("impl", 2, "f", "AutogradOther", "other"),
        ("close", 2),
        ("close", 1),
    ],
    "fallthrough for one backend of a functionality": [
        ("open", 0, "FRAGMENT", "s"),
        ("define", 0, F),
        ("impl", 0, "f", "CompositeExplicitAutograd", "explicit"),
        ("impl", 0, "f", "Autograd", "autograd"),
        ("open", 1, "IMPL", "s"),
        ("impl", 1, "f", "AutogradCPU", "fallthrough"),
        ("close", 1),
    ],
    "a catch-all that falls through": [
        ("open", 0, "FRAGMENT", "s"),
        ("define", 0, F),
        ("impl", 0, "f", "CPU", "cpu"),
        ("impl", 0, "f", "", "fallthrough"),
        ("impl", 0, "f", "CompositeExplicitAutograd", "fallthrough"),
    ],
    "fallbacks for all operators": [
        ("open", 0, "FRAGMENT", "s"),
        ("define", 0, F),
        ("open", 1, "FRAGMENT", "t"),
        ("define", 1, G),
        ("impl", 1, "g", "CUDA", "g"),
        ("open", 2, "IMPL", "_"),
        ("fallback", 2, "CUDA", "fallback"),
        ("fallback", 2, "CPU", "fallthrough"),
        ("fallback", 2, "Undefined", "nothing"),
        ("open", 3, "IMPL", "_", "AutogradCPU"),
        ("fallback", 3, "", "autograd fallback"),
        ("close", 2),
        ("open", 4, "IMPL", "_"),
        ("fallback", 4, "CUDA", "another"),
        ("close", 3),
    ],
    "a second fallback is refused, and takes nothing with it": [
        ("open", 0, "FRAGMENT", "s"),
        ("define", 0, F),
        ("open", 1, "IMPL", "_"),
        ("fallback", 1, "CPU", "first"),
        ("open", 2, "IMPL", "_"),
        ("fallback", 2, "CPU", "second"),
        ("close", 2),
        ("close", 1),
        ("open", 2, "IMPL", "_"),
        ("fallback", 2, "CPU", "third"),
    ],
    "a second owner of a namespace is refused": [
        ("open", 0, "DEF", "s"),
        ("open", 1, "DEF", "s"),
        ("define", 0, F),
        ("close", 1),
        ("close", 0),
        ("open", 1, "DEF", "s"),
        ("define", 1, F_WITH_N),
    ],
    "a second definition is refused, the same or another": [
        ("open", 0, "FRAGMENT", "s"),
        ("define", 0, F),
        ("open", 1, "FRAGMENT", "s"),
        ("define", 1, F),
        ("define", 1, F_WITH_N),
        ("define", 1, F_OUT),
        ("close", 1),
        ("close", 0),
    ],
    "signatures that fit and signatures that do not": [
        ("open", 0, "FRAGMENT", "s"),
        ("impl", 0, "f", "CPU", "two", "(Tensor x, int n) -> str"),
        ("define", 0, F),
        ("define", 0, F_WITH_N),
        ("impl", 0, "f", "CUDA", "one", "(Tensor x) -> str"),
        ("define", 0, F),
        ("impl", 0, "f", "CUDA", "other", "(Tensor y, int z) -> str"),
    ],
    "names that are held": [
        ("open", 0, "IMPL", "s"),
        ("name", 0, "f"),
        ("open", 1, "IMPL", "s"),
        ("name", 1, "f"),
        ("name", 1, "f.out"),
        ("close", 0),
        ("open", 2, "FRAGMENT", "s"),
        ("define", 2, F),
        ("close", 1),
    ],
    "what is defined beside the schema": [
        ("open", 0, "FRAGMENT", "s"),
        ("define", 0, F, "CONSERVATIVE", ("b", "a")),
        ("define", 0, F_OUT, "FROM_SCHEMA", ("core",)),
        ("open", 1, "FRAGMENT", "s"),
        ("define", 1, F, "PURE_FUNCTION"),
    ],
    "overloads are tried in the order in which they were defined": [
        ("open", 0, "FRAGMENT", "s"),
        ("define", 0, F_OUT),
        ("open", 1, "FRAGMENT", "s"),
        ("define", 1, F),
        ("close", 0),
        ("open", 0, "FRAGMENT", "s"),
        ("define", 0, F_OUT),
    ],
    "a module that is imported again": [
        ("open", 0, "DEF", "s", "", "module"),
        ("define", 0, F),
        ("impl", 0, "f", "CPU", "cpu"),
        ("open", 1, "DEF", "s", "", "module"),
        ("define", 1, F),
        ("impl", 1, "f", "CPU", "cpu of the second import"),
        ("open", 2, "DEF", "s", "", "module"),
        ("define", 2, F_WITH_N),
    ],
    "what no registry takes": [
        ("open", 0, "FRAGMENT", "_"),
        ("open", 0, "FRAGMENT", "s", "CPU"),
        ("open", 0, "IMPL", "s", "CPU"),
        ("impl", 0, "f", "CUDA", "of another key"),
        ("impl", 0, "t::g", "", "of another namespace"),
        ("define", 0, F),
        ("fallback", 0, "CPU", "of one namespace"),
        ("open", 1, "FRAGMENT", "s"),
        ("define", 1, "f(Tensor"),
        ("impl", 1, "f", "Dense", "without a slot"),
        ("impl", 1, "f", "Nowhere", "of no key"),
        ("close", 1),
        ("define", 1, F),
        ("impl", 1, "f", "CPU", "late"),
        ("name", 1, "f"),
        ("open", 2, "IMPL", "_"),
        ("fallback", 2, "Autograd", "at an alias"),
        ("fallback", 2, "", "at no key"),
        ("impl", 2, "f", "CPU", "for all operators"),
        ("name", 2, "f"),
    ],
    "everything in one library": [
        ("open", 0, "DEF", "s"),
        ("define", 0, F),
        ("name", 0, "f"),
        *(("impl", 0, "f", key, key.lower()) for key in ALIASES),
        ("impl", 0, "f", "NestedTensorCPU", "nested"),
        ("impl", 0, "f", "QuantizedCPU", "quantized"),
        ("impl", 0, "f", "FuncTorchBatched", "batched"),
        ("impl", 0, "f", "BackendSelect", "select"),
        ("close", 0),
    ],
}


def generated(seed: int, length: int) -> Steps:
    """Random steps, most of which make sense."""
    rng = random.Random(seed)
    keys = [*RUNTIME, *ALIASES, *ALIASES, "", "", "CPU", "CPU", "AutogradCPU", "SparseCUDA"]
    steps: Steps = []
    for turn in range(length):
        library = rng.randrange(5)
        operator = rng.choice(("f", "f", "f.out", "g"))
        what = rng.random()
        if what < 0.25:
            kind = rng.choice(("DEF", "FRAGMENT", "FRAGMENT", "IMPL", "IMPL"))
            namespace = rng.choice("sst" if kind != "IMPL" else "sst_")
            steps += [("close", library), ("open", library, kind, namespace)]
        elif what < 0.35:
            schema = rng.choice((F, F_OUT, G, F_WITH_N))
            steps.append(("define", library, schema))
        elif what < 0.70:
            label = rng.choice((f"k{turn}", f"k{turn}", f"k{turn}", "fallthrough"))
            signature = rng.choice(("", "", "", "(Tensor x) -> str", "(Tensor x, int n) -> str"))
            steps.append(("impl", library, operator, rng.choice(keys), label, signature))
        elif what < 0.80:
            key = rng.choice(("CPU", "CUDA", *FUNCTIONALITIES))
            steps.append(("fallback", library, key, f"fallback{turn}"))
        elif what < 0.85:
            steps.append(("name", library, operator))
        else:
            steps.append(("close", library))
    return steps


RECORDED = Path(__file__).parents[1] / "oracle" / "sequences.json.gz"


def recorded() -> Iterator[tuple[str, tuple[str, ...], Steps]]:
    """The steps for which there are recordings of PyTorch, with the names that were observed.
    (PyTorch's answers do not matter here.)
    """
    for sequence in json.loads(gzip.decompress(RECORDED.read_bytes()))["sequences"]:
        steps = [step for each in sequence["steps"] for step in _as_steps(each["do"])]
        yield f"recorded {sequence['id']}", tuple(sequence["observe"]), steps


def _as_steps(do: dict) -> Iterator[tuple]:
    typed = "(Tensor _0) -> Tensor _0"
    library, key, analysis = do.get("lib"), do.get("dispatch", ""), do.get("alias", "")
    operation = do["op"]
    if operation == "lib":
        yield "open", do["id"], do["kind"], do["ns"], key
    elif operation in ("drop", "reset"):
        yield "close", library
    elif operation in ("def_", "def_legacy", "define"):
        yield "define", library, do["schema"], analysis
    elif operation == "def_name_t_t":
        yield "define", library, do["name"] + typed
        yield "impl", library, do["name"], key, do["debug"], typed
    elif operation == "def_schema_t_t":
        yield "define", library, do["schema"], analysis
        yield "impl", library, do["schema"].partition("(")[0], key, do["debug"], typed
    elif operation == "impl_t_t":
        yield "impl", library, do["name"], key, do["debug"], typed
    elif operation == "impl_fallthrough":
        yield "impl", library, do["name"], key, "fallthrough"
    else:
        assert operation == "fallback_fallthrough", operation
        yield "fallback", library, key, "fallthrough"


# --- those who look on ----------------------------------------------------------------------------

PEER = """
import sys
sys.path[:] = PATH
import ast, os, traceback
answers = os.fdopen(ANSWERS, "w")

def answer(value):
    answers.write(repr(value) + "\\n")
    answers.flush()

try:
    import mdispatch as md
    from mdispatch.facts import native
    from steps import Player, left_over, observe
    registry = md.Registry.attach(ADDRESS)
    player = Player(registry)
    answer((native.which, native.interpreter_id != 0, os.getpid() != MAIN, registry.is_main))
    with os.fdopen(REQUESTS) as requests:
        for line in requests:
            steps, names = ast.literal_eval(line)
            if steps is None:
                player = Player(registry)
                answer(([], repr(left_over(registry))))
                continue
            outcomes = [player.perform(step) for step in steps]
            answer((outcomes, repr((observe(registry, names), player.call_held()))))
    registry.check_invariants()
    registry.close()
    answer("left")
except BaseException:
    answer(traceback.format_exc())
answers.close()
"""


class Peer:
    """A peer: an interpreter of this process, or another process."""

    def __init__(self, kind: str, address: str) -> None:
        requests, self._requests = os.pipe()
        self._answers, answers = os.pipe()
        given = {
            "PATH": sys.path,
            "ADDRESS": address,
            "MAIN": os.getpid(),
            "REQUESTS": requests,
            "ANSWERS": answers,
        }
        text = "".join(f"{name} = {value!r}\n" for name, value in given.items()) + PEER
        self._run: subprocess.Popen | threading.Thread
        if kind == "process":
            command = [sys.executable, "-W", "error", "-c", text]
            self._run = subprocess.Popen(command, pass_fds=(requests, answers))
            os.close(requests)
            os.close(answers)
        else:
            self._run = threading.Thread(target=self._interpret, args=(kind == "own-gil", text))
            self._run.start()
        self._from = os.fdopen(self._answers)
        self._to = os.fdopen(self._requests, "w")
        self.is_like = self._next()

    @staticmethod
    def _interpret(own_gil: bool, text: str) -> None:
        interpreter = host.create_interpreter(own_gil=own_gil)
        interpreter.exec(text)
        interpreter.close()

    def _next(self) -> object:
        line = self._from.readline()
        assert line, "it ended without a word"
        answer = ast.literal_eval(line)
        assert isinstance(answer, tuple) or answer == "left", answer
        return answer

    def begin(self) -> None:
        """Forgets the libraries of earlier steps, which have left nothing."""
        assert self.turn(None, ()) == ([], "[]")

    def turn(self, steps: Steps | None, names: tuple[str, ...]) -> tuple[list[str], str]:
        """Takes steps there and observes. Returns the outcomes and the observation as text."""
        self._to.write(repr((steps, names)) + "\n")
        self._to.flush()
        return self._next()

    def dismiss(self) -> None:
        """Ends the peer, whatever its state."""
        self._to.close()

    def leave(self) -> None:
        self.dismiss()
        assert self._next() == "left"
        self._from.close()
        if isinstance(self._run, subprocess.Popen):
            assert self._run.wait(limit(60)) == 0
        else:
            self._run.join(limit(60))
            assert not self._run.is_alive()


# --- the main part --------------------------------------------------------------------------------


def first_difference(one: object, other: object, at: str = "") -> str:
    """The differences of two observations."""
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        pairs = [(f"{at}[{key!r}]", one[key], other[key]) for key in one]
    elif isinstance(one, tuple) and isinstance(other, tuple) and len(one) == len(other):
        pairs = [(f"{at}[{i}]", *pair) for i, pair in enumerate(zip(one, other, strict=True))]
    else:
        return f"at {at}:\n  {one!r}\n  {other!r}"
    return next((first_difference(*pair, at) for at, *pair in pairs if pair[0] != pair[1]), "")


def same(observed: object, expected: object, *where: object) -> None:
    assert observed == expected, f"{where}: {first_difference(observed, expected)}"


def same_text(text: str, expected: object, *where: object) -> None:
    if text != repr(expected):
        same(ast.literal_eval(text), expected, *where)


class Onlooker:
    """A peer and its model. It repeats the steps of the libraries that ``follows`` picks."""

    def __init__(self, kind: str, address: str, follows: Callable[[int], bool]) -> None:
        self.peer = Peer(kind, address)
        self.follows = follows

    def begin(self, main: Model) -> None:
        self.peer.begin()
        self.model = WorkerModel(main)

    def look(self, steps: Steps, names: tuple[str, ...], *where: object) -> tuple[list[str], str]:
        """Takes steps and compares with the model. Returns the outcomes and the observation as
        text.
        """
        outcomes, text = self.peer.turn(steps, names)
        expected = [self.model.perform(step) for step in steps]
        assert outcomes == expected, f"{where}: {outcomes}, not {expected}"
        same_text(text, (self.model.observe(names), self.model.call_held()), *where)
        return outcomes, text


class Stage:
    """A registry, its model, and three peers: one repeats every step, one those of the libraries
    with odd numbers, one imports nothing.
    """

    def __init__(self, registry: md.Registry, kind: str = "") -> None:
        self.registry = registry
        self.onlookers = [
            Onlooker(kind, registry.address, follows)
            for follows in (lambda i: True, lambda i: i % 2 == 1, lambda i: False)
            if kind
        ]
        self.turns = 0

    def play(self, name: str, names: tuple[str, ...], steps: Steps) -> None:
        """Takes the steps, and then those that close their libraries. Someone keeps the operator of
        each definition.
        """
        self.player, self.model = Player(self.registry), Model()
        for onlooker in self.onlookers:
            onlooker.begin(self.model)
        libraries = sorted({step[1] for step in steps}, reverse=True)
        generations = dict.fromkeys(names)
        for step in [*steps, *(("close", library) for library in libraries)]:
            self.turn(step, name, names)
            for each, generation in generations.items():
                generations[each] = self.model.generation(each)
                if generations[each] not in (None, generation):
                    self.turn(("hold", 0, each), name, names)
        assert left_over(self.registry) == []

    def turn(self, step: tuple, name: str, names: tuple[str, ...]) -> None:
        """The main interpreter takes a step, then the peers that repeat it. All observe before and
        after.
        """
        self.turns += 1
        outcome = self.model.perform(step)
        same(self.player.perform(step), outcome, name, step)
        seen = (observe(self.registry, names), self.player.call_held())
        same(seen, (self.model.observe(names), self.model.call_held()), name, step)
        for number, onlooker in enumerate(self.onlookers):
            where = (name, step, f"onlooker {number}")
            outcomes, text = onlooker.look([], names, *where, "before it follows")
            if step[0] == "hold" or onlooker.follows(step[1]):
                outcomes, text = onlooker.look([step], names, *where)
            if number == 0:
                assert outcome or outcomes == [""], f"{where}: refused only there"
                same_text(text, seen, *where, "as in the main interpreter")

    def leave(self) -> list[object]:
        """Ends. Returns what the main interpreter and the peers said of themselves."""
        for onlooker in self.onlookers:
            onlooker.peer.begin()
        like: list[object] = [
            (native.which, native.interpreter_id != 0, False, self.registry.is_main)
        ]
        for onlooker in self.onlookers:
            like.append(onlooker.peer.is_like)
            onlooker.peer.leave()
        self.registry.check_invariants()
        self.registry.close()
        return like


def play(kind: str, which: dict) -> dict[str, object]:
    """The main part: plays sequences with a registry of its own. ``kind`` is "local", "alone" or
    the kind of the peers.
    """
    local = kind == "local"
    registry = md.Registry(LocalRegistry()) if local else md.Registry.create()
    stage = Stage(registry, "" if kind in ("local", "alone") else kind)
    try:
        played = play_all(stage, which)
        return {"played": played, "turns": stage.turns, "like": stage.leave()}
    except BaseException:
        for onlooker in stage.onlookers:
            onlooker.peer.dismiss()  # a thread that waits for more would keep the process alive
        raise


def play_all(stage: Stage, which: dict) -> int:
    """Returns the number of sequences."""
    sequences = [(name, NAMES, WRITTEN[name]) for name in which["written"]]
    sequences += [(f"seed {seed}", NAMES, generated(seed, 40)) for seed in which["generated"]]
    first, one_in = which["recorded"]
    if one_in:
        sequences += list(recorded())[first::one_in]
    for name, names, steps in sequences:
        stage.play(name, names, steps)
    return len(sequences)


# By the kind of the peers and the binding of the main interpreter: what each participant has to say
# of itself (binding, in a sub-interpreter, in another process, registers).
# A free-threaded 3.13 has no cffi: there the extension serves in its place.
HAS_NO_CFFI = sysconfig.get_config_var("Py_GIL_DISABLED") and sys.version_info < (3, 14)
CFFI = "ext" if HAS_NO_CFFI else "cffi"
MAIN_CFFI, MAIN_EXT = (CFFI, False, False, True), ("ext", False, False, True)
INTERPRETER = ("ext", True, False, False)
CONFIGURATIONS = {
    ("local", "cffi"): [MAIN_CFFI],
    ("alone", "cffi"): [MAIN_CFFI],
    ("alone", "ext"): [MAIN_EXT],
    **{(kind, "cffi"): [MAIN_CFFI, *[INTERPRETER] * 3] for kind in INTERPRETERS},
    ("process", "cffi"): [MAIN_CFFI, *[(CFFI, False, True, False)] * 3],
    ("process", "ext"): [MAIN_EXT, *[("ext", False, True, False)] * 3],
}


def run(
    configuration: tuple[str, str], monkeypatch: pytest.MonkeyPatch, **which: object
) -> dict[str, object]:
    kind, binding = configuration
    monkeypatch.setenv("MDISPATCH_BINDING", binding if binding == "ext" else "")
    return run_main(
        "folder, *rest = args\nimport sys\nsys.path.insert(0, folder)\n"
        "import test_conformance\ndone(**test_conformance.play(*rest))\n",
        str(Path(__file__).parent),
        kind,
        {"written": [], "generated": [], "recorded": (0, 0), **which},
        timeout=3000,
    )


@pytest.mark.thorough
@pytest.mark.timeout(300)
def test_every_configuration_runs_and_is_what_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test below asks the same of the other configurations, with what they play."""
    # On 3.11 no interpreter has its own GIL.
    assert len(CONFIGURATIONS) == (7 if host.OWN_GIL else 6)
    steps = len(WRITTEN["a module"]) + 2  # the library is closed, and both operators are kept
    for each in (("local", "cffi"), ("process", "ext")):
        got = run(each, monkeypatch, written=["a module"])
        assert got["like"] == CONFIGURATIONS[each]
        assert (got["played"], got["turns"]) == (1, steps + 1)


def parts_of(configuration: tuple[str, str]) -> dict[str, object]:
    """What a configuration plays when it does not play all: without peers, each written sequence;
    with peers, which take most of the time, one in so many, so that each written sequence is played
    by one kind of peers. Random and recorded sequences are others in each configuration.
    """
    number = list(CONFIGURATIONS).index(configuration)
    with_peers = [each for each in CONFIGURATIONS if each[0] not in ("local", "alone")]
    written = list(WRITTEN)
    if configuration in with_peers:
        written = written[with_peers.index(configuration) :: len(with_peers)]
    return {"written": written, "generated": [number], "recorded": (7 + 20 * number, 140)}


def test_each_written_sequence_is_played_with_and_without_peers() -> None:
    for alone in (True, False):
        played = [
            name
            for each in CONFIGURATIONS
            if (each[0] in ("local", "alone")) == alone
            for name in parts_of(each)["written"]
        ]
        assert sorted(played) == sorted([*WRITTEN] * (3 if alone else 1))


@pytest.mark.thorough
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("configuration", CONFIGURATIONS, ids="-".join)
def test_all_who_look_see_what_the_model_says_after_every_step(
    configuration: tuple[str, str], long_form: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    all_of_them = {"written": list(WRITTEN), "generated": list(range(100)), "recorded": (0, 1)}
    which = all_of_them if long_form else parts_of(configuration)
    got = run(configuration, monkeypatch, **which)
    assert got["like"] == CONFIGURATIONS[configuration]
    first, one_in = which["recorded"]
    of_recorded = len(range(first, len(list(recorded())), one_in))
    assert got["played"] == len(which["written"]) + len(which["generated"]) + of_recorded
    assert of_recorded > 0
