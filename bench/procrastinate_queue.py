"""procrastinate, a task queue on the same PostgreSQL: its own client in this process, and its bare function."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import resources

import psycopg

from bench import ground

MISSING = "procrastinate is not installed (pip install procrastinate)"
JOBS = """
INSERT INTO procrastinate_jobs (queue_name, task_name, args)
SELECT 'bench', 'task', '{"n": 1}' FROM generate_series(1, %s::bigint)
"""


@dataclass(frozen=True, slots=True)
class Jobs:
    url: str
    worker: int

    @property
    def script(self) -> str:
        return f"SELECT * FROM procrastinate_fetch_job_v2(ARRAY['bench']::varchar[], {self.worker}::bigint);\n"

    def check_that_some_are_left(self) -> None:
        """Raises RuntimeError when the queue ran dry: of nothing much can be fetched in a second."""
        with psycopg.connect(self.url) as connection:
            if connection.execute("SELECT FROM procrastinate_jobs WHERE status = 'todo' LIMIT 1").fetchone() is None:
                raise RuntimeError("the queue ran dry")

    def fetched_a_second(self, *, clients: int, seconds: float) -> float:
        return asyncio.run(self._fetch(clients, seconds))

    async def _fetch(self, clients: int, seconds: float) -> float:
        from procrastinate import PsycopgConnector
        from procrastinate.manager import JobManager

        connector = PsycopgConnector(conninfo=self.url, min_size=clients, max_size=clients)
        await connector.open_async()
        manager, end = JobManager(connector), time.perf_counter() + seconds

        async def client() -> int:
            fetched = 0
            while time.perf_counter() < end:
                job = await manager.fetch_job(queues=["bench"], worker_id=self.worker)
                if job is None:
                    raise RuntimeError("the queue ran dry")
                fetched += 1
            return fetched

        begun = time.perf_counter()
        try:
            counts = await asyncio.gather(*(client() for _ in range(clients)))
            return sum(counts) / (time.perf_counter() - begun)
        finally:
            await connector.close_async()


@contextmanager
def filled(jobs: int) -> Iterator[Jobs | None]:
    """A database of its own with so many jobs to do; None without the package."""
    try:
        schema = (resources.files("procrastinate") / "sql" / "schema.sql").read_text()
    except ModuleNotFoundError:
        yield None
        return
    with ground.database() as url:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(schema.encode())
            connection.execute(JOBS, [jobs])
            ((worker,),) = connection.execute(
                "INSERT INTO procrastinate_workers DEFAULT VALUES RETURNING id"
            ).fetchall()
            connection.execute("VACUUM ANALYZE")
        yield Jobs(url, worker)
