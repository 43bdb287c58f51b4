"""Arrays of NumPy in calls of other interpreters and processes."""

from __future__ import annotations

import ctypes
import importlib.util

import pytest
from kinds import INTERPRETERS, PROCESSES, run_main

if importlib.util.find_spec("numpy") is None:
    pytest.skip("NumPy is not installed here", allow_module_level=True)

import numpy as np

import mdispatch as md
from mdispatch.across import arrays
from mdispatch.facts.native import c_kernels

pytestmark = [pytest.mark.shared, pytest.mark.needs("across")]

#: The beginning of the main part: its process serves kernels of "shop" to a worker.
SHOP = """
import tempfile
kind, *rest = args
folder = Path(tempfile.mkdtemp(dir=Path(__file__).parent))
lib = md.Library("shop", "DEF")
def served(schema):
    def register(function):
        name = lib.define(schema)
        how = "host" if kind in ("fork", "forkserver", "spawn", "subprocess") else True
        lib.impl(name, function, "CompositeExplicitAutograd", serve=how)
        return function
    return register
BEGIN = '''
import mdispatch as md
md.wait_for_def("shop::ready", timeout=limit(60.0))
def outcome(call, *args, **kwargs):
    try:
        return call(*args, **kwargs)
    except Exception as error:
        return [type(error).__name__, str(error), getattr(error, "value_type", None)]
'''
def begin(text):
    return Worker(kind, textwrap.dedent(BEGIN) + textwrap.dedent(text), 0, folder)
def end(worker):
    lib.define("ready() -> ()")
    return results([worker])[0]
"""


def shop(text: str, *args: object, **options: object) -> dict:
    return run_main(SHOP + text, *args, **options)


@pytest.mark.parametrize("kind", PROCESSES)
def test_arrays_arrive_as_arrays_and_come_back_as_arrays(kind):
    got = shop(
        """
worker = begin('''
import numpy as np
x = np.arange(6, dtype="f4").reshape(2, 3)
with md.routing("shop", timeout=limit(60.0)):
    made = md.ops.shop.ones(3)
    twice = md.ops.shop.twice(x)
    parts = md.ops.shop.parts([x, x[:, 1]], name="b")
    large = md.ops.shop.twice(np.ones(5_000_000))  # 40 MB
made += 1  # its own memory
report(made=[type(made).__name__, made.tolist()], twice=[twice.tolist(), str(twice.dtype)],
       parts=[each.tolist() for each in parts], large=[large.shape, float(large.sum())])
''')
import numpy as np
served("ones(int n) -> Tensor")(lambda n: np.ones(n))
@served("twice(Tensor x) -> Tensor")
def twice(x):
    seen.append([type(x).__name__, str(x.dtype), x.flags.writeable])
    return x * 2
@served("parts(Tensor[] some, *, str name) -> Tensor[]")
def parts(some, name):
    return [*some[::-1], np.array([name])]
seen = []
done(**end(worker), seen=seen)
""",
        kind,
    )
    assert got["made"] == ["ndarray", [2.0, 2.0, 2.0]]
    assert got["twice"] == [[[0.0, 2.0, 4.0], [6.0, 8.0, 10.0]], "float32"]
    assert got["parts"] == [[1.0, 4.0], [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]], ["b"]]
    assert got["large"] == [(5_000_000,), 10_000_000.0]
    assert got["seen"] == [["ndarray", "float32", False], ["ndarray", "float64", False]]


#: Arrays that travel, as text.
FIT = [
    "np.array([True, False])",
    "np.arange(4, dtype='i1')",
    "np.arange(4, dtype='>i4')",
    "np.arange(4, dtype='u8')",
    "np.arange(4, dtype='f2')",
    "np.arange(4, dtype='>f8')",
    "np.arange(4, dtype='c8')",
    "np.arange(4, dtype='>c16')",
    "np.array(['a', 'smørg'])",
    "np.array([b'a', b'bc'])",
    "np.array(['2024-01-01', 'NaT'], dtype='M8[D]')",
    "np.array([1, 2], dtype='>m8[ns]')",
    "np.array(5.0)",
    "np.array('2024-01-01', dtype='M8[s]')",
    "np.zeros((0, 3))",
    "np.zeros((2, 0), dtype='M8[s]')",
    "np.arange(12).reshape(3, 4)[::-1, ::2]",
    "np.asfortranarray(np.arange(6).reshape(2, 3))",
    "np.broadcast_to(np.arange(3), (2, 3))",
    "np.arange(2).reshape((1,) * 15 + (2,))",
]


@pytest.mark.thorough
def test_an_array_of_each_type_and_shape_arrives_as_it_is():
    got = shop(
        """
worker = begin(f'''
FIT = {rest[0]!r}
import numpy as np
def told(x):
    return [type(x).__name__, x.dtype.str, x.shape, x.tobytes()]
same, there, scalars = [], [], []
with md.routing("shop", timeout=limit(60.0)):
    for each in FIT:
        x = eval(each)
        copy, *what = md.ops.shop.told(x)
        what[2] = tuple(what[2])
        same.append([told(x) == told(copy), md.ops.shop.itself(x) is x])
        there.append(what == told(x))
    for each in (np.float32(1.5), np.int64(3), np.bool_(True), np.datetime64("2024", "Y")):
        back = md.ops.shop.itself(each)
        scalars.append([type(back).__name__, bool(back == each)])
report(same=same, there=there, scalars=scalars)
''')
import numpy as np
@served("told(Any x) -> Any[]")
def told(x):
    return [x.copy(), type(x).__name__, x.dtype.str, x.shape, x.tobytes()]
served("itself(Any x) -> Any")(lambda x: x)
done(**end(worker))
""",
        "subprocess",
        FIT,
    )
    assert dict(zip(FIT, got["there"], strict=True)) == dict.fromkeys(FIT, True)
    assert dict(zip(FIT, got["same"], strict=True)) == {each: [True, True] for each in FIT}
    assert got["scalars"] == [[name, True] for name in ("float32", "int64", "bool", "datetime64")]


@pytest.mark.thorough
def test_what_is_no_plain_array_is_refused_in_words_before_the_kernel_runs():
    got = shop(
        """
worker = begin('''
import numpy as np
class Mine(np.ndarray):
    pass
with md.routing("shop", timeout=limit(60.0)):
    take = md.ops.shop.take
    told = dict(
        objects=outcome(take, np.array([object()])),
        structure=outcome(take, np.zeros(2, dtype="i4,f8")),
        longdouble=outcome(take, np.zeros(2, dtype="g")),
        strings=outcome(take, np.array(["a"], dtype=np.dtypes.StringDType())),
        subclass=outcome(take, np.zeros(2).view(Mine)),
        masked=outcome(take, np.ma.array([1, 2], mask=[0, 1])),
        deep=outcome(take, np.zeros((1,) * 17)),
        result=outcome(md.ops.shop.make),
        fine=take(np.zeros(2)),
    )
report(told=told)
''')
import numpy as np
taken = []
@served("take(Any x) -> int")
def take(x):
    taken.append(x.size)
    return x.size
served("make() -> Any")(lambda: np.zeros(2, dtype="i4,f8"))
done(**end(worker), taken=taken)
""",
        "subprocess",
    )
    told = got["told"]
    assert told.pop("fine") == 2
    assert got["taken"] == [2]
    assert {each[0] for each in told.values()} == {"CannotTravelError"}
    text = {name: each[1] for name, each in told.items()}
    assert "an argument is an object of numpy.ndarray, whose items are objects" in text["objects"]
    assert "items of [('f0', '<i4'), ('f1', '<f8')] do not travel" in text["structure"]
    assert "do not travel\nSend booleans" in text["longdouble"]
    assert "items are objects of Python (StringDType())" in text["strings"]
    assert "Mine, whose base class numpy.ndarray travels, and it does not" in text["subclass"]
    assert "MaskedArray, whose base class numpy.ndarray" in text["masked"]
    assert "17 dimensions are more than 16" in text["deep"]
    assert "its result is an object of numpy.ndarray, whose items" in text["result"]


@pytest.mark.thorough
def test_what_a_kernel_writes_comes_back_where_the_schema_says_so_and_only_there():
    got = shop(
        """
worker = begin('''
import numpy as np
same = []
with md.routing("shop", timeout=limit(60.0)):
    fill = md.ops.shop.fill
    x = np.zeros((3, 2))
    same.append(fill(x, 1) is x)
    column = x[:, 1]
    same.append(fill(column, 2) is column)
    both = [np.zeros(20_000), np.zeros(2, dtype="M8[D]")]
    md.ops.shop.fill_all(both)
    frozen = np.zeros(2)
    frozen.flags.writeable = False
    errors = [outcome(fill, frozen, 1)[:2], outcome(md.ops.shop.spoil, x)[:2],
              outcome(md.ops.shop.keep, x)[1]]
report(same=same, x=x.tolist(), both=[float(both[0].sum()), str(both[1][1])], errors=errors,
       frozen=frozen.tolist())
''')
import numpy as np
@served("fill(Tensor(a!) x, int n) -> Tensor(a!)")
def fill(x, n):
    x[...] = n
    return x
@served("fill_all(Tensor(a!)[] some) -> ()")
def fill_all(some):
    for each in some:
        each[...] = np.ones(1).astype(each.dtype)
@served("spoil(Tensor x) -> Tensor")
def spoil(x):
    x[...] = 9
    return x
kept = []
served("keep(Tensor x) -> ()")(lambda x: kept.append(x[:1]))
done(**end(worker), kept=kept[0].tolist())
""",
        "subprocess",
    )
    assert got["same"] == [True, True]
    assert got["x"] == [[1.0, 2.0]] * 3
    assert got["both"] == [20_000.0, "1970-01-02"]
    assert got["frozen"] == [0.0, 0.0]
    writes, spoils, keeps = got["errors"]
    assert writes == spoils == ["ValueError", "assignment destination is read-only"]
    assert "has kept memory of an argument" in keeps
    assert got["kept"] == [[1.0, 2.0]]


@pytest.mark.parametrize("kind", [*INTERPRETERS, "subprocess"])
def test_who_lacks_numpy_is_told_so_and_may_ask_for_memory(kind):
    got = shop(
        """
worker = begin('''
import sys
if rest:
    sys.modules["numpy"] = None  # cannot be imported
with md.routing("shop", timeout=limit(60.0)):
    told = outcome(md.ops.shop.ones, 3)
    asked = outcome(md.ops.shop.grid)
with md.routing("shop", timeout=limit(60.0), arrays="memory"):
    memory = md.ops.shop.grid()
    inside = [type(each).__name__ for each in md.ops.shop.several()]
with md.routing("shop", timeout=limit(60.0), arrays="torch"):
    torch = outcome(md.ops.shop.grid)
report(told=told, asked=asked, memory=[type(memory).__name__, memory.tolist()], torch=torch[:2],
       inside=inside, imported=[each for each in ("numpy", "torch") if sys.modules.get(each)])
'''.replace("if rest:", f"if {kind == 'subprocess'}:"))
import numpy as np
served("ones(int n) -> Tensor")(lambda n: np.ones(n))
served("grid() -> Any")(lambda: np.ones((2, 2), dtype="i4"))
served("several() -> Any[]")(lambda: [np.ones(1), 5, [np.ones(1)]])
done(**end(worker))
""",
        kind,
    )
    assert got["told"][0] == got["asked"][0] == "CannotTravelError"
    assert "an array (numpy.ndarray) came to interpreter" in got["told"][1]
    why = "cannot be imported here" if kind == "subprocess" else "is not imported in this sub"
    assert f"NumPy {why}" in got["told"][1]
    assert 'routing(..., arrays="memory")' in got["told"][1]
    assert got["memory"] == ["memoryview", [[1, 1], [1, 1]]]
    assert got["inside"] == ["memoryview", "int", "list"]
    assert "PyTorch" in got["torch"][1]
    assert got["imported"] == []


@pytest.mark.parametrize("kind", INTERPRETERS)
def test_an_owner_without_numpy_gets_no_array_but_its_memory(kind):
    got = run_main(
        """
import numpy as np
other = md.create_interpreter(own_gil=args[0] == "own-gil")
import pickle, threading
file = Path(__file__).with_name("handle")
def run(text):
    thread = threading.Thread(target=other.exec, args=(textwrap.dedent(text),))
    thread.start()
    thread.join()
run('''
import mdispatch as md
class Summing:
    def total(self, x):
        return float(sum(x))
handle = md.share(Summing())
import pickle
with open(FILE, "wb") as file:
    pickle.dump(handle, file)
'''.replace("FILE", repr(str(file))))
handle = pickle.loads(file.read_bytes())
x = np.arange(4.0)
try:
    handle.total(x)
except md.errors.CannotTravelError as error:
    told = str(error)
got = handle.total(memoryview(x))
other.close()
done(told=told, got=got)
""",
        kind,
    )
    assert "NumPy is not imported in this sub-interpreter" in got["told"]
    assert "Send an argument as memoryview(x)" in got["told"]
    assert got["got"] == 6.0


@pytest.mark.thorough
def test_an_owner_process_that_cannot_import_numpy_says_so():
    got = shop(
        """
worker = begin('''
import numpy as np
with md.routing("shop", timeout=limit(60.0)):
    refused = outcome(md.ops.shop.size, np.ones(3))
    fine = md.ops.shop.size(memoryview(np.ones(3)))
report(refused=refused, fine=fine)
''')
sys.modules["numpy"] = None  # cannot be imported
served("size(Any x) -> int")(lambda x: x.nbytes)
done(**end(worker))
""",
        "subprocess",
    )
    assert got["refused"][0] == "CannotTravelError"
    assert "came to interpreter 0 of process" in got["refused"][1]
    assert "NumPy cannot be imported here: ModuleNotFoundError" in got["refused"][1]
    assert got["fine"] == 24


@pytest.mark.thorough
def test_the_owner_dispatches_on_the_keys_of_the_array_that_it_has():
    got = shop(
        """
worker = begin('''
import numpy as np
with md.routing("shop", timeout=limit(60.0)):
    keys = md.ops.shop.keys(np.ones(2))
report(keys=keys)
''')
lib.define("inner(Tensor x) -> str")
lib.impl("inner", lambda x: f"inner {type(x).__name__}", "CPU")
lib.impl("inner", lambda x: "another key", "CompositeExplicitAutograd")
served("keys(Tensor x) -> str")(lambda x: f"{[*md.key_set_of(x)]} {md.ops.shop.inner(x)}")
done(**end(worker))
""",
        "subprocess",
    )
    assert got["keys"] == "[DispatchKey.CPU] inner ndarray"


@pytest.mark.thorough
def test_methods_of_handles_take_and_return_arrays():
    got = shop(
        """
import numpy as np
class Table:
    def twice(self, x):
        return x * 2
import pickle
handle = md.share(Table(), serve="host")
worker = begin(f'''
import pickle
import numpy as np
handle = pickle.loads({pickle.dumps(handle)!r})
x = handle.twice(np.arange(3))
report(x=[type(x).__name__, x.tolist()])
''')
done(**end(worker))
""",
        "subprocess",
    )
    assert got["x"] == ["ndarray", [0, 2, 4]]


def test_arrays_of_another_kind_than_the_three_are_refused():
    with pytest.raises(
        md.errors.InvalidArgumentError, match="jax, not one of numpy, torch, memory"
    ):
        md.routing("shop", arrays="jax")
    with pytest.raises(md.errors.InvalidArgumentError, match="None for what the kernel"):
        md.allow_routing("shop", arrays="")


def pack(value):
    return c_kernels.pack([value], -1, (), (), [], None, 1 << 20)


def test_an_array_of_ctypes_arrives_as_its_memory():
    value = [(ctypes.c_int * 3)(1, 2, 3), (ctypes.c_ubyte * 2)(1, 2)]
    ints, single = c_kernels.unpack(pack(value), (), [], 2)[0]
    assert bytes(ints) == bytes(value[0])
    assert single.tolist() == [1, 2]


@pytest.mark.parametrize("how", [0, 1, 2, 3])
def test_every_changed_byte_of_an_array_is_refused_or_read_whole(how):
    value = [np.array([1, 2, 3], dtype="M8[D]"), np.arange(4.0).reshape(2, 2)]
    message = pack(value)
    (back,) = c_kernels.unpack(message, (), [], how)
    assert [each.tolist() for each in back] == [each.tolist() for each in value]
    refused = 0
    for place in range(len(message)):
        for change in (1, 2, 4, 7, 8, 9, 0x80, 0xFF):
            changed = bytearray(message)
            changed[place] ^= change
            try:
                repr(c_kernels.unpack(changed, (), [], how))
            except (ValueError, NotImplementedError, OverflowError):
                refused += 1
    assert refused > len(message)


@pytest.mark.parametrize(
    "form",
    ["", "numpy", "numpy O", "numpy V8", "torch float32 -1", "jax <f8", "numpy ("],
)
def test_a_form_that_nobody_has_sent_is_damaged(form):
    with pytest.raises(ValueError, match="damaged"):
        arrays.array_of(form, memoryview(bytearray(8)), True)
