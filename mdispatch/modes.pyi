from .dispatch.context.modes import *
