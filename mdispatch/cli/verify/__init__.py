"""The command ``mdispatch verify``: whether workers agree with the main interpreter."""
