"""The parts of record.py."""
