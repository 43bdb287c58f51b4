"""A call: from the arguments to the kernel that runs.

Nothing is imported from the package as such: a call loads only the modules that it needs.
``operators`` has what users call, ``entry`` what one operator is in one interpreter, ``table`` the
rules of precedence; ``context`` is what surrounds a call.
"""
