"""Who may do what in a real Redis: users with the rules that docs/security.md gives, and TLS with
certificates that the test makes.
"""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
from pathlib import Path

import pytest
from cluster_hosts import Host
from cluster_threads import arrives, changes_until, comes, define, host, leader
from redis_server import RedisServer

import mdispatch as md
from mdispatch.cluster import Unreachable, connect, parse_url
from mdispatch.cluster.hosts import CUT, told
from mdispatch.errors import EngineUnreachableError

pytestmark = [pytest.mark.shared, pytest.mark.specification]

PAGE = Path(__file__).parents[2] / "docs" / "security.md"


@pytest.fixture
def users(server: RedisServer, run):
    """The URL of each user that the page makes, for this run; nobody else may do anything."""
    rules = re.findall(r"^ACL SETUSER (\S+) (.*)$", PAGE.read_text(), re.MULTILINE)
    assert len(rules) == 4
    with server.client() as client:
        for name, rule in rules:
            said = rule.replace("train-7", run).replace("PASSWORD", f"secret-of-{name}")
            client.execute_command("ACL", "SETUSER", name, *said.split())
        client.execute_command("ACL", "SETUSER", "default", "-@all", "+acl", "+auth")
    return {
        name: parse_url(server.url(run, user=name, password=f"secret-of-{name}"))
        for name, _ in rules
    }


def refused(call, *arguments):
    with pytest.raises(Unreachable, match=r"(?i)no *perm|can't access|can't run"):
        call(*arguments)


@pytest.mark.thorough
def test_each_role_can_do_its_part_with_its_own_user_and_nothing_else(users, run, tmp_path):
    urls = [users[name] for name in ("leader", "bridge", "looks", "accepts")]
    of_leader, of_bridge, of_reader, of_person = urls
    with leader(of_leader, f"{run}-a") as main, host(of_bridge, f"{run}-1") as worker:
        define(main, "one")
        arrives(worker, "one")
        md.seal(registry=main)
        bridge, reader, person, leads = (
            connect(url) for url in (of_bridge, of_reader, of_person, of_leader)
        )
        try:
            before = bridge.status()
            assert before.epoch == 1
            assert before.leader
            token = b"t" * 16
            for each in (bridge, reader, person):
                refused(each.acquire, token, b"me", 10, 9)
                refused(each.renew, 1, token, 10, before.tail)
                refused(each.release, 1, token)
                refused(each.append, 1, token, before.tail, 9, b"x")
                refused(each.put, 1, token, "snapshot", b"x")
                refused(each.drop, 1, token, ["snapshot"])
                refused(each.trim, 1, token, before.tail)
                assert each.get("snapshot")
                assert each.read((0, 0), 1, 0)
            for each in (reader, person):
                refused(each.announce, "h:1", b"{}", 10)
            for each in (reader, bridge):
                refused(each.accept, b"{}")
                assert each.hosts()
            person.accept(b"{}")
            assert reader.status().accepted == b"{}"
            assert reader.status().tail == leads.status().tail
        finally:
            for each in (bridge, reader, person, leads):
                each.close()
        looking = Host("looking", tmp_path)
        try:
            url = f"{of_reader.engine}?run={run}"
            assert "epoch 1, sequence" in looking.command("cluster", url).stdout
            assert looking.command("cluster", "accept", url).returncode == 2
            url = f"{of_person.engine}?run={run}"
            assert looking.command("cluster", "accept", url).returncode == 0
        finally:
            looking.close()
        define(main, "two")
        comes(worker, "two")
        assert not any("cut off" in text for text in worker.said), worker.said


def test_the_user_of_one_run_can_neither_read_nor_write_another(users, run):
    for url in users.values():
        other = parse_url(f"{url.engine}?run=other-{run}")
        engine = connect(other)
        refused(engine.status)
        refused(engine.read, (0, 0), 1, 0)
        refused(engine.get, "snapshot")
        refused(engine.hosts)
        refused(engine.acquire, b"t" * 16, b"me", 10, 0)
        refused(engine.announce, "h:1", b"{}", 10)
        refused(engine.accept, b"{}")
        engine.close()


# --- TLS ------------------------------------------------------------------------------------------


def _openssl(folder: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)


_KEY = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]


@pytest.fixture
def certificates(tmp_path):
    """Of an authority of the test's own: one for two days, and one that has expired."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    folder = tmp_path / "certificates"
    folder.mkdir()
    _openssl(
        folder,
        *("req", "-x509", *_KEY, "-keyout", "ca.key", "-out", "ca.pem", "-days", "2"),
        *("-subj", "/CN=authority of a test", "-addext", "keyUsage=critical,keyCertSign"),
    )
    _openssl(
        folder,
        *("req", *_KEY, "-keyout", "server.key", "-out", "server.csr", "-subj", "/CN=a server"),
    )
    # Python 3.13 wants all that the standard asks for.
    (folder / "server.ext").write_text(
        "subjectAltName=IP:127.0.0.1\nauthorityKeyIdentifier=keyid\nsubjectKeyIdentifier=hash\n"
    )
    for name, days in (("valid.pem", "2"), ("expired.pem", "-1")):
        _openssl(
            folder,
            *("x509", "-req", "-in", "server.csr", "-CA", "ca.pem", "-CAkey", "ca.key"),
            *("-CAcreateserial", "-extfile", "server.ext", "-days", days, "-out", name),
        )
    return folder


@pytest.fixture
def tls(server: RedisServer, certificates, run):
    """The server with TLS beside its other port, and the URL of the run by it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server.kill()
    options = {
        "--tls-port": str(port),
        "--tls-cert-file": str(certificates / "valid.pem"),
        "--tls-key-file": str(certificates / "server.key"),
        "--tls-ca-cert-file": str(certificates / "ca.pem"),
        "--tls-auth-clients": "no",
    }
    server.start(*(word for option in options.items() for word in option))
    plain = server.url(run, port=port)
    return plain.replace("redis://", "rediss://") + f"&ssl_ca_certs={certificates / 'ca.pem'}"


@pytest.mark.thorough
def test_tls_by_an_authority_of_ones_own_until_the_certificate_expires(
    server: RedisServer, tls, certificates, run
):
    url = parse_url(tls)
    with leader(url, f"{run}-a") as main, host(url, f"{run}-1") as worker:
        library = define(main, "one")
        library.impl("one", lambda x: x + 1, "CompositeExplicitAutograd")
        arrives(worker, "one")
        mine = define(worker, "one")
        mine.impl("one", lambda x: x + 1, "CompositeExplicitAutograd")
        with server.client() as client:
            client.config_set("tls-cert-file", str(certificates / "expired.pem"))
            define(main, "two")
            arrives(worker, "two")  # what is connected stays so
            client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            facts = worker.dispatcher.facts
            changes_until(
                worker,
                lambda: "certificate has expired" in (now := told(facts)).why and now.phase == CUT,
            )
            define(main, "three")  # the leader goes on
            assert worker.ops.s.one(1) == 2
            with pytest.raises(EngineUnreachableError, match="certificate has expired") as caught:
                md.wait_for_def("s::three", 0.05, registry=worker)
            assert caught.value.engine == url.shown
            client.config_set("tls-cert-file", str(certificates / "valid.pem"))
        arrives(worker, "three")


def test_a_server_whose_certificate_nobody_vouches_for_is_refused(tls, run):
    url = parse_url(re.sub("&ssl_ca_certs=.*", "", tls))
    with (
        pytest.raises(EngineUnreachableError, match="certificate verify failed"),
        leader(url, f"{run}-a"),
    ):
        pass
