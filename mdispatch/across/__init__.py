"""Between interpreters and processes: calls (routing.py has the caller's side, serving.py the
owner's), handles of objects, classes and their objects, and the transports.
"""
