from .registry.library import *
