"""The operators of the web application, imported wherever it is served."""

from __future__ import annotations

import re

import mdispatch as md

library = md.Library("web", "DEF")
library.define("slug(str title) -> str")


@library.impl("slug", dispatch_key="CompositeExplicitAutograd")
def slug(title: str) -> str:
    return "-".join(re.findall("[a-z0-9]+", title.lower()))
