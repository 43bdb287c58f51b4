"""The cases that provoke each golden error, by area. Each module adds its own to
golden_stage.CASES.
"""
