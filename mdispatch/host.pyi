from .workers.interpreters import *
