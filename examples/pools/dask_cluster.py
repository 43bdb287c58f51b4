"""Dask distributed: a plugin warms up each worker of a LocalCluster, also those that come later."""

from dask.distributed import Client, LocalCluster, WorkerPlugin
from word_ops import LINES, job, role_of_processes

import mdispatch as md


class WarmUp(WorkerPlugin):
    def setup(self, worker):
        md.warm_up(["word_ops"])


if __name__ == "__main__":
    cluster = LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None)
    with cluster, Client(cluster) as client:
        client.register_plugin(WarmUp())
        answers = client.gather(client.map(job, LINES))
    print(answers)
    assert answers == [(role_of_processes(), n) for n in (5, 5, 4, 3)]
