"""Classes with a codec: their objects travel by value, to other interpreters and processes."""

from __future__ import annotations

import pytest
from kinds import INTERPRETERS, PROCESSES, run_main

pytestmark = pytest.mark.shared

#: What the main part begins with. It serves kernels of "shop" to a worker that was started before.
HEAD = """
import tempfile
kind, *rest = args
folder = Path(tempfile.mkdtemp(dir=Path(__file__).parent))
BEGIN = '''
import os
import mdispatch as md
md.wait_for_def("shop::ready", timeout=limit(60.0))
def outcome(call, *args, **kwargs):
    try:
        return call(*args, **kwargs)
    except Exception as error:
        return [type(error).__name__, str(error), getattr(error, "value_type", None)]
'''
def begin(text):
    return Worker(kind, textwrap.dedent(BEGIN) + CONFIG + textwrap.dedent(text), 0, folder)
lib = md.Library("shop", "FRAGMENT")
def served(schema):
    def register(function):
        name = lib.define(schema)
        how = "host" if kind in ("fork", "forkserver", "spawn", "subprocess") else True
        lib.impl(name, function, "CompositeExplicitAutograd", serve=how)
        return function
    return register
def end(worker):
    lib.define("ready() -> ()")
    return results([worker])[0]
"""

#: Both sides import this.
CONFIG = """
def encode(config):
    if config.port == 1:
        raise LookupError("no such port")
    return {"port": config.port, "hosts": config.hosts, "more": config.more}
def decode(told):
    if told["port"] == 2:
        raise LookupError("a port that cannot be")
    return {} if told["port"] == 3 else Config(**told)
def register():
    return md.register_class("shop.Config", codec=(encode, decode), methods={
        "moved": "(int by) -> shop.Config",
    })
class Config:
    def __init__(self, port, hosts=(), more=None):
        self.port, self.hosts, self.more = port, list(hosts), more
    def __eq__(self, other):
        return vars(self) == vars(other)
    def moved(self, by):
        return Config(self.port + by, self.hosts, self.more)
"""


def shop(text: str, *args: object) -> dict:
    return run_main(f"CONFIG = {CONFIG!r}\n{HEAD}{CONFIG}{text}", *args)


@pytest.mark.parametrize("kind", [*INTERPRETERS, *PROCESSES])
def test_an_object_of_a_constant_class_arrives_as_an_equal_one_there_and_back(kind):
    got = shop(
        """
worker = begin('''
register()(Config)
config = Config(4, ["a", "sm\\u00f8rg"], {"deep": [1, 2.5, None, 10**30]})
with md.routing("shop", timeout=limit(60.0)):
    back = md.ops.shop.echo(config)
    many = md.ops.shop.swap([config, Config(5)], last=Config(6))
    ports = md.ops.shop.port(config)
report(same=back == config, other=back is not config, cls=type(back) is Config,
       many=[each.port for each in many], ports=ports,
       moved=md.ops.shop.Config.moved(config, 3).port)
''')
register()(Config)
@served("echo(shop.Config c) -> shop.Config")
def echo(c):
    assert type(c) is Config and c.more == {"deep": [1, 2.5, None, 10**30]}
    return c
@served("swap(shop.Config[] some, *, shop.Config last) -> shop.Config[]")
def swap(some, last):
    return [last, *reversed(some)]
@served("port(Any c) -> int")
def port(c):
    return c.port
done(**end(worker))
""",
        kind,
    )
    assert {each: got[each] for each in ("same", "other", "cls")} == dict.fromkeys(
        ("same", "other", "cls"), True
    )
    assert got["many"] == [6, 5, 4]
    assert got["ports"] == 4
    assert got["moved"] == 7


@pytest.mark.parametrize("kind", [*INTERPRETERS, "subprocess"])
def test_what_a_codec_refuses_is_said_and_the_next_call_is_answered(kind):
    got = shop(
        """
worker = begin('''
register()(Config)
class Derived(Config):
    pass
class Other:
    pass
with md.routing("shop", timeout=limit(60.0)):
    ops = md.ops.shop
    told = dict(
        encode=outcome(ops.take, Config(1)),
        decode=outcome(ops.take, Config(2)),
        decoded=outcome(ops.take, Config(3)),
        large=outcome(ops.take, Config(4, more="x" * 2**20)),
        json=outcome(ops.take, Config(4, more={1, 2})),
        derived=outcome(ops.take, Derived(4)),
        other=outcome(ops.any, Other()),
        encode_there=outcome(ops.make, 1),
        decode_here=outcome(ops.make, 2),
        share=outcome(md.share, Config(4)),
    )
    told["fine"] = ops.take(Config(4)), ops.make(5).port
report(told=told)
''')
register()(Config)
taken = []
@served("take(shop.Config c) -> int")
def take(c):
    taken.append(c.port)
    return c.port
served("any(Any c) -> int")(take)
served("make(int port) -> shop.Config")(lambda port: Config(port))
got = end(worker)["told"]
done(told=got, taken=taken)
""",
        kind,
    )
    told = got["told"]
    assert got["taken"] == [4]  # no refused object came to the kernel
    assert told.pop("fine") == (4, 5)
    assert told.pop("share")[0] == "InvalidArgumentError"
    assert {each[0] for each in told.values()} == {"CannotTravelError"}
    text = {name: each[1] for name, each in told.items()}
    assert "an argument is an object of shop.Config, whose encode() failed: " in text["encode"]
    assert "LookupError: no such port" in text["encode"]
    assert "its result is an object of shop.Config, whose encode() failed" in text["encode_there"]
    failed = "its decode() failed there: LookupError: a port that cannot be"
    assert failed in text["decode"]
    assert failed in text["decode_here"]
    assert "its decode() gave an object of dict there" in text["decoded"]
    assert "not at most 1,048,576" in text["large"]
    assert "TypeError: Object of type set is not JSON serializable" in text["json"]
    assert "Derived, whose base class shop.Config has a codec, and it has none" in text["derived"]
    assert "an object of Other, which cannot travel" in text["other"]
    assert told["encode"][2] == told["decode"][2] == "shop.Config"


@pytest.mark.parametrize("kind", [INTERPRETERS[-1], "subprocess"])
def test_a_class_is_made_only_where_it_is_registered(kind):
    got = shop(
        """
worker = begin('''
with md.routing("shop", timeout=limit(60.0)):
    unknown = outcome(md.ops.shop.make)
    only_here = md.register_class("shop.Mine", codec=(vars, lambda told: 0))(type("Mine", (), {}))
    mine = outcome(md.ops.shop.any, only_here())
    fine = md.ops.shop.any(5)
report(unknown=unknown, mine=mine, fine=fine)
''')
register()(Config)
md.register_class("shop.Mine", codec=(vars, lambda told: 0))(type("Mine", (), {}))
from mdispatch.schema.classes import drop_class, class_of
drop_class("shop.Mine", class_of("shop.Mine"))  # the fact stays
served("make() -> Any")(lambda: Config(4))
served("any(Any c) -> Any")(lambda c: c)
done(**end(worker))
""",
        kind,
    )
    assert got["unknown"][0] == got["mine"][0] == "CannotTravelError"
    assert "shop.Config came to interpreter" in got["unknown"][1]
    assert "no class of that name is registered there" in got["unknown"][1]
    assert "shop.Mine came to interpreter 0" in got["mine"][1]
    assert got["fine"] == 5


@pytest.mark.parametrize("kind", [INTERPRETERS[-1], "subprocess"])
def test_whether_a_class_is_a_constant_is_verified(kind):
    got = shop(
        """
worker = begin('''
methods = {"moved": "(int by) -> shop.Config"}
told = outcome(lambda: md.register_class("shop.Config", methods=methods)(Config))
other = outcome(lambda: md.register_class("shop.Plain", codec=(vars, dict))(Config))
report(told=told, other=other)
''')
register()(Config)
md.register_class("shop.Plain")(type("Plain", (), {}))
bad = [md.errors.InvalidArgumentError.__name__ for each in (1, (vars,), (vars, 2), [vars, dict])
       if raises(md.errors.InvalidArgumentError, md.register_class, "shop.Bad", codec=each)]
done(**end(worker), bad=len(bad))
""".replace(
            "bad = [",
            """def raises(cls, call, *args, **kwargs):
    try:
        call(*args, **kwargs)
    except cls:
        return True
bad = [""",
        ),
        kind,
    )
    assert got["told"][0] == got["other"][0] == "ClassMismatchError"
    assert "class shop.Config is no constant here, unlike in" in got["told"][1]
    assert "only there: it is a constant" in got["told"][1]
    assert "class shop.Plain is a constant here, unlike in" in got["other"][1]
    assert got["bad"] == 4
