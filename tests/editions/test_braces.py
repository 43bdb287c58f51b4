"""Braces in names and addresses: their meaning, and when they are replaced."""

from __future__ import annotations

import json
import os
import re
import secrets
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from commands import environment
from kinds import INTERPRETERS, run_main

import mdispatch as md
from mdispatch import errors
from mdispatch.editions.joining import replaced
from mdispatch.facts.opening import ENVIRONMENT

SET = "MDISPATCH_TEST_RELEASE"


@pytest.fixture
def name() -> str:
    return f"e{secrets.token_hex(5)}"


@pytest.fixture(autouse=True)
def release(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv(SET, "1.4.2+g1")
    return "1.4.2+g1"


@pytest.mark.parametrize(
    ("address", "text"),
    [
        ("elect:shop@{env:%s}", "elect:shop@1.4.2+g1"),
        ("shop@{env:%s}", "shop@1.4.2+g1"),
        ("{env:%s}", "1.4.2+g1"),
        ("elect:shop@r{env:%s}-{env:%s}", "elect:shop@r1.4.2+g1-1.4.2+g1"),
        ("elect:shop@{dist:pytest}", f"elect:shop@{version('pytest')}"),
        ("elect:shop@{dist:PyTest}", f"elect:shop@{version('pytest')}"),
        ("cluster:redis:h/0?run=a@{env:%s}&lease=5", "cluster:redis:h/0?run=a@1.4.2+g1&lease=5"),
    ],
)
def test_what_is_in_braces_is_replaced(address: str, text: str) -> None:
    assert replaced(address.replace("%s", SET)) == text


@pytest.mark.parametrize(
    ("braces", "value", "words"),
    [
        ("{}", None, "means nothing: write {env:NAME}"),
        ("{env}", None, "means nothing"),
        ("{env:}", None, "means nothing"),
        ("{git:HEAD}", None, "means nothing"),
        ("{env:MDISPATCH_TEST_NONE}", None, "is not in the environment of process"),
        ("{env:MDISPATCH_TEST_EMPTY}", "", "is empty in the environment of process"),
        ("{env:MDISPATCH_TEST_PATH}", "a/b", "an edition has A-Z a-z 0-9 _ - . + and nothing"),
        ("{dist:cfi}", None, "not installed here"),
        ("{dist:../x}", None, "not installed here"),
    ],
)
def test_what_cannot_be_replaced_is_refused_with_the_reason(
    braces: str, value: str | None, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MDISPATCH_TEST_EMPTY", "")
    monkeypatch.setenv("MDISPATCH_TEST_PATH", "a/b")
    address = f"elect:shop@{braces}"
    with pytest.raises(errors.EditionError, match=re.escape(words)) as caught:
        replaced(address)
    error = caught.value
    assert (error.name, error.braces, error.value) == (address, braces, value)
    assert isinstance(error, errors.InvalidNameError)


def test_a_distribution_like_the_one_that_is_not_there_is_named() -> None:
    with pytest.raises(errors.EditionError, match=re.escape("Did you mean pytest")):
        replaced("shop@{dist:pytes}")


@pytest.mark.parametrize("address", ["shop@{env:X", "shop@env:X}", "{", "}{", "shop@{{env:%s}}"])
def test_a_brace_alone_is_refused(address: str) -> None:
    with pytest.raises(errors.EditionError, match="a brace without its other one"):
        replaced(address.replace("%s", SET))


# --- the ways to a registry -----------------------------------------------------------------------


@pytest.mark.shared
def test_each_way_to_a_named_registry_takes_braces(name: str, release: str) -> None:
    braces, plain = f"{name}@{{env:{SET}}}", f"{name}@{release}"
    with md.Registry.create(braces) as made:
        assert made.address == f"shm:{plain}"
        with md.Registry.attach(braces, timeout=0) as there:
            assert there.address == made.address
        with pytest.raises(errors.RegistryExistsError, match=re.escape(plain)):
            md.Registry.create(braces)
    with md.Registry.elect(braces) as made, md.Registry.elect(plain) as same:
        assert made.address == same.address == f"elect:{plain}"
    with pytest.raises(errors.RegistryNotFoundError, match=re.escape(plain)):
        md.Registry.attach(braces, timeout=0)


@pytest.mark.parametrize("way", ["create", "elect", "attach"])
@pytest.mark.shared
def test_each_way_refuses_braces_that_mean_nothing(way: str) -> None:
    with pytest.raises(errors.EditionError):
        getattr(md.Registry, way)("shop@{env:MDISPATCH_TEST_NONE}")


@pytest.mark.parametrize("bad", ["shop@", "@1", "shop@1@2", "shop+1", "shop@a b", "shop@a/b"])
@pytest.mark.shared
def test_a_name_that_is_none_is_refused(bad: str) -> None:
    for way in (md.Registry.create, md.Registry.elect, md.Registry.attach):
        with pytest.raises(errors.InvalidNameError, match="NAME@EDITION"):
            way(bad)


# --- the default registry -------------------------------------------------------------------------

CHILD = """
import json, os, sys
import mdispatch as md
print(json.dumps([md.default_registry().address, os.environ["MDISPATCH_REGISTRY"]]))
"""


def default(address: str, code: str = CHILD, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        env=environment(**{ENVIRONMENT: address, SET: "1.4.1", **more}),
        text=True,
        capture_output=True,
    )


@pytest.mark.shared
def test_the_default_registry_is_of_the_edition_and_children_join_it(name: str) -> None:
    """The child's environment has another release by then: it does not ask again."""
    code = CHILD + (
        f"os.environ[{SET!r}] = '1.5'\n"
        "import subprocess\n"
        f"sys.stdout.flush()\n"
        f"subprocess.run([sys.executable, '-c', {CHILD!r}], check=True)\n"
        "pid = os.fork()\n"
        f"if not pid:\n"
        f"    exec({CHILD!r})\n"
        "    sys.stdout.flush()\n"
        "    os._exit(0)\n"
        "os.waitpid(pid, 0)\n"
    )
    done = default(f"elect:{name}@{{env:{SET}}}", code)
    assert done.returncode == 0, done.stderr
    expected = [f"elect:{name}@1.4.1"] * 2
    assert [json.loads(line) for line in done.stdout.splitlines()] == [expected] * 3


@pytest.mark.shared
def test_after_an_exec_the_edition_is_the_one_that_the_process_has_written(name: str) -> None:
    code = (
        "import os, sys\n"
        "import mdispatch as md\n"
        "md.default_registry()\n"
        f"os.environ[{SET!r}] = '1.5'\n"
        f"os.execv(sys.executable, [sys.executable, '-c', {CHILD!r}])\n"
    )
    done = default(f"elect:{name}@{{env:{SET}}}", code)
    assert json.loads(done.stdout) == [f"elect:{name}@1.4.1"] * 2


@pytest.mark.shared
def test_braces_that_mean_nothing_are_told_with_the_variable(name: str) -> None:
    done = default(f"elect:{name}@{{env:MDISPATCH_TEST_NONE}}")
    last = done.stderr.splitlines()[-2:]
    assert done.returncode == 1
    assert "EditionError: {env:MDISPATCH_TEST_NONE} in " in last[0]
    assert last[1].startswith(f"{ENVIRONMENT}=elect:{name}@{{env:MDISPATCH_TEST_NONE}} in the")


IN_MAIN = """
    name, kind, body = args
    import os
    from mdispatch.pool import interpreters
    os.environ["MDISPATCH_REGISTRY"] = f"elect:{name}@{{env:MDISPATCH_TEST_LATE}}"
    earlier = interpreters.create_interpreter(own_gil=kind == "own-gil")
    earlier.exec("import os")  # it has its own copy of the environment now, without the release
    os.environ["MDISPATCH_TEST_LATE"] = "1.4.1"
    registry = md.default_registry()
    path = os.path.join(os.environ["FOLDER"], "address")
    earlier.exec(body.format(path=path))
    done(main=registry.address, earlier=open(path).read())
    earlier.close()
"""

IN_EARLIER = """
import sys
sys.path[:] = {{path_list!r}}
assert "MDISPATCH_TEST_LATE" not in os.environ
import mdispatch as md
open({path!r}, "w").write(md.default_registry().address)
"""


@pytest.mark.parametrize("kind", INTERPRETERS)
@pytest.mark.shared
def test_an_interpreter_with_an_older_environment_has_the_default_of_its_process(
    name: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FOLDER", str(tmp_path))
    body = IN_EARLIER.replace("{{path_list!r}}", repr(sys.path))
    values: dict[str, Any] = run_main(IN_MAIN, name, kind, body)
    assert values["main"] == values["earlier"] == f"elect:{name}@1.4.1"


def test_a_program_without_braces_loads_nothing_of_editions() -> None:
    code = (
        "import sys, mdispatch as md\n"
        "md.default_registry()\n"
        "print([each for each in sys.modules if each.startswith('mdispatch.editions')])\n"
    )
    env = {key: value for key, value in os.environ.items() if key != ENVIRONMENT}
    done = subprocess.run([sys.executable, "-c", code], env=env, text=True, capture_output=True)
    assert done.stdout.strip() == "[]"
