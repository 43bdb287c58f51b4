"""Apache with mod_wsgi: who registers, as it is configured (apache.conf), and what makes one
registry of it. It needs Debian's apache2 and libapache2-mod-wsgi-py3, and a virtual environment of
Debian's Python. Where root runs it, www-data must be able to read the environment.
"""

import os
import sys
import tempfile
from pathlib import Path

from ask_server import HERE, TEAM, expect

if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="md-") as name:
        folder = Path(name)
        registries = folder / "registries"
        registries.mkdir()
        os.environ["MDISPATCH_FOLDER"] = str(registries)
        apache = ["/usr/sbin/apache2", "-DNO_DETACH", "-f", f"{HERE}/apache.conf"]
        apache += ["-C", "Define PORT {port}", "-C", f"Define HERE {HERE}"]
        apache += ["-C", f"Define FOLDER {folder}", "-C", f"Define PREFIX {sys.prefix}"]
        if os.geteuid() == 0:
            apache.append("-DROOT")
            folder.chmod(0o755)
            registries.chmod(0o1777)  # as /tmp: the processes of www-data make their folder there
        try:
            # Applications are in sub-interpreters, and no main interpreter imports anything.
            for way in ([], ["-DDAEMON"]):
                expect("error 500", [*apache, *way])
                assert "MDISPATCH_REGISTRY=elect:NAME" in (folder / "log").read_text()
                expect("register, verify: 1 registry", [*apache, *way], TEAM)
            # The application is in the main interpreter: each process is alone.
            way = ["-DDAEMON", "-DGLOBAL"]
            expect("register, register: 2 registries", [*apache, *way])
            expect("register, verify: 1 registry", [*apache, *way], TEAM)
            # The main interpreter of each process registers.
            way = ["-DDAEMON", "-DIMPORT"]
            expect("verify, verify: 2 registries", [*apache, *way])
            expect("verify, verify: 1 registry", [*apache, *way], TEAM)
        except BaseException:
            print((folder / "log").read_text())
            raise
