from .workers.telemetry import *
