"""A client that knows nothing of clusters, against any node. Arguments: the ports of the nodes."""
import sys

import redis

ports = [int(p) for p in sys.argv[1:]]
clients = [redis.Redis(port=p, decode_responses=True) for p in ports]
a, b = clients[0], clients[-1]
assert a.info('server')['redis_mode'] == 'standalone'
assert a.ping() and a.set('k', 'v') and b.get('k') == 'v'
assert a.set('k', 'w', nx=True) is None and b.get('k') == 'v'
assert [c.incr('n') for c in clients] == list(range(1, len(clients) + 1))
many = {f'm{i}': str(i) for i in range(100)}
assert a.mset(many) and b.mget(list(many)) == list(many.values())
assert b.delete('k', 'none') == 1 and a.exists('k', 'n') == 1 and a.get('k') is None
pipe = b.pipeline(transaction=False)
for i in range(500):
    pipe.set(f'p{i}', 'x' * i)
assert all(pipe.execute())
assert a.strlen('p499') == 499 and a.append('p499', 'yz') == 501 and a.getdel('p499') == 'x' * 499 + 'yz'
big = 'z' * (3 << 20)
assert a.set('big', big) and b.get('big') == big
assert a.dbsize() == 100 + 1 + 499 + 1, a.dbsize()
try:
    a.execute_command('NOSUCH', 'x')
    raise SystemExit('must be refused')
except redis.ResponseError as e:
    assert 'unknown command' in str(e), e
print('fine')
