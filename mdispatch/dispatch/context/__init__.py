"""What surrounds a call: values, guards, modes, transforms, observers, homes.

All of it belongs to one thread of one interpreter, or to one interpreter. Imported module by
module.
"""
