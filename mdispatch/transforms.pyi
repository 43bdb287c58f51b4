from .dispatch.context.transforms import *
