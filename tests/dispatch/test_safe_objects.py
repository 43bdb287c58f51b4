"""A SafeObject opens at home and nowhere else, wherever it has been and whatever happened to
home.
"""

from __future__ import annotations

import copy
import gc
import io
import pickle
import signal
import sys
import threading
import weakref
from pathlib import Path

import pytest
from alarms import end_alarms
from kinds import INTERPRETERS, PROCESSES, run_main
from patience import limit
from places import PLACES, run_at

from mdispatch import errors
from mdispatch.dispatch.context import keeping
from mdispatch.dispatch.context.hermetic import SafeObject, hermetic, opened_for
from mdispatch.dispatch.context.homes import here
from mdispatch.keys import DispatchKeySet

pytestmark = pytest.mark.either_binding


class Thing:
    """Can be weakly referenced, and says nothing about itself."""

    def __repr__(self) -> str:
        raise AssertionError("nobody may ask for the repr")

    __hash__ = None

    def __eq__(self, other: object) -> bool:
        raise AssertionError("nobody may compare it")

    def __reduce__(self) -> str:
        raise AssertionError("nobody may pickle or copy it")


class Value:
    __dispatch_keys__ = ("CPU", "AutogradCPU")


@pytest.fixture(autouse=True)
def nothing_is_kept_after_the_test():
    before = dict(keeping._kept)
    yield
    assert keeping._kept == before
    assert not keeping._keeping


# --- at home --------------------------------------------------------------------------------------


def test_at_home_it_opens_and_says_what_it_holds():
    thing = Thing()
    parcel = SafeObject(thing)
    assert parcel.open() is thing
    assert (parcel.home, parcel.is_home, parcel.type_name) == (here(), True, "Thing")
    assert repr(parcel) == "<SafeObject of Thing, at home>"


def test_copies_hold_the_same_object():
    thing = Thing()
    parcel = SafeObject(thing)
    for made in (copy.copy(parcel), copy.deepcopy(parcel), copy.deepcopy({"a": [parcel]})["a"][0]):
        assert made is not parcel
        assert made.open() is thing
        assert made == parcel
        assert hash(made) == hash(parcel)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("dumps", [pickle.dumps, pickle._dumps], ids=["C", "Python"])
def test_a_pickle_that_comes_home_holds_the_same_object(protocol, dumps):
    with SafeObject(Thing()) as parcel:
        back = pickle.loads(dumps(parcel, protocol))
        assert back.open() is parcel.open()
        assert back.is_home
        assert back == parcel
        assert hash(back) == hash(parcel)


@pytest.mark.thorough
@pytest.mark.dear
def test_home_keeps_what_was_pickled_when_no_holder_is_left():
    parcel = SafeObject(Thing())
    seen = weakref.ref(parcel.open())
    sent = [pickle.dumps(parcel) for _ in range(2)]
    del parcel
    gc.collect()
    backs = [pickle.loads(each) for each in sent]
    assert [back.open() is seen() for back in backs] == [True, True]
    backs[0].close()
    assert seen() is None


@pytest.mark.thorough
@pytest.mark.dear
def test_one_that_was_never_pickled_keeps_its_object_like_any_reference():
    parcel = SafeObject(Thing())
    seen = weakref.ref(parcel.open())
    other = copy.copy(parcel)
    del parcel
    assert other.open() is seen()
    del other
    assert seen() is None
    cycle = Value()
    cycle.parcel = SafeObject(cycle)
    seen = weakref.ref(cycle)
    del cycle
    gc.collect()
    assert seen() is None


@pytest.mark.parametrize("is_sent", [False, True])
def test_closing_one_closes_all_holders_and_is_done_once(is_sent):
    parcel = SafeObject(Thing())
    seen = weakref.ref(parcel.open())
    others = [copy.copy(parcel)]
    sent = pickle.dumps(parcel) if is_sent else None
    if sent:
        others.append(pickle.loads(sent))
    others[-1].close()
    assert seen() is None
    others.append(pickle.loads(sent or pickle.dumps(parcel)))
    others.append(pickle.loads(pickle.dumps(others[-1])))
    for each in (parcel, *others):
        each.close()
        with pytest.raises(errors.ObjectGoneError, match="of Thing is gone: a holder of it was"):
            each.open()
        assert each == parcel
        assert (each.is_home, each.keys) == (True, None)
        assert repr(each) == "<SafeObject of Thing, gone>"


def test_a_with_block_closes_it():
    with SafeObject(Thing()) as parcel:
        sent = pickle.dumps(parcel)
    for each in (parcel, pickle.loads(sent)):
        with pytest.raises(errors.ObjectGoneError):
            each.open()


def test_two_holders_that_were_made_apart_are_not_equal():
    thing = Thing()
    first, second = SafeObject(thing), SafeObject(thing)
    assert first != second
    assert len({first, second, copy.copy(first)}) == 2
    assert first != thing.__class__


def test_a_holder_of_a_holder_is_refused():
    with pytest.raises(errors.InvalidArgumentError, match="holds an object of Thing"):
        SafeObject(SafeObject(Thing()))


def test_keys_are_those_of_the_object():
    assert SafeObject(Thing()).keys is None
    value = Value()
    parcel = SafeObject(value)
    assert parcel.keys == DispatchKeySet("CPU", "AutogradCPU").raw
    value.__dispatch_keys__ = "Meta"
    assert parcel.keys == DispatchKeySet("Meta").raw


def test_of_an_object_that_is_gone_the_keys_are_those_that_travelled():
    with SafeObject(Value()) as parcel:
        back = pickle.loads(pickle.dumps(parcel))
    assert parcel.keys == back.keys == DispatchKeySet("CPU", "AutogradCPU").raw
    with SafeObject(Value()) as parcel:
        pass
    assert parcel.keys is None


def test_nonsense_about_keys_is_refused_when_it_is_pickled_and_nothing_is_kept():
    value = Value()
    value.__dispatch_keys__ = "no such key"
    parcel = SafeObject(value)
    with pytest.raises(errors.InvalidKeyError):
        pickle.dumps(parcel)
    assert parcel.open() is value


def test_an_error_of_a_call_names_the_operator():
    parcel = SafeObject(Thing())
    thing = parcel.open()
    assert opened_for(parcel, "s::f") is thing
    parcel.close()
    with pytest.raises(errors.ObjectGoneError, match=r"^s::f\(\): an object of Thing is") as caught:
        opened_for(parcel, "s::f")
    assert caught.value.operator == "s::f"
    assert (caught.value.home, caught.value.here) == (str(here()), str(here()))


# --- what runs in between -------------------------------------------------------------------------


class Last:
    """When it is collected, another thread sends and closes an object of its own."""

    def __init__(self) -> None:
        self.done = []

    def __del__(self) -> None:
        def run() -> None:
            with SafeObject(Thing()) as parcel:
                back = pickle.loads(pickle.dumps(parcel))
                self.done.append(back.open() is parcel.open())

        thread = threading.Thread(target=run)
        thread.start()
        thread.join(limit(30))
        self.done.append(not thread.is_alive())


@pytest.mark.parametrize("how", ["close", "hermetic"])
def test_no_finalizer_runs_under_the_lock(how):
    last = Last()
    done = last.done
    parcel = SafeObject(last)
    if how == "close":
        pickle.dumps(parcel)
        del last
        parcel.close()
    else:
        with hermetic():
            pickle.dumps(parcel)
            del parcel, last
    assert done == [True, True]


def test_an_object_may_close_its_own_holder_while_it_is_pickled():
    class Shy:
        @property
        def __dispatch_keys__(self):
            parcel.close()
            return "CPU"

    parcel = SafeObject(Shy())
    back = pickle.loads(pickle.dumps(parcel))
    for each in (parcel, back):
        with pytest.raises(errors.ObjectGoneError):
            each.open()


@pytest.fixture
def _eager():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("_eager")
def test_threads_that_open_send_and_close_get_the_object_or_hear_that_it_is_gone():
    seen, problems, rounds = [], [], 60

    def use(parcel, thing, barrier, closes, in_guard):
        try:
            barrier.wait()
            for turn in range(6):
                if closes and turn == 3:
                    parcel.close()
                if in_guard:
                    with hermetic():
                        back = pickle.loads(pickle.dumps(copy.copy(parcel)))
                else:
                    back = pickle.loads(pickle.dumps(copy.copy(parcel)))
                assert back == parcel
                try:
                    assert back.open() is thing()
                    seen.append("opened")
                except errors.ObjectGoneError as error:
                    seen.append(str(error).partition(" is gone: ")[2])
        except BaseException as error:
            problems.append(error)

    for _ in range(rounds):
        parcel = SafeObject(Thing())
        thing = weakref.ref(parcel.open())
        barrier = threading.Barrier(4)
        threads = [
            threading.Thread(target=use, args=(parcel, thing, barrier, n < 2, n % 2))
            for n in range(4)
        ]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        assert problems == []
        assert thing() is None, "once closed it is nowhere kept"
    assert len(seen) == 4 * 6 * rounds
    assert set(seen) == {"opened", "a holder of it was closed"}


@pytest.mark.usefixtures("_eager")
def test_numbers_are_given_once_however_many_threads_ask():
    def make(parcels, barrier):
        barrier.wait()
        parcels += [SafeObject(None) for _ in range(500)]

    barrier, made = threading.Barrier(4), [[] for _ in range(4)]
    threads = [threading.Thread(target=make, args=(each, barrier)) for each in made]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len({parcel for each in made for parcel in each}) == 2000


def test_a_signal_handler_may_send_and_close_in_the_middle_of_either():
    parcel, backs = SafeObject(Thing()), []
    thing = weakref.ref(parcel.open())

    def handler(number, frame):
        with SafeObject(Thing()) as own:
            backs.append(pickle.loads(pickle.dumps(own)).open() is own.open())
        backs.append(pickle.loads(pickle.dumps(parcel)).open() is thing())
        signal.setitimer(signal.ITIMER_REAL, 1e-4)  # at fixed times, slow ones would pile up

    signal.signal(signal.SIGALRM, handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 1e-5)
        while len(backs) < 100:
            with SafeObject(Thing()) as own:
                assert pickle.loads(pickle.dumps(own)).open() is own.open()
            assert pickle.loads(pickle.dumps(parcel)).open() is thing()
    finally:
        end_alarms()
    parcel.close()
    assert all(backs)
    assert thing() is None


# --- from place to place --------------------------------------------------------------------------

FEATURE = """
import mdispatch as md
md.Library("safe", "DEF").define("f(Tensor x) -> Tensor")

class Tally:
    __dispatch_keys__ = "CPU"
"""


@pytest.mark.parametrize("place", PLACES)
def test_what_is_made_in_a_place_opens_in_it(place, tmp_path):
    body = """
    import copy, pickle
    import feature
    from mdispatch import errors
    from mdispatch.dispatch.context.hermetic import SafeObject
    tally = feature.Tally()
    parcel = SafeObject(tally)
    back = pickle.loads(pickle.dumps(parcel))
    opened = [each.open() is tally for each in (parcel, back, copy.deepcopy(back))]
    back.close()
    try:
        parcel.open()
    except errors.ObjectGoneError as error:
        gone = str(error)
    result = dict(opened=opened, gone=gone, keys=parcel.keys, home=str(parcel.home))
    """
    result = run_at(place, FEATURE, body, tmp_path)
    assert result["opened"] == [True, True, True]
    assert "a holder of it was closed" in result["gone"]
    assert result["keys"] == DispatchKeySet("CPU").raw
    number = result["home"].split()[1]
    assert (number == "0") == (place in ("main", "subprocess"))


ABROAD = """
import copy, pickle
from mdispatch import errors
with open(FOLDER + "/parcel", "rb") as file:
    parcel = pickle.load(file)
said = []
for use in (parcel.open, parcel.close, copy.copy(parcel).open):
    try:
        use()
    except errors.ObjectGoneError as error:
        said.append("gone")
    except errors.ForeignObjectError as error:
        said.append((str(error), error.home, error.here))
from mdispatch.dispatch.context.homes import here
again = pickle.loads(pickle.dumps(parcel))
same = again == parcel and hash(again) == hash(parcel) and copy.deepcopy(again) == parcel
with open(f"{FOLDER}/back{INDEX}", "wb") as file:
    pickle.dump(again, file)
report(said=said, same=same, keys=parcel.keys, type=parcel.type_name, repr=repr(parcel),
       is_home=parcel.is_home, home=str(parcel.home), here=str(here()))
"""


@pytest.mark.parametrize("kind", [*INTERPRETERS, *PROCESSES])
def test_mains_object_goes_to_a_worker_unopened_and_comes_home(kind, tmp_path):
    main = """
    kind, folder, abroad = args
    import pickle
    from mdispatch.dispatch.context.homes import here
    from mdispatch.dispatch.context.hermetic import SafeObject

    class Tally:
        __dispatch_keys__ = "CPU"
        def __repr__(self):
            return "SECRET"

    folder = Path(folder)
    tally = Tally()
    (folder / "parcel").write_bytes(pickle.dumps(SafeObject(tally)))
    found = results(start(kind, abroad, 2, folder))
    backs = [pickle.loads((folder / f"back{i}").read_bytes()) for i in range(2)]
    done(found=found, back=[back.open() is tally for back in backs], here=str(here()),
         sent="SECRET" in str((folder / "parcel").read_bytes()))
    """
    values = run_main(main, kind, str(tmp_path), ABROAD)
    assert values["back"] == [True, True]
    assert not values["sent"]
    for found in values["found"]:
        home, there = values["here"], found["here"]
        assert home != there
        opened, closed, copied = found["said"]
        assert opened == copied
        assert opened[0].startswith(
            f"an object of main.<locals>.Tally belongs to {home}; it cannot be opened in {there}\n"
        )
        assert "it cannot be closed in" in closed[0]
        assert opened[1:] == closed[1:] == (home, there)
        assert found["same"]
        assert found["keys"] == DispatchKeySet("CPU").raw
        assert (found["is_home"], found["home"]) == (False, home)
        assert found["repr"] == f"<SafeObject of {found['type']}, home: {home}>"


AT_HOME_IN_A_WORKER = """
import os, pickle
from mdispatch.dispatch.context.hermetic import SafeObject
class Tally:
    __dispatch_keys__ = "Meta"
tally = Tally()
with open(FOLDER + "/parcel", "wb") as file:
    pickle.dump(SafeObject(tally), file)
arrived(1)
with open(FOLDER + "/pipe", "rb") as pipe:  # waits for main
    back = pickle.load(pipe)
report(back=back.open() is tally)
"""


@pytest.mark.parametrize("kind", [*INTERPRETERS, "subprocess", "spawn"])
def test_a_workers_object_comes_to_main_unopened_and_home_until_the_worker_ends(kind, tmp_path):
    main = """
    kind, folder, worker = args
    import pickle
    from mdispatch import errors
    from mdispatch.dispatch.context.hermetic import SafeObject
    folder = Path(folder)
    os.mkfifo(folder / "pipe")

    def said(use):
        try:
            use()
            return "done", "", ""
        except errors.ForeignObjectError as error:
            return type(error).__name__, str(error), error.home

    workers = start(kind, worker, 1, folder)
    until_arrived(workers, 1)
    parcel = pickle.loads((folder / "parcel").read_bytes())
    found = [said(parcel.open), said(parcel.close)]
    with open(folder / "pipe", "wb") as pipe:
        pickle.dump(parcel, pipe)
    back = results(workers)[0]["back"]
    found += [said(parcel.open), said(parcel.close)]
    late = pickle.loads((folder / "parcel").read_bytes())
    found += [said(late.open)]
    done(found=found, back=back, keys=(parcel.keys, late.keys), home=str(parcel.home))
    """
    values = run_main(main, kind, str(tmp_path), AT_HOME_IN_A_WORKER)
    assert values["back"] is True
    assert values["keys"] == (DispatchKeySet("Meta").raw,) * 2
    foreign, not_closed, gone, closed, late = values["found"]
    home = values["home"]
    assert (foreign[0], not_closed[0]) == ("ForeignObjectError", "ForeignObjectError")
    assert gone == late
    assert gone[0] == "ObjectGoneError"
    assert f"is gone: its home, {home}, has ended" in gone[1]
    assert foreign[2] == gone[2] == home
    assert closed == ("done", "", "")


def test_when_its_home_is_killed_an_object_is_gone_and_nothing_crashes(tmp_path):
    main = """
    folder, worker = args
    import pickle
    from mdispatch import errors
    folder = Path(folder)
    os.mkfifo(folder / "pipe")
    workers = start("subprocess", worker, 1, folder)
    until_arrived(workers, 1)
    parcel = pickle.loads((folder / "parcel").read_bytes())
    os.kill(workers[0].pid, signal.SIGKILL)
    workers[0].join()
    said = []
    for each in (parcel, pickle.loads(pickle.dumps(parcel))):
        try:
            each.open()
        except errors.ObjectGoneError as error:
            said.append(str(error))
        each.close()
    done(said=said, pid=workers[0].pid)
    """
    values = run_main(main, str(tmp_path), AT_HOME_IN_A_WORKER)
    gone = f"its home, interpreter 0 of process {values['pid']}, has ended"
    assert len(values["said"]) == 2
    assert all(gone in each for each in values["said"])


def echo(inbox, outbox) -> None:
    """In a process of multiprocessing: it cannot open the object, and sends it back."""
    parcel = inbox.get()
    try:
        parcel.open()
    except errors.ForeignObjectError as error:
        outbox.put((parcel, error.here, error))


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["fork", "forkserver", "spawn"])
def test_queues_of_processes_carry_it_there_and_back(kind):
    main = """
    kind, folder = args
    import multiprocessing, sys
    sys.path.insert(0, folder)
    import test_safe_objects
    from mdispatch.dispatch.context.homes import here
    from mdispatch.dispatch.context.hermetic import SafeObject

    context = multiprocessing.get_context(kind)
    inbox, outbox = context.SimpleQueue(), context.SimpleQueue()
    process = context.Process(target=test_safe_objects.echo, args=(inbox, outbox))
    process.start()
    model = object()
    inbox.put(SafeObject(model))
    parcel, there, error = outbox.get()
    process.join()
    done(opened=parcel.open() is model, there=there == str(here().__class__(
        here().space, process.pid, 1, 0)), error=error.home == str(here()))
    """
    values = run_main(main, kind, str(Path(__file__).parent))
    assert (values["opened"], values["there"], values["error"]) == (True, True, True)


@pytest.mark.skipif(sys.version_info < (3, 14), reason="no public queues between interpreters")
@pytest.mark.parametrize("own_gil", [True, False])
def test_queues_of_interpreters_carry_it_there_and_back(own_gil):
    main = """
    (own_gil,) = args
    import textwrap
    from concurrent import interpreters
    import _interpreters
    from mdispatch.dispatch.context.hermetic import SafeObject

    there, back = interpreters.create_queue(), interpreters.create_queue()
    model = object()
    there.put(SafeObject(model))
    code = textwrap.dedent(f'''
        import sys
        sys.path[:] = {sys.path!r}
        from concurrent.interpreters import Queue
        from mdispatch import errors
        parcel = Queue({there.id}).get()
        try:
            parcel.open()
        except errors.ForeignObjectError as error:
            Queue({back.id}).put((parcel, error.here))
    ''')
    number = _interpreters.create("isolated" if own_gil else "legacy")
    failed = _interpreters.exec(number, code)
    assert failed is None, failed.formatted
    parcel, here = back.get()
    _interpreters.destroy(number)
    done(opened=parcel.open() is model, here=here.startswith(f"interpreter {number} of"))
    """
    values = run_main(main, own_gil)
    assert (values["opened"], values["here"]) == (True, True)


def test_a_file_of_several_keeps_their_identity():
    with SafeObject([]) as first, SafeObject([]) as second:
        file = io.BytesIO()
        pickle.dump([first, second, first], file)
        file.seek(0)
        back = pickle.load(file)
        assert back[0] is back[2]
        assert [each.open() for each in back[:2]] == [[], []]
        assert back[0].open() is first.open()
        assert back[1].open() is second.open()


# --- forks ----------------------------------------------------------------------------------------


def test_a_fork_copies_what_is_held_and_pickles_from_before_stay_the_parents():
    main = """
    import pickle
    from mdispatch import errors
    from mdispatch.dispatch.context.homes import here
    from mdispatch.dispatch.context.hermetic import SafeObject

    class Kept:
        def __del__(self):
            os.write(finalized, str(os.getpid()).encode() + b" ")

    def said(use):
        try:
            return use()
        except errors.ForeignObjectError as error:
            return type(error).__name__, error.home

    gone, finalized = os.pipe()
    notes = ["before"]
    parcel = SafeObject(notes)
    earlier, number = pickle.dumps(parcel), hash(parcel)
    pickle.dumps(SafeObject(Kept()))  # which no holder has any more
    early = pickle.loads(earlier)
    parent = here()
    end, start = os.pipe()
    pid = os.fork()
    if pid == 0:
        parcel.open().append("child")
        sent = pickle.dumps(parcel)
        found = dict(
            home=parcel.home == here() != parent, opened=(parcel.open(), early.open()),
            equal=parcel == early and hash(parcel) == number,
            parents=said(pickle.loads(earlier).open),
            unequal=pickle.loads(earlier) != parcel,
            own=pickle.loads(sent).open() is notes, sent=sent,
            new=SafeObject(0) not in (parcel, early),
        )
        os.write(start, pickle.dumps(found))
        os._exit(0)
    found = pickle.loads(os.read(end, 65536))
    os.waitpid(pid, 0)
    os.write(finalized, b"none")
    assert os.read(gone, 99) == b"none", "the child finalized what it did not make"
    childs = pickle.loads(found.pop("sent"))
    done(found=found, childs=said(childs.open), pid=pid, notes=notes, parent=str(parent),
         own=pickle.loads(earlier).open() is notes, other=childs != parcel)
    """
    values = run_main(main)
    child, parent = f"interpreter 0 of process {values['pid']}", values["parent"]
    assert values["found"] == {
        "home": True,
        "opened": (["before", "child"], ["before", "child"]),
        "equal": True,
        "parents": ("ForeignObjectError", parent),
        "unequal": True,
        "own": True,
        "new": True,
    }
    assert values["childs"] == ("ObjectGoneError", child)
    assert values["notes"] == ["before"]
    assert (values["own"], values["other"]) == (True, True)
