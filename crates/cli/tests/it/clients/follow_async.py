"""As follow.py, with the asyncio client and several writers at a time."""
import asyncio
import json
import sys
import threading
import time

from redis.asyncio.cluster import ClusterNode, RedisCluster
from redis.exceptions import RedisError

WRITERS, BEFORE, AFTER = 4, 300, 600

dead, errors, written = [], [], {}
after = 0


async def write(client, name, until):
    global after
    number = 0
    while after < AFTER and time.monotonic() < until:
        key = f'async:{name}:{number}'
        try:
            await client.set(key, number)
        except (RedisError, OSError, asyncio.TimeoutError) as error:
            errors.append(f'{type(error).__name__}: {error}')
            await asyncio.sleep(0.05)
            continue
        written[key] = str(number)
        number += 1
        after += len(dead)
        if len(written) == BEFORE:
            print('loaded', flush=True)


async def main():
    nodes = [ClusterNode('127.0.0.1', int(p)) for p in sys.argv[1:]]
    client = RedisCluster(startup_nodes=nodes, decode_responses=True, socket_timeout=10)
    threading.Thread(target=lambda: dead.append(int(sys.stdin.readline())), daemon=True).start()
    until = time.monotonic() + 90
    await asyncio.gather(*[write(client, name, until) for name in range(WRITERS)])
    lost = [key for key, value in written.items() if await client.get(key) != value]
    asked = {client.get_node_from_key(key).port for key in written}
    print(json.dumps({
        'after': after, 'lost': lost, 'asks_the_dead': dead[0] in asked, 'errors': errors[-20:],
    }))
    await getattr(client, 'aclose', client.close)()


asyncio.run(main())
