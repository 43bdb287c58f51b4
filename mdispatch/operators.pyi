from .registry.ops import *
