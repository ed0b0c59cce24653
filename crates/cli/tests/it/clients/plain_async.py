"""The asyncio client, against any node. Arguments: the ports of the nodes."""
import asyncio
import sys

import redis.asyncio


async def main():
    ports = [int(p) for p in sys.argv[1:]]
    clients = [redis.asyncio.Redis(port=p, decode_responses=True) for p in ports]
    a, b = clients[0], clients[-1]
    assert await a.ping() and await a.set('k', 'v') and await b.get('k') == 'v'
    # Many at a time, over all nodes, each on a connection of its own.
    counts = await asyncio.gather(*[clients[i % len(clients)].incr('n') for i in range(60)])
    assert sorted(counts) == list(range(1, 61)), counts
    many = {f'm{i}': str(i) for i in range(100)}
    assert await a.mset(many) and await b.mget(list(many)) == list(many.values())
    async with b.pipeline(transaction=False) as pipe:
        for i in range(300):
            pipe.set(f'p{i}', 'x' * i)
        assert all(await pipe.execute())
    assert await a.strlen('p299') == 299
    assert await b.delete('k', 'none') == 1 and await a.get('k') is None
    assert await a.dbsize() == 1 + 100 + 300
    for client in clients:
        await getattr(client, 'aclose', client.close)()


asyncio.run(main())
print('fine')
