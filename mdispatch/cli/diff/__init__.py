"""The command ``mdispatch diff``: whether one version of all operators can take another's place."""
