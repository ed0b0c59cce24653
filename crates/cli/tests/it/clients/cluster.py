"""A client that sends each key to its node. Arguments: the ports of the nodes, which redirect."""
import sys

from redis.cluster import ClusterNode, RedisCluster

ports = [int(p) for p in sys.argv[1:]]
# One node is told; it tells of the others.
client = RedisCluster(startup_nodes=[ClusterNode('127.0.0.1', ports[0])], decode_responses=True)
assert sorted(node.port for node in client.get_primaries()) == sorted(ports)
assert client.get_replicas() == []
assert all(info['redis_mode'] == 'cluster' for info in client.info('server', target_nodes='all').values())
many = {f'm{i}': str(i) for i in range(300)}
for key, value in many.items():
    assert client.set(key, value)
used = {client.get_node_from_key(key).port for key in many}
assert used == set(ports), used
assert [client.get(key) for key in many] == list(many.values())
# Keys of several slots: the client takes them apart. Keys of one slot go as they are.
assert client.mget_nonatomic(list(many)) == list(many.values())
assert client.mset_nonatomic({f'n{i}': i for i in range(50)})
assert client.mset({'{t}a': 1, '{t}b': 2}) and client.mget('{t}a', '{t}b') == ['1', '2']
assert client.exists(*many) == 300 and client.delete('m0', 'm1', 'm2', 'none') == 3
pipe = client.pipeline()
for i in range(300):
    pipe.set(f'p{i}', i)
    pipe.get(f'p{i}')
assert pipe.execute()[1::2] == [str(i) for i in range(300)]
# Each node counts its own, and the client adds up.
count = client.dbsize(target_nodes=RedisCluster.PRIMARIES)
assert count == 297 + 50 + 2 + 300, count

# SLOTS, SHARDS and NODES say the same.
slots = {n: node['primary'][1] for (first, last), node in client.cluster_slots().items() for n in range(first, last + 1)}
assert len(slots) == 16384
told = {}
for address, node in client.cluster_nodes().items():
    assert 'master' in node['flags'] and node['connected'], node
    for ends in node['slots']:
        for n in range(int(ends[0]), int(ends[-1]) + 1):
            told[n] = int(address.rsplit(':', 1)[1])
assert told == slots
told = {}
for shard in client.cluster_shards():
    ends = shard['slots']  # in pairs, or one after another: versions of redis-py differ
    ends = ends if isinstance(ends[0], int) else [end for pair in ends for end in pair]
    for first, last in zip(ends[::2], ends[1::2]):
        for n in range(first, last + 1):
            told[n] = shard['nodes'][0]['port']
assert told == slots
info = client.cluster_info(target_nodes=client.get_primaries()[0])
assert info['cluster_state'] == 'ok' and info['cluster_size'] == str(len(ports)), info
print('fine')
