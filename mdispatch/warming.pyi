from .workers.warm_up import *
