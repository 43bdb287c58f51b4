from .dispatch.higher_order import *
