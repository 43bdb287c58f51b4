"""The numbers of the contract, under the names that ``native/mdispatch.h`` gives them.

Written by ``python native/constants.py``; a test compares the two files. The module is kept in the
repository, and not made by the build, so that type checkers, searches and readers find it in a bare
checkout. They are plain ints: an IntEnum would make every interpreter load ``enum`` at its start.
"""

from __future__ import annotations

__all__ = [
    "MD_ABI",
    "MD_FORMAT",
    "MD_FOREVER",
    "MD_HOST",
    "MD_AS_BRIDGE",
    "MD_OK",
    "MD_EINVAL",
    "MD_ENAME",
    "MD_ECLOSED",
    "MD_EDIED",
    "MD_ETIMEDOUT",
    "MD_EINTR",
    "MD_ECANCELED",
    "MD_EEXIST",
    "MD_ENOENT",
    "MD_EROLE",
    "MD_EFULL",
    "MD_EMEMBERS",
    "MD_ETOOLONG",
    "MD_ENOBUFS",
    "MD_EFORMAT",
    "MD_EVERSION",
    "MD_EBOOT",
    "MD_ENAMESPACE",
    "MD_EOWNER",
    "MD_ENOTFILE",
    "MD_EDAMAGED",
    "MD_ELOCK",
    "MD_EHANDLES",
    "MD_EELECTED",
    "MD_EFOLDER",
    "MD_ELOST",
    "MD_EREOPEN",
    "MD_EBUSY",
    "MD_EEDITIONS",
    "MD_EBRACES",
    "MD_ESYS",
    "MD_LIBRARY",
    "MD_DEF",
    "MD_IMPL",
    "MD_FALLBACK",
    "MD_PYSTUB",
    "MD_NAME",
    "MD_CLAIM",
    "MD_TORCH",
    "MD_STANDING",
    "MD_PRIORITY",
    "MD_CLASS",
    "MD_ANY_MEMBER",
    "MD_TYPE",
    "MD_NOTE",
    "MD_VARIANT",
    "MD_VALUE",
    "MD_AGREED",
    "MD_CHOICE",
    "MD_MATCH",
    "MD_KEPT",
    "MD_KINDS",
    "MD_UNIQUE",
    "MD_STACK",
    "MD_RAISE_ALL",
    "MD_MAIN",
    "MD_WORKER",
    "MD_PEER",
    "MD_BRIDGE",
    "MD_POLICY_MAIN",
    "MD_POLICY_ELECT",
    "MD_POLICY_BRIDGE",
    "MD_MAX_NAME",
    "MD_MAX_BODY",
    "MD_MAX_WHERE",
    "MD_MAX_REGISTRY_NAME",
    "MD_MAX_ADDRESS",
    "MD_MAX_EDITIONS",
    "MD_MAX_FOLDER",
    "MD_MAX_PROCESSES",
    "MD_MAX_MEMBERS",
]

MD_ABI = 6
MD_FORMAT = 7
MD_FOREVER = -1
MD_HOST = -1
MD_AS_BRIDGE = -2

# md_status
MD_OK = 0
MD_EINVAL = -1
MD_ENAME = -2
MD_ECLOSED = -3
MD_EDIED = -4
MD_ETIMEDOUT = -5
MD_EINTR = -6
MD_ECANCELED = -7
MD_EEXIST = -8
MD_ENOENT = -9
MD_EROLE = -10
MD_EFULL = -11
MD_EMEMBERS = -12
MD_ETOOLONG = -13
MD_ENOBUFS = -14
MD_EFORMAT = -15
MD_EVERSION = -16
MD_EBOOT = -17
MD_ENAMESPACE = -18
MD_EOWNER = -19
MD_ENOTFILE = -20
MD_EDAMAGED = -21
MD_ELOCK = -22
MD_EHANDLES = -23
MD_EELECTED = -24
MD_EFOLDER = -25
MD_ELOST = -26
MD_EREOPEN = -27
MD_EBUSY = -28
MD_EEDITIONS = -29
MD_EBRACES = -30
MD_ESYS = -1000

# md_kind
MD_LIBRARY = 1
MD_DEF = 2
MD_IMPL = 3
MD_FALLBACK = 4
MD_PYSTUB = 5
MD_NAME = 6
MD_CLAIM = 7
MD_TORCH = 8
MD_STANDING = 9
MD_PRIORITY = 10
MD_CLASS = 11
MD_ANY_MEMBER = 16
MD_TYPE = 16
MD_NOTE = 17
MD_VARIANT = 18
MD_VALUE = 19
MD_AGREED = 24
MD_CHOICE = 24
MD_MATCH = 25
MD_KEPT = 26
MD_KINDS = 32

# md_rule
MD_UNIQUE = 1
MD_STACK = 2
MD_RAISE_ALL = 16

# md_role
MD_MAIN = 1
MD_WORKER = 2
MD_PEER = 3
MD_BRIDGE = 4

# md_policy
MD_POLICY_MAIN = 1
MD_POLICY_ELECT = 2
MD_POLICY_BRIDGE = 3

# md_limit
MD_MAX_NAME = 1023
MD_MAX_BODY = 65536
MD_MAX_WHERE = 1024
MD_MAX_REGISTRY_NAME = 128
MD_MAX_ADDRESS = 192
MD_MAX_EDITIONS = 16
MD_MAX_FOLDER = 160
MD_MAX_PROCESSES = 1024
MD_MAX_MEMBERS = 2048
