from .dispatch.context.guards import *
