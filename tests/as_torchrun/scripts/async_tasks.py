"""asyncio: tasks that are pending at the end, and exceptions that nobody fetches."""

import asyncio
import sys


async def tick():
    try:
        await asyncio.sleep(600)
    finally:
        print("cancelled")


async def fail():
    raise ValueError("never fetched")


async def numbers():
    try:
        yield 1
    finally:
        print("async generator closed")


async def main():
    global kept
    asyncio.create_task(tick(), name="tick")
    kept = asyncio.create_task(fail(), name="fail")
    async for _ in numbers():
        break
    process = await asyncio.create_subprocess_exec("true")
    print(await process.wait())
    await asyncio.sleep(0)


asyncio.run(main())
loop = asyncio.new_event_loop()
pending = loop.create_task(tick(), name="pending")
loop.run_until_complete(asyncio.sleep(0))
if "interrupt" in sys.argv:

    async def interrupted():
        import os
        import signal

        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.sleep(600)

    asyncio.run(interrupted())
