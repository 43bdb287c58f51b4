"""The command ``mdispatch bench``: speed as ratios, measured in one run."""
