from .authoring.fake import *
