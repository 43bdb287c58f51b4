from .dispatch.context.values import *
