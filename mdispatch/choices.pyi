from .registry.choices import *
