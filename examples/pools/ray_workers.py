import ray
from word_ops import LINES, job, role_of_processes

import mdispatch as md

if __name__ == "__main__":
    hook = md.initializer("word_ops")
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        runtime_env={"worker_process_setup_hook": hook},
    )
    answers = ray.get([ray.remote(job).remote(line) for line in LINES])
    ray.shutdown()
    print(answers)
    assert answers == [(role_of_processes(), n) for n in (5, 5, 4, 3)]
