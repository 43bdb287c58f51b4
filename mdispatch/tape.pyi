from .authoring.autograd.tape import *
