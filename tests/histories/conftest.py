from tests.concurrency.fixtures import acme, frozen, transactional_db

__all__ = ["acme", "frozen", "transactional_db"]
