from .authoring.custom_op import *
