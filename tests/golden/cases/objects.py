"""Golden errors: objects of another interpreter, or of one that has ended."""

from __future__ import annotations

import pickle
import subprocess
import sys

from golden_stage import Array, Stage, case, elsewhere
from patience import limit

import mdispatch as md


def send(stage: Stage, script: str) -> None:
    """Raises the error of a script in another process that gets an object of this one."""
    parcel = md.SafeObject(Array())
    (stage.folder / "parcel").write_bytes(pickle.dumps(parcel))
    try:
        elsewhere(
            stage,
            "import pickle\nimport mdispatch as md\n"
            "parcel = pickle.load(open('parcel', 'rb'))\n" + script,
        )
    finally:
        parcel.close()


@case("ForeignObjectError: an object that is opened elsewhere")
def _(stage: Stage) -> None:
    send(stage, "parcel.open()")


@case("ForeignObjectError: an object that is closed elsewhere")
def _(stage: Stage) -> None:
    send(stage, "parcel.close()")


@case("ForeignObjectError: an argument of a call")
def _(stage: Stage) -> None:
    send(
        stage,
        "md.define('shop::scale', '(Tensor x) -> Tensor')\n"
        "md.impl('shop::scale', 'cpu', lambda x: x)\n"
        "md.ops.shop.scale(parcel)\n",
    )


@case("ForeignObjectError: a mode of another interpreter")
def _(stage: Stage) -> None:
    send(
        stage,
        "from mdispatch.context import push_mode\n"
        "md.define('shop::scale', '(Tensor x) -> Tensor')\n"
        "md.impl('shop::scale', 'cpu', lambda x: x)\n"
        "push_mode(parcel)\n"
        "md.ops.shop.scale(md.MetaTensor(()))\n",
    )


@case("ObjectGoneError: an object that was given up")
def _(stage: Stage) -> None:
    parcel = md.SafeObject(Array())
    parcel.close()
    parcel.open()


@case("ObjectGoneError: an argument of a call")
def _(stage: Stage) -> None:
    parcel = md.SafeObject(Array())
    parcel.close()
    stage.shop.scale(parcel)


@case("ObjectGoneError: the object's home has ended")
def _(stage: Stage) -> None:
    script = (
        "import pickle, sys\nimport mdispatch as md\nclass Model: pass\n"
        "pickle.dump(md.SafeObject(Model()), sys.stdout.buffer)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=limit(60))
    pickle.loads(done.stdout).open()


@case("ObjectGoneError: the guard has ended that it was pickled in")
def _(stage: Stage) -> None:
    with md.hermetic():
        parcel = pickle.dumps(md.SafeObject(Array()))
    pickle.loads(parcel).open()


@case("InvalidArgumentError: a holder of a holder")
def _(stage: Stage) -> None:
    md.SafeObject(md.SafeObject(Array()))


@case("HermeticError: an object that is shared inside hermetic()")
def _(stage: Stage) -> None:
    with md.hermetic():
        md.share(Array())


@case("InvalidArgumentError: a value that is shared")
def _(stage: Stage) -> None:
    md.share(3)


@case("ObjectGoneError: a method of an object that was given up")
def _(stage: Stage) -> None:
    handle = md.share(Array())
    handle.close()
    _ = handle.shape


@case("ForeignObjectError: a method of an object of another process")
def _(stage: Stage) -> None:
    handle = md.share(Array())
    (stage.folder / "parcel").write_bytes(pickle.dumps(handle))
    try:
        elsewhere(
            stage,
            "import pickle\nhandle = pickle.load(open('parcel', 'rb'))\nhandle.shape\n",
        )
    finally:
        handle.close()


@case("InvalidArgumentError: a method that a handle has for itself")
def _(stage: Stage) -> None:
    md.register_class("shop.File", methods={"close": "() -> ()"})
