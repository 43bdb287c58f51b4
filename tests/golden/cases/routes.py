"""Golden errors: calls that are routed to another interpreter of the process."""

from __future__ import annotations

from golden_stage import Stage, case, elsewhere

# The main interpreter serves, another one calls and hands its error over.
SCRIPT = """
import pickle, threading, wave
import mdispatch as md

lib = md.Library("shop", "DEF")
lib.define("price(Any x) -> Any")
def price(x):
    if x == "no":
        raise wave.Error("no such thing")
    return {} if x == "dict" else kept.append(x) if isinstance(x, memoryview) else x
kept = []
lib.impl("price", price, "CompositeExplicitAutograd", serve=True)
CALLER = '''
import pickle
import mdispatch as md
try:
    with md.routing("shop", timeout=TIMEOUT):
        CALL
except md.MdispatchError as error:
    error.__notes__ = []
    with open("error", "wb") as file:
        pickle.dump(error, file)
'''
other = md.create_interpreter(own_gil=False)
CALLER = CALLER.replace("TIMEOUT", repr(timeout)).replace("CALL", call)
thread = threading.Thread(target=other.exec, args=(CALLER,))
thread.start()
thread.join()
other.close()
raise pickle.load(open("error", "rb"))
"""


def route(stage: Stage, call: str, timeout: float | None = None) -> None:
    """Raises the error of a routed call."""
    elsewhere(stage, f"call, timeout = {call!r}, {timeout!r}\n{SCRIPT}")


@case("RoutedError: an exception whose class the caller has not imported")
def _(stage: Stage) -> None:
    route(stage, "md.ops.shop.price('no')")


@case("RoutedError: a kernel that keeps memory")
def _(stage: Stage) -> None:
    route(stage, "md.ops.shop.price(bytearray(8))")


@case("CannotTravelError: an argument")
def _(stage: Stage) -> None:
    route(stage, "md.ops.shop.price(object())")


@case("CannotTravelError: a result")
def _(stage: Stage) -> None:
    route(stage, "md.ops.shop.price('dict')")


# A third interpreter has verified the kernel, and serves it under another definition.
OUTDATED = """
lib = md.Library("trade", "DEF")
lib.define("share(int x, int by) -> float")
lib.impl("share", lambda x, by: x / by, "CompositeExplicitAutograd")
OWNER = '''
import mdispatch as md
lib = md.Library("trade", "DEF")
lib.define("share(int x, int by) -> float")
def share(x, by):
    return x / by
lib.impl("share", share, "CompositeExplicitAutograd", serve=True)
'''
owner = md.create_interpreter(own_gil=False)
thread = threading.Thread(target=owner.exec, args=(OWNER,))
thread.start()
thread.join()
lib.close()
lib = md.Library("trade", "DEF")
lib.define("share(int by, int x) -> float")
lib.impl("share", lambda by, x: x / by, "CompositeExplicitAutograd")
other ="""


@case("KernelOutdatedError: whoever serves the kernel has verified it for another definition")
def _(stage: Stage) -> None:
    call = "md.ops.trade.share(x=8, by=2)"
    script = SCRIPT.replace('routing("shop"', 'routing("trade"').replace("other =", OUTDATED, 1)
    script = script.replace("raise pickle", "owner.close()\nraise pickle")
    elsewhere(stage, f"call, timeout = {call!r}, None\n{script}")


@case("CallTimeoutError: a busy owner")
def _(stage: Stage) -> None:
    route(stage, "md.ops.shop.price(1)", 0.0)


@case("OwnerGoneError: an owner that has ended")
def _(stage: Stage) -> None:
    elsewhere(
        stage,
        f"call, timeout = 'md.ops.shop.price(1)', None\n{SCRIPT}".replace(
            "other =", "md.facts.native.c_kernels.visit_close()\nother ="
        ),
    )


@case("RoutingCycleError: calls without end")
def _(stage: Stage) -> None:
    # Both interpreters serve a kernel that calls the other's.
    elsewhere(
        stage,
        """
import threading, pickle
import mdispatch as md
lib = md.Library("shop", "DEF")
for name in ("ping", "pong"):
    lib.define(f"{name}() -> int")
    lib.impl(name, int, "CompositeExplicitAutograd")
OWNER = '''
import pickle
import mdispatch as md
md.allow_routing("shop")
lib = md.Library("shop", "IMPL")
lib.impl("MINE", lambda: md.ops.shop.OTHER(), "CompositeExplicitAutograd", serve=True)
'''
CALL = '''
try:
    md.ops.shop.pong()
except md.errors.RoutingCycleError as error:
    error.__notes__ = []
    with open("error", "wb") as file:
        pickle.dump(error, file)
'''
owners = []
for mine, other in (("ping", "pong"), ("pong", "ping")):
    owners.append(md.create_interpreter(own_gil=False))
    owners[-1].exec(OWNER.replace("MINE", mine).replace("OTHER", other))
thread = threading.Thread(target=owners[0].exec, args=(CALL,))
thread.start()
thread.join()
for owner in owners:
    owner.close()
raise pickle.load(open("error", "rb"))
""",
    )


@case("InvalidArgumentError: routing for no namespace")
def _(stage: Stage) -> None:
    import mdispatch as md

    md.routing()


@case("InvalidArgumentError: a fallthrough kernel that is served")
def _(stage: Stage) -> None:
    import mdispatch as md

    library = stage.library("games", "DEF")
    library.define("roll(Any x) -> Any")
    library.impl("roll", md.fallthrough_kernel, "CPU", serve=True)


@case("InvalidArgumentError: a transport that is not installed")
def _(stage: Stage) -> None:
    library = stage.library("games", "DEF")
    library.define("roll(Any x) -> Any")
    library.impl("roll", lambda x: x, "CPU", serve="hots")


@case("InvalidArgumentError: no name of a transport")
def _(stage: Stage) -> None:
    library = stage.library("games", "DEF")
    library.define("roll(Any x) -> Any")
    library.impl("roll", lambda x: x, "CPU", serve=1.5)


def carried(why: str, started: bool = False, told: object = None) -> None:
    """Raises what a caller is told of a transport's refusal."""
    from mdispatch.across import routing
    from mdispatch.across.transports import transport
    from mdispatch.dispatch.context.homes import Home, here

    home = Home(here().space, here().pid + 1, 0, 0)
    raise routing.error_of("shop::price", home, getattr(transport, why), told, 2.0, started)


@case("CallTimeoutError: another process that was stopped in the kernel")
def _(stage: Stage) -> None:
    carried("LATE", True)


@case("OwnerGoneError: another process that was killed in the kernel")
def _(stage: Stage) -> None:
    carried("GONE", True)


@case("CannotTravelError: a tensor whose gradient would be lost")
def _(stage: Stage) -> None:
    lost = "torch.Tensor, whose gradient would be lost: gradients do not go through calls"
    carried("UNFIT", told=f"{lost} of other processes\nSend x.detach().")


@case("OwnerBusyError: another process with too many calls")
def _(stage: Stage) -> None:
    carried("BUSY")


@case("OwnerBusyError: another process with too many calls, and a queue that is full")
def _(stage: Stage) -> None:
    carried("BUSY", told=8)


@case("InvalidArgumentError: a queue of no length")
def _(stage: Stage) -> None:
    import mdispatch as md

    md.Serve("host", queue=-1)


@case("CannotTravelError: a call of more values than a message takes")
def _(stage: Stage) -> None:
    carried("LARGE", told="has 1,048,577 values")


@case("CannotTravelError: a result of another process that is too large")
def _(stage: Stage) -> None:
    carried("LARGE", True, "takes 1,073,742,080 bytes")


@case("RoutedError: an answer that cannot be read")
def _(stage: Stage) -> None:
    carried("DAMAGED", True, "a message of a routed call is damaged: it is cut off")


@case("RoutedError: a kernel of another process that keeps memory")
def _(stage: Stage) -> None:
    carried("KEPT", True)


# The main interpreter serves, and so does another one; a third has a handle of each.
TWO = """
import pickle, threading
import mdispatch as md

OWNER = '''
import pickle
import mdispatch as md
class Box: pass
def pair(x, y): pass
library.impl("pair", pair, "CompositeExplicitAutograd", serve=True)
def boxed():
    with open("box", "wb") as file:
        pickle.dump(md.share(Box()), file)
'''
library = md.Library("shop", "DEF")
library.define("pair(Any x, Any y) -> ()")
exec(OWNER)
boxed()
first = open("box", "rb").read()
second = md.create_interpreter(own_gil=False)
second.exec('import mdispatch as md\\nlibrary = md.Library("shop", "IMPL")' + OWNER + 'boxed()')
third = md.create_interpreter(own_gil=False)
third.exec(f'''
import pickle
import mdispatch as md
try:
    with md.routing("shop"):
        md.ops.shop.pair(pickle.loads({first!r}), pickle.load(open("box", "rb")))
except md.MdispatchError as error:
    with open("error", "wb") as file:
        pickle.dump(error, file)
''')
third.close()
second.close()
raise pickle.load(open("error", "rb"))
"""


@case("ForeignObjectError: handles of two homes that both serve the kernel")
def _(stage: Stage) -> None:
    elsewhere(stage, TWO)
