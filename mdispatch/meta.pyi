from .authoring.meta import *
