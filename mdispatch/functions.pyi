from .authoring.functions import *
