"""For any bad argument: a clear error of a documented class, and nothing has changed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys

import pytest
from addresses import address_of
from bad_values import (
    CALLABLES,
    KERNEL,
    NUMBERS,
    TEXTS,
    VALUES,
    Array,
    Empty,
    assert_clear,
    everything,
)
from patience import limit

import mdispatch as md
from mdispatch import errors
from mdispatch.dispatch.operators import OpOverload
from mdispatch.facts.native import native
from mdispatch.facts.opening import ENVIRONMENT

pytestmark = [pytest.mark.either_binding, pytest.mark.shared]


@pytest.fixture
def lib(registry):
    lib = md.Library("s", "DEF", registry=registry)
    lib.define("f(Tensor x) -> Any")
    lib.impl("f", lambda x: "still", "CPU")
    return lib


# Which calls take which of the values above. All others must be refused.


def slots():
    """By name: the call that takes the value, and the names of the values that it accepts."""

    def fragment(r):
        return md.Library("s", "FRAGMENT", registry=r)

    def wild(r):
        return md.Library("_", "IMPL", registry=r)

    def run(coroutine):
        asyncio.run(coroutine)

    op = "s::f"
    return {
        "Library(namespace)": (lambda r, v: md.Library(v, "FRAGMENT", registry=r), set()),
        "Library(IMPL namespace)": (lambda r, v: md.Library(v, "IMPL", registry=r), set()),
        "Library(kind)": (lambda r, v: md.Library("s", v, registry=r), set()),
        "Library(key)": (lambda r, v: md.Library("s", "IMPL", v, registry=r), {"empty"}),
        "Library(timeout)": (
            lambda r, v: md.Library("s", "IMPL", registry=r, timeout=v),
            NUMBERS | {"None"},
        ),
        "Library(registry)": (lambda r, v: md.Library("s", "IMPL", registry=v), {"None"}),
        "define": (lambda r, v: fragment(r).define(v), set()),
        "impl(name)": (lambda r, v: fragment(r).impl(v, KERNEL), set()),
        "impl(name) for all": (lambda r, v: wild(r).impl(v, KERNEL), set()),
        "impl(function)": (lambda r, v: fragment(r).impl("f", v, "CUDA"), CALLABLES | {"None"}),
        "impl()(function)": (lambda r, v: fragment(r).impl("f", dispatch_key="CUDA")(v), CALLABLES),
        "impl(key)": (lambda r, v: fragment(r).impl("f", KERNEL, v), {"empty"}),
        "fallback(function)": (lambda r, v: wild(r).fallback(v, "CPU"), CALLABLES),
        "fallback(key)": (lambda r, v: wild(r).fallback(KERNEL, v), set()),
        "register_op(schema)": (lambda r, v: md.register_op(v, registry=r)(KERNEL), set()),
        "register_op(key)": (
            lambda r, v: md.register_op("s::g(Tensor x) -> Any", v, registry=r)(KERNEL),
            {"empty"},
        ),
        "register_op()(function)": (
            lambda r, v: md.register_op("s::g(Tensor x) -> Any", registry=r)(v),
            CALLABLES,
        ),
        "register_op(registry)": (
            lambda r, v: md.register_op("s::g(Tensor x) -> Any", registry=v)(KERNEL),
            {"None"},
        ),
        "wait_for_def(name)": (lambda r, v: md.wait_for_def(v, 0, registry=r), set()),
        "wait_for_def(timeout)": (
            lambda r, v: md.wait_for_def(op, v, registry=r),
            NUMBERS | {"None"},
        ),
        "wait_for_def(registry)": (lambda r, v: md.wait_for_def(op, 0, registry=v), {"None"}),
        "wait_for_impl(name)": (lambda r, v: md.wait_for_impl(v, "CPU", 0, registry=r), set()),
        "wait_for_impl(key)": (lambda r, v: md.wait_for_impl(op, v, 0, registry=r), set()),
        "wait_for_impl(timeout)": (
            lambda r, v: md.wait_for_impl(op, "CPU", v, registry=r),
            NUMBERS | {"None"},
        ),
        "wait_for_impl(registry)": (
            lambda r, v: md.wait_for_impl(op, "CPU", 0, registry=v),
            {"None"},
        ),
        "wait_for_def_async(name)": (
            lambda r, v: run(md.wait_for_def_async(v, 0, registry=r)),
            set(),
        ),
        "wait_for_def_async(timeout)": (
            lambda r, v: run(md.wait_for_def_async(op, v, registry=r)),
            NUMBERS | {"None"},
        ),
        "wait_for_def_async(registry)": (
            lambda r, v: run(md.wait_for_def_async(op, 0, registry=v)),
            {"None"},
        ),
        "wait_for_impl_async(key)": (
            lambda r, v: run(md.wait_for_impl_async(op, v, 0, registry=r)),
            set(),
        ),
        "Registry.create(name)": (
            lambda r, v: md.Registry.create(v).close(),
            {"None", "dots", "dash"},
        ),
        "Registry.create(capacity)": (lambda r, v: md.Registry.create(capacity=v), set()),
        "Registry.attach(name)": (lambda r, v: md.Registry.attach(v, timeout=0), set()),
        "Registry.attach(timeout)": (
            lambda r, v: md.Registry.attach(r.address, timeout=v).close(),
            NUMBERS | {"None"},
        ),
        "register_type(class)": (lambda r, v: md.register_type(v, "CPU"), {"class"}),
        "register_type(keys)": (lambda r, v: md.register_type(Empty, v), set()),
        "warm_up(modules)": (
            lambda r, v: md.warm_up(v, registry=r),
            # A text that could be a module's name is looked for and not found.
            {*TEXTS, "list", "empty list", "dict"}
            - {"empty", "control", "escape", "line end", "NUL", "surrogate", "path"},
        ),
        "warm_up(timeout)": (
            lambda r, v: md.warm_up("json", timeout=v, registry=r),
            NUMBERS | {"None"},
        ),
        "warm_up(registry)": (lambda r, v: md.warm_up("json", registry=v), {"None"}),
        "redispatch(keys)": (lambda r, v: r.ops.s.f.default.redispatch(v, Array()), set()),
        "call": (lambda r, v: r.ops.s.f(v), set()),
        "parse_schema": (lambda r, v: md.parse_schema(v), set()),
        "OperatorName.parse": (lambda r, v: md.OperatorName.parse(v), set()),
    }


SLOTS = slots()


@pytest.mark.parametrize("slot", SLOTS)
def test_whatever_is_no_good_is_refused_clearly_and_changes_nothing(registry, lib, slot):
    call, good = SLOTS[slot]
    before = everything(registry)
    for name, value in VALUES.items():
        if name in good:
            continue
        try:
            call(registry, value)
        except errors.MdispatchError as error:
            assert_clear(error)
        except BaseException as error:
            pytest.fail(f"{slot} of {name} raised {error!r:.300}")
        else:
            pytest.fail(f"{slot} took {name}")
        assert everything(registry) == before
    assert registry.ops.s.f(Array()) == "still"
    assert md.key_set_of(Empty()) == md.DispatchKeySet()


@pytest.mark.parametrize(
    "slot", [slot for slot in SLOTS if "function" not in slot and "registry" not in slot]
)
def test_a_worker_hears_the_same_refusals(registry, lib, worker, slot):
    call, good = SLOTS[slot]
    before = everything(registry)
    for name in VALUES.keys() - good:
        if slot == "define" and name == "brackets":
            continue  # this one has a name and waits for it
        with pytest.raises(errors.MdispatchError) as caught:
            call(worker, VALUES[name])
        assert_clear(caught.value)
    assert everything(registry) == everything(worker) == before
    assert not any(worker.dispatcher.entry("s::f").kernels.values())


@pytest.mark.parametrize("name", TEXTS)
def test_attributes_that_are_no_names_are_not_found(registry, lib, name):
    text = TEXTS[name]
    for thing in (registry.ops.s, registry.ops.s.f, getattr(registry.ops, text)):
        with pytest.raises(errors.OperatorNotFoundError) as caught:
            getattr(thing, text)
        assert_clear(caught.value)


@pytest.mark.parametrize("name", TEXTS)
def test_keywords_that_no_schema_has_are_refused(registry, lib, name):
    with pytest.raises(errors.ArgumentError) as caught:
        registry.ops.s.f(Array(), **{TEXTS[name]: 1})
    assert_clear(caught.value)


SCHEMA = (
    's::g.out(Tensor(a!) x, Tensor?[] ys, int[2] n=[1, -2], *, float q=1.5e-3, str t="a\\"\\n", '
    "Dict(str, int)? d=None, complex c=1.+2.j) -> (Tensor(a! -> b|c), (int, Tensor)[])"
)


def test_a_schema_cut_off_anywhere_is_refused_with_the_place(registry, lib):
    before = everything(registry)
    for end in range(len(SCHEMA)):
        with pytest.raises(errors.InvalidArgumentError) as caught:
            lib.define(SCHEMA[:end])
        assert_clear(caught.value)
        assert isinstance(caught.value, (errors.SchemaSyntaxError, errors.InvalidNameError))
    assert everything(registry) == before
    assert lib.define(SCHEMA) == "s::g.out"


@pytest.mark.parametrize(
    "letter", ["\0", "\x1b", "\udc80", "é", "$", "(", ")", '"', "\n"], ids=ascii
)
def test_a_schema_with_a_letter_anywhere_that_does_not_belong_there_never_does_harm(
    registry, lib, letter
):
    before = everything(registry)
    for at in range(len(SCHEMA) + 1):
        text = SCHEMA[:at] + letter + SCHEMA[at:]
        try:
            name = lib.define(text)
        except errors.InvalidArgumentError as error:
            assert_clear(error)
            assert everything(registry) == before
        else:
            # A letter inside the str default, a line end between tokens: the same schema, spelled
            # otherwise.
            assert letter in 'é\n$()"' or at == len(SCHEMA)
            fact = registry.dispatcher.facts.find(2, 0, name)
            assert str(md.parse_schema(fact.body)) == fact.body
            assert registry.dispatcher.facts.remove(fact)
            before = everything(registry)


def test_a_schema_as_long_as_the_registry_takes_is_taken_and_a_longer_one_refused(registry, lib):
    def schema(size):
        text = 's::g(str t="{}") -> ()'
        return text.format("x" * (size - len(text) + 2))

    assert len(schema(65536)) == 65536
    before = everything(registry)
    for text in (schema(65537), schema(10_000_000)):
        with pytest.raises(errors.InvalidArgumentError) as caught:
            lib.define(text)
        assert_clear(caught.value)
    assert everything(registry) == before
    lib.define(schema(65536))


@pytest.mark.parametrize(
    "qualname", ["k" * 70_000, "a\udc80", "a\0b\x1b", 5, None, ""], ids=lambda q: f"{q!a:.12}"
)
def test_a_kernel_with_an_odd_name_is_registered_or_refused_cleanly(registry, lib, qualname):
    class Kernel:
        def __call__(self, x):
            return "odd"

    kernel = Kernel()
    kernel.__qualname__ = qualname
    before = everything(registry)
    try:
        lib.impl("f", kernel, "CPU")
    except errors.InvalidArgumentError as error:
        assert_clear(error)
        assert everything(registry) == before
        assert registry.ops.s.f(Array()) == "still"
    else:
        assert registry.ops.s.f(Array()) == "odd"
        assert registry.dispatcher.facts.registrations("s::f")[2][-1].body.encode()


@pytest.mark.parametrize(
    "file", ["\udcff.py", "ü" * 2000 + ".py", "a\0b", "", "<cell\n>"], ids=lambda f: f"{f!a:.12}"
)
def test_code_from_a_file_with_an_odd_name_registers_and_is_named_in_errors(registry, file):
    source = (
        'lib = md.Library("s", "FRAGMENT", registry=registry)\nlib.define("f(Tensor x) -> Any")\n'
    )
    code = compile(source, "placeholder", "exec").replace(co_filename=file)
    # Tracers and the reports of pytest look for the file of a frame. A NUL in its name makes that
    # an error, which in a report ends the whole run.
    tracer = sys.gettrace()
    sys.settrace(None)
    try:
        exec(code, {"md": md, "registry": registry})
    except Exception as error:
        raise error.with_traceback(None) from None  # without the frame
    finally:
        sys.settrace(tracer)
    with pytest.raises(errors.DuplicateRegistrationError) as caught:
        md.Library("s", "FRAGMENT", registry=registry).define("f(Tensor x) -> Any")
    str(caught.value).encode()
    assert caught.value.first.endswith(":2")


# --- a closed registry ----------------------------------------------------------------------------

CLOSED = {
    "Library DEF": lambda r, lib, op: md.Library("t", "DEF", registry=r),
    "define": lambda r, lib, op: lib.define("g() -> ()"),
    "impl": lambda r, lib, op: lib.impl("f", KERNEL, "CPU"),
    "impl at another operator": lambda r, lib, op: lib.impl("g", KERNEL),
    "fallback": lambda r, lib, op: md.Library("_", "IMPL", registry=r).fallback(KERNEL, "CPU"),
    "register_op": lambda r, lib, op: md.register_op("s::g() -> ()", registry=r)(KERNEL),
    "wait_for_def": lambda r, lib, op: md.wait_for_def("s::f", registry=r),
    "wait_for_def, endless": lambda r, lib, op: md.wait_for_def("s::g", None, registry=r),
    "wait_for_impl": lambda r, lib, op: md.wait_for_impl("s::f", "CPU", registry=r),
    "wait_for_def_async": lambda r, lib, op: asyncio.run(md.wait_for_def_async("s::f", registry=r)),
    "wait_for_impl_async": lambda r, lib, op: asyncio.run(
        md.wait_for_impl_async("s::f", "CPU", registry=r)
    ),
    "warm_up": lambda r, lib, op: md.warm_up("json", registry=r),
    "call": lambda r, lib, op: op(Array()),
    "redispatch": lambda r, lib, op: op.redispatch(md.DispatchKeySet("CPU"), Array()),
    "schema": lambda r, lib, op: op.schema,
    "ops": lambda r, lib, op: r.ops.s.g,
    "dir of ops": lambda r, lib, op: dir(r.ops.s),
    "a new operator object": lambda r, lib, op: OpOverload(r.dispatcher, "s::f")(Array()),
    "overloads": lambda r, lib, op: r.dispatcher.overloads("s::other"),
    "attach": lambda r, lib, op: md.Registry.attach(r.address, timeout=0),
    "stat": lambda r, lib, op: r.dispatcher.facts.stat(),
    "members": lambda r, lib, op: r.dispatcher.facts.members(),
    "check": lambda r, lib, op: r.dispatcher.facts.check(),
    "version": lambda r, lib, op: r.dispatcher.facts.version(1),
}


@pytest.mark.parametrize("case", CLOSED)
def test_a_closed_registry_says_so_whatever_is_asked(registry, lib, case):
    op = registry.ops.s.f.default
    assert op(Array()) == "still"
    registry.close()
    with pytest.raises(
        (errors.RegistryClosedError, errors.RegistryNotFoundError, errors.RegistrarGoneError)
    ) as caught:
        CLOSED[case](registry, lib, op)
    assert_clear(caught.value)
    if case != "attach":
        assert type(caught.value) is errors.RegistryClosedError


@pytest.mark.shared
@pytest.mark.parametrize(
    "case",
    [
        *("call", "ops", "dir of ops", "a new operator object", "overloads"),
        *("wait_for_def", "stat", "members", "check", "version"),
    ],
)
def test_it_says_so_where_the_process_has_the_registry_open_elsewhere(registry, lib, case):
    other = md.Registry.attach(registry.address, timeout=0)
    op = other.ops.s.f.default
    with contextlib.suppress(errors.MissingKernelError):  # it is here, and not in the other one
        op(Array())
    other.close()
    with pytest.raises(errors.RegistryClosedError):
        CLOSED[case](other, lib, op)
    assert registry.ops.s.f(Array()) == "still"


def test_ending_things_of_a_closed_registry_is_harmless(registry, lib):
    wild = md.Library("_", "IMPL", registry=registry)
    wild.fallback(KERNEL, "Meta")
    registry.close()
    registry.close()
    lib.close()
    wild.close()
    assert registry.address
    assert "Registry" in repr(registry)
    assert "s" in repr(lib)
    with registry:
        pass


def test_a_worker_hears_that_the_main_interpreter_closed_the_registry(registry, lib, worker):
    mine = md.Library("s", "FRAGMENT", registry=worker)
    registry.close()
    for call in (
        lambda: mine.define("g(Tensor x) -> Any"),
        lambda: mine.impl("f", KERNEL, "CUDA"),
        lambda: md.Library("t", "DEF", registry=worker),
        lambda: md.wait_for_def("s::g", None, registry=worker),
    ):
        with pytest.raises(errors.RegistryClosedError) as caught:
            call()
        assert_clear(caught.value)


# --- names of registries --------------------------------------------------------------------------

FOLDER = os.fsdecode(native.folder()[1])


@pytest.fixture
def name():
    """A name that no registry has, though the folder exists. Its file is removed after the test."""
    name = f"test-bad-input-{os.getpid()}"
    path = f"{FOLDER}/{name}"
    md.Registry.create(name).close()
    if os.path.lexists(path):
        os.unlink(path)
    yield name
    if os.path.isdir(path) and not os.path.islink(path):
        os.rmdir(path)
    elif os.path.lexists(path):
        os.unlink(path)


def copy_of_a_registry(path):
    """A file with all bytes of a live registry."""
    with md.Registry.create(f"test-original-{os.getpid()}", capacity=1 << 20) as original:
        with open(f"{FOLDER}/{original.address.removeprefix('shm:')}", "rb") as file:
            data = file.read()
        with open(path, "wb") as file:
            file.write(data)
    os.chmod(path, 0o600)
    return data


def make_directory(path):
    os.mkdir(path)


def make_fifo(path):
    os.mkfifo(path, 0o600)


def make_symlink(path):
    os.symlink("/etc/passwd", path)


def make_dangling_symlink(path):
    os.symlink("/nonexistent", path)


def make_empty(path):
    with open(path, "wb"):
        os.chmod(path, 0o600)


def make_garbage(path):
    with open(path, "wb") as file:
        file.write(os.urandom(1 << 20))
    os.chmod(path, 0o600)


def make_zeroes(path):
    make_empty(path)
    os.truncate(path, 1 << 20)


def make_truncated(path):
    data = copy_of_a_registry(path)
    os.truncate(path, len(data) // 50)


def make_another_format(path):
    copy_of_a_registry(path)
    with open(path, "r+b") as file:
        file.seek(8)
        file.write(b"\xff\xff\xff\xff")


def make_writable_for_others(path):
    copy_of_a_registry(path)
    os.chmod(path, 0o666)


def make_another_users(path):
    if os.geteuid() != 0:
        pytest.skip("only root can make a file of another user")
    copy_of_a_registry(path)
    os.chown(path, 54321, 54321)


IN_THE_WAY = [
    (make_directory, errors.RegistryAccessError),
    (make_fifo, errors.RegistryAccessError),
    (make_symlink, errors.RegistryAccessError),
    (make_dangling_symlink, errors.RegistryAccessError),
    (make_empty, errors.RegistryFormatError),
    (make_garbage, errors.RegistryFormatError),
    (make_zeroes, errors.RegistryFormatError),
    (make_truncated, errors.RegistryFormatError),
    (make_another_format, errors.RegistryFormatError),
    (make_writable_for_others, errors.RegistryOwnerError),
    (make_another_users, errors.RegistryOwnerError),
]


@pytest.mark.parametrize(("make", "cls"), IN_THE_WAY, ids=lambda x: getattr(x, "__name__", None))
def test_what_bears_a_registrys_name_and_is_none_is_refused_and_left_alone(name, make, cls):
    path = f"{FOLDER}/{name}"
    make(path)
    before = os.lstat(path)
    for call in (
        lambda: md.Registry.attach(name, timeout=0),
        lambda: md.Registry.attach(f"shm:{name}", timeout=0),
        lambda: md.Registry.create(name),
    ):
        with pytest.raises(cls) as caught:
            call()
        assert type(caught.value) is cls
        assert name in str(caught.value)
        assert name in caught.value.registry
        assert_clear(caught.value)
    after = os.lstat(path)
    assert (after.st_ino, after.st_mode, after.st_uid, after.st_size) == (
        before.st_ino,
        before.st_mode,
        before.st_uid,
        before.st_size,
    )


def test_a_registry_that_is_nowhere_is_not_found(name):
    with pytest.raises(errors.RegistryNotFoundError) as caught:
        md.Registry.attach(name, timeout=0)
    assert isinstance(caught.value, FileNotFoundError)
    assert_clear(caught.value)


def test_a_name_that_is_taken_is_refused(name):
    with md.Registry.create(name) as first:
        with pytest.raises(errors.RegistryExistsError) as caught:
            md.Registry.create(name)
        assert isinstance(caught.value, FileExistsError)
        assert_clear(caught.value)
        md.Library("s", "DEF", registry=first)


ADDRESSES = [
    *(
        "fd:",
        "fd:1",
        "fd:1:2",
        "fd:1:2:zz",
        "fd:x:y:z",
        "fd:1:2:" + "0" * 33,
        "fd:1:2:" + "0" * 32 + "x",
        "fd:1:2:" + "0" * 32,
        "fd:1:2:" + ":".join(["0" * 32] * 2),
        "fd:1:2:" + ":".join(["0" * 32] * 2) + ":x",
    ),
    *(
        "shm:",
        "shm:a/b",
        "shm:.",
        "shm:..",
        ".",
        "..",
        ".hidden",
        "/dev/shm/x",
        "x" * 129,
        "x" * 181,
        "a/../b",
    ),
]


@pytest.mark.parametrize("address", ADDRESSES, ids=lambda a: a[:20])
def test_an_address_that_is_none_is_refused(address):
    for call in (
        lambda: md.Registry.attach(address, timeout=0),
        lambda: md.Registry.create(address),
    ):
        with pytest.raises(errors.InvalidNameError) as caught:
            call()
        assert_clear(caught.value)


@pytest.mark.parametrize("pid", [1, 2**22 + 1, 999999999])
def test_an_address_that_leads_nowhere_is_refused_at_once(pid):
    with pytest.raises(errors.RegistryError) as caught:
        md.Registry.attach(address_of(pid, 0), timeout=limit(60))
    assert_clear(caught.value)


@pytest.mark.parametrize("pid", [-1, 0])
def test_an_address_without_a_process_is_none(pid):
    with pytest.raises(errors.InvalidNameError) as caught:
        md.Registry.attach(address_of(pid, 0), timeout=limit(60))
    assert_clear(caught.value)


def test_an_address_of_this_process_that_is_no_registry_is_refused(tmp_path):
    with open(tmp_path / "file", "w+b") as file:
        os.chmod(file.fileno(), 0o600)
        os.posix_fallocate(file.fileno(), 0, 1 << 20)
        with pytest.raises(errors.RegistryFormatError):
            md.Registry.attach(address_of(os.getpid(), file.fileno()), timeout=0)
    reader, writer = os.pipe()
    try:
        with pytest.raises(errors.RegistryAccessError):
            md.Registry.attach(address_of(os.getpid(), reader), timeout=0)
    finally:
        os.close(reader)
        os.close(writer)


def test_another_registry_at_an_address_is_not_taken_for_the_one_that_was_meant(registry):
    kind, pid, number, uuid, origin = registry.address.split(":", 4)
    other = ("0" if uuid[0] != "0" else "1") + uuid[1:]
    with pytest.raises(errors.RegistryNotFoundError):
        md.Registry.attach(f"{kind}:{pid}:{number}:{other}:{origin}", timeout=0)


@pytest.mark.parametrize("capacity", [1, 466943, (1 << 34) + 1, 10**30, -(10**30)])
def test_a_capacity_out_of_bounds_is_refused_with_the_bounds(capacity):
    with pytest.raises(errors.InvalidArgumentError, match="466944") as caught:
        md.Registry.create(capacity=capacity)
    assert_clear(caught.value)


@pytest.mark.dear
def test_more_registries_than_a_process_can_open_are_refused_and_closing_one_helps():
    opened = []

    def open_all():
        for _ in range(65):
            opened.append(md.Registry.create(capacity=1 << 20))

    try:
        with pytest.raises(errors.RegistryFullError, match="64 registries") as caught:
            open_all()
        assert_clear(caught.value)
        opened.pop().close()
        opened.append(md.Registry.create(capacity=1 << 20))
    finally:
        for registry in opened:
            registry.close()


# --- the environment ------------------------------------------------------------------------------

PROBE = """
import json, os, sys
import mdispatch as md
outcomes = []
for hexadecimal in json.loads(sys.argv[1]):
    os.environb[b"%s"] = bytes.fromhex(hexadecimal)
    try:
        md.default_registry()
    except md.MdispatchError as error:
        outcomes.append([type(error).__name__, str(error)])
    else:
        outcomes.append(["none", ""])
print(json.dumps(outcomes))
"""


@pytest.mark.waits
def test_an_environment_that_names_no_registry_is_told_by_its_variable():
    values = [
        b"x y",
        b"\xff\xfe",
        b"\x1b[31m",
        b"a\nb",
        b"z" * 30_000,
        b"fd:1:2:3",
        b"no-such-registry",
        b"/",
    ]
    done = subprocess.run(
        [
            sys.executable,
            "-W",
            "error",
            "-c",
            PROBE % ENVIRONMENT,
            json.dumps([value.hex() for value in values]),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=limit(100),
    )
    assert done.returncode == 0, done.stderr
    outcomes = json.loads(done.stdout)
    assert len(outcomes) == len(values)
    for name, text in outcomes:
        assert_clear(getattr(errors, name)(text))
        assert f"{ENVIRONMENT}=" in text
        assert "Unset it" in text


@pytest.mark.parametrize("asked", ["CFFI", "both", " ", "\udc80"], ids=ascii)
def test_a_binding_that_is_none_is_refused(asked):
    from mdispatch.facts import native

    with pytest.raises(errors.BindingError) as caught:
        native.choose(asked, 0, False, (3, 13))
    assert_clear(caught.value)
