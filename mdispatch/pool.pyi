from .workers.pool import *
