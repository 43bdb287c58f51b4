"""Versions of a program side by side. A registry's name can have editions, NAME@EDITION, each a
registry of its own, and braces in an address say which one (joining.py, living.py). Two versions
are compared by their registrations (snapshot.py, comparing.py).
"""
