"""Ray on one machine: a setup hook warms up each worker process.

Ray's workers have the environment of the cluster and not that of the driver: the registry's address
and the folder of the operators go with the runtime environment.
"""

import os

import ray
from word_ops import LINES, job

import mdispatch as md


def warm_up():
    md.warm_up(["word_ops"])


if __name__ == "__main__":
    environment = {
        "MDISPATCH_REGISTRY": md.default_registry().address,
        "PYTHONPATH": os.path.dirname(os.path.abspath(__file__)),
    }
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        runtime_env={"worker_process_setup_hook": warm_up, "env_vars": environment},
    )
    answers = ray.get([ray.remote(job).remote(line) for line in LINES])
    ray.shutdown()
    print(answers)
    assert answers == [("verify", n) for n in (5, 5, 4, 3)]
