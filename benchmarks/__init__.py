"""What mdispatch costs, as ratios: ``python -m benchmarks`` runs every job, see run.py."""
