"""Writes through a cluster client while a node is killed. Arguments: the ports of the nodes.

Says `loaded` once it is under way; is told the dead node's port on stdin; writes on, without being
started anew; and says what came of it, as JSON.
"""
import json
import sys
import threading
import time

from redis.cluster import ClusterNode, RedisCluster
from redis.exceptions import RedisError

BEFORE, AFTER = 300, 600

nodes = [ClusterNode('127.0.0.1', int(p)) for p in sys.argv[1:]]
client = RedisCluster(startup_nodes=nodes, decode_responses=True, socket_timeout=10)
dead = []
threading.Thread(target=lambda: dead.append(int(sys.stdin.readline())), daemon=True).start()
written, errors, after = {}, [], 0
until = time.monotonic() + 90
while after < AFTER and time.monotonic() < until:
    key = f'sync:{len(written)}'
    try:
        client.set(key, len(written))
    except (RedisError, OSError) as error:
        # Perhaps done, perhaps not: the same again does no harm.
        errors.append(f'{type(error).__name__}: {error}')
        time.sleep(0.05)
        continue
    written[key] = str(len(written))
    after += len(dead)
    if len(written) == BEFORE:
        print('loaded', flush=True)
lost = [key for key, value in written.items() if client.get(key) != value]
asked = {client.get_node_from_key(key).port for key in written}
print(json.dumps({
    'after': after, 'lost': lost, 'asks_the_dead': dead[0] in asked, 'errors': errors[-20:],
}))
