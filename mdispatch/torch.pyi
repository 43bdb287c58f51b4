from .authoring.torch import *
