"""The loop: reflectors, cache, queue, planning in a worker thread, commit, leader election. asyncio."""
