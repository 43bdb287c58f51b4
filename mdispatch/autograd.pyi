from .authoring.autograd import *
