"""Plug-ins: the entry points of installed distributions, in each thing that warms up."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from patience import limit

import mdispatch as md
from mdispatch import errors

SHOP = """
import mdispatch as md
lib = md.Library("shop", "DEF")
lib.define("price(str article) -> str")
lib.define("norm(int x) -> str")
lib.impl("norm", lambda x: "slow", provider="slow", order=-1)
print("shop", end=" ")
"""
PLUG_IN = """
import mdispatch as md
print({name!r}, end=" ")
lib = md.Library("shop", "FRAGMENT")
lib.impl("price", lambda article: {name!r}, provider={name!r})
def begin():
    raise AssertionError("nobody calls it")
"""


@pytest.fixture
def install(tmp_path):
    """Installs a distribution, as pip would lay it out. Gives the folder."""

    def add(name, points, folder=tmp_path, **modules):
        info = folder / f"{name}-1.2.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n")
        (info / "entry_points.txt").write_text(points)
        for module, text in modules.items():
            (folder / f"{module}.py").write_text(text)
        return folder

    (tmp_path / "shop_ops.py").write_text(SHOP)
    return add


@pytest.fixture
def plugged(install):
    """Two plug-ins of "shop.plugins", of two distributions."""
    install(
        "zeta", "[shop.plugins]\na = zeta\n[other]\nx = gone\n", zeta=PLUG_IN.format(name="zeta")
    )
    points = "[shop.plugins]\nb = alpha:begin\n"
    return install("alpha", points, alpha=PLUG_IN.format(name="alpha"))


def run(folder, code, *arguments):
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    environment.pop("PYTEST_ADDOPTS", None)
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=limit(60),
    )


def test_they_are_imported_after_the_modules_by_their_names(plugged):
    ran = run(
        plugged,
        "import mdispatch as md\n"
        "warm = md.warm_up('shop_ops', entry_points='shop.plugins')\n"
        "print(md.call_all('shop::price', 'x'), warm.kernels)\n",
    )
    assert ran.stdout == "shop zeta alpha ['alpha', 'zeta'] 3\n", ran.stderr


WORKER = """
import mdispatch as md
try:
    md.warm_up("shop_ops", entry_points="shop.plugins")
    print(md.call_all("shop::price", "x"))
except md.errors.WarmUpError as error:
    for each in error.differences:
        print(type(each).__name__, [(f.path, f.here, f.there) for f in getattr(each, "fields", ())])
"""
MAIN = """
import os, subprocess, sys
import mdispatch as md
md.warm_up("shop_ops", entry_points="shop.plugins")
print(flush=True)
for folder in sys.argv[2:]:
    more = {**os.environ, "PYTHONPATH": os.pathsep.join([folder, sys.argv[1]])}
    subprocess.run([sys.executable, "-c", WORKER], cwd=folder, env=more)
"""
PACKAGE = os.path.dirname(os.path.dirname(md.__file__))


@pytest.mark.shared
@pytest.mark.needs("choices")
def test_a_member_with_other_plug_ins_is_told_which(plugged, install, tmp_path):
    other = install(
        "zeta", "[shop.plugins]\na = zeta\n", tmp_path / "other", zeta=PLUG_IN.format(name="zeta")
    )
    (other / "shop_ops.py").write_text(SHOP)
    ran = run(plugged, f"WORKER = {WORKER!r}\n{MAIN}", PACKAGE, str(plugged), str(other))
    same, unlike = ran.stdout.splitlines()[1:3]
    assert same == "shop zeta alpha ['alpha', 'zeta']", ran.stderr
    assert "DisagreementError [('b', 'missing', \"'alpha:begin'\")]" in unlike, ran.stdout


@pytest.mark.shared
def test_an_initializer_takes_them(plugged):
    ran = run(
        plugged,
        "from concurrent.futures import ProcessPoolExecutor\n"
        "import multiprocessing\n"
        "import mdispatch as md\n"
        "def ask(x): return md.call_all('shop::price', x)\n"
        "if __name__ == '__main__':\n"
        "    md.warm_up('shop_ops', entry_points='shop.plugins')\n"
        "    begin = md.initializer('shop_ops', entry_points=['shop.plugins'])\n"
        "    how = multiprocessing.get_context('spawn')\n"
        "    with ProcessPoolExecutor(1, how, initializer=begin) as pool:\n"
        "        print(pool.submit(md.call_all, 'shop::price', 'x').result())\n",
    )
    assert ran.stdout.splitlines()[-1].endswith("['alpha', 'zeta']"), ran.stderr


def test_one_that_cannot_be_imported_is_named(install):
    folder = install("broken", "[shop.plugins]\nbroken = broken_plug_in:begin\n")
    ran = run(
        folder,
        "import mdispatch as md\nmd.warm_up('shop_ops', entry_points='shop.plugins')\n",
    )
    assert "No module named 'broken_plug_in'" in ran.stderr
    words = "for the entry point 'broken = broken_plug_in:begin' of the group shop.plugins, which "
    assert f"{words}broken 1.2 declares" in ran.stderr


@pytest.mark.parametrize("groups", [3, [None], "", ["a", ""], "a\nb"])
def test_other_names_of_groups_are_refused(groups):
    with pytest.raises(errors.InvalidArgumentError, match="names groups of entry points"):
        md.warm_up(entry_points=groups)
    with pytest.raises(errors.InvalidArgumentError, match="names groups of entry points"):
        md.initializer(entry_points=groups)


def test_a_group_that_nobody_declares_is_empty(plugged):
    ran = run(plugged, "import mdispatch as md\nprint(md.warm_up(entry_points='nobody').kernels)")
    assert ran.stdout == "0\n", ran.stderr


# --- providers ------------------------------------------------------------------------------------

FAST = """
print("imported", end=" ")
def norm(x):
    return f"fast {x}"
"""
USE = """
import mdispatch as md
for _ in range(2):
    md.warm_up("shop_ops", entry_points="mdispatch.providers")
why = md.default_registry().why("shop::norm")
print([name for name, _ in why.providers], why.row.where.split(", ")[0], end=" ")
print(md.ops.shop.norm(1), md.ops.shop.norm(2))
"""


@pytest.mark.needs("providers")
def test_a_provider_is_registered_and_imported_by_the_first_call(install):
    folder = install(
        "shop-fast", "[mdispatch.providers]\nshop::norm fast = shop_fast:norm\n", shop_fast=FAST
    )
    ran = run(folder, USE)
    where = "shop-fast-1.2.dist-info/entry_points.txt:shop::norm fast"
    assert ran.stdout == f"shop ['fast', 'slow'] {where} imported fast 1 fast 2\n", ran.stderr


@pytest.mark.needs("providers")
def test_a_provider_has_a_key_if_its_name_says_so(install):
    points = "[mdispatch.providers]\nshop::norm fast CPU = shop_fast:norm\n"
    folder = install("shop-fast", points, shop_fast=FAST)
    ran = run(
        folder,
        "import mdispatch as md\n"
        "md.warm_up('shop_ops', entry_points='mdispatch.providers')\n"
        "print(md.ops.shop.norm.default.redispatch(md.DispatchKeySet('CPU'), 1))",
    )
    assert ran.stdout == "shop imported fast 1\n", ran.stderr


@pytest.mark.needs("providers")
@pytest.mark.parametrize("name", ["fast", "shop::norm", "shop::norm fast CPU more", "norm fast"])
def test_a_provider_of_another_name_is_refused_before_any_is_registered(install, name):
    points = f"[mdispatch.providers]\nshop::norm a = shop_fast:norm\n{name} = shop_fast:norm\n"
    folder = install("shop-fast", points, shop_fast=FAST)
    ran = run(
        folder,
        "import mdispatch as md\n"
        "try:\n"
        "    md.warm_up('shop_ops', entry_points='mdispatch.providers')\n"
        "except md.errors.InvalidArgumentError as error:\n"
        "    print(error)\n"
        "print(md.ops.shop.norm(1))",
    )
    assert "names no provider: write 'namespace::operator provider'" in ran.stdout, ran.stderr
    assert ran.stdout.endswith("\nslow\n")


# --- the command and pytest -----------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.shared
def test_the_command_verifies_them(plugged, install):
    words = ["-m", "mdispatch", "verify", "--entry-points", "shop.plugins", "shop_ops", "--json"]
    ran = subprocess.run(
        [sys.executable, *words],
        cwd=plugged,
        env={**os.environ, "PYTHONPATH": str(plugged)},
        capture_output=True,
        text=True,
        timeout=limit(60),
    )
    answer = json.loads(ran.stdout)
    assert answer["agree"] is True, ran.stdout
    assert [worker["kernels"] for worker in answer["workers"]] == [3] * 3


@pytest.mark.thorough
@pytest.mark.shared
def test_pytest_takes_them(plugged):
    (plugged / "test_it.py").write_text(
        "import mdispatch as md\n"
        "def test_here():\n"
        "    assert md.call_all('shop::price', 'x') == ['alpha', 'zeta']\n"
        "def test_there(interpreters):\n"
        "    found = interpreters.submit(md.call_all, 'shop::price', 'x').result()\n"
        "    assert found == ['alpha', 'zeta']\n"
    )
    options = ["--mdispatch-warm-up", "shop_ops", "--mdispatch-entry-points", "shop.plugins"]
    ran = run(
        plugged,
        "import pytest, sys\nsys.exit(pytest.main(sys.argv[1:]))",
        *("-q", "-p", "no:cacheprovider", "-p", "no:randomly", *options),
    )
    assert "2 passed" in ran.stdout, ran.stdout
