"""Local Ray clusters for tests: two nodes on the loopback."""

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module")
def two_nodes() -> Iterator[str]:
    """The address of a cluster of two nodes; one cluster for a file of tests."""
    patch = pytest.MonkeyPatch()
    patch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # every address is 127.0.0.1
    patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    patch.setenv("RAY_AUTH_MODE", "disabled")
    from ray._private import ray_constants
    from ray.cluster_utils import Cluster

    patch.setattr(ray_constants, "ENABLE_RAY_CLUSTER", False)
    node = {"num_cpus": 4, "object_store_memory": 100 * 2**20}
    cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
    try:
        cluster.add_node(**node)
        cluster.wait_for_nodes()
        yield cluster.address
    finally:
        cluster.shutdown()
        patch.undo()
